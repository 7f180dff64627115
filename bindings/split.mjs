// Divides multihead.wasm of multihead/models into two files: functions that only analyses, trainers and models on a GPU call move to
// analyses.wasm, which load/loader.ts links to the running instance before the first of them.
//
//     node split.mjs FOLDER IDENTITY BINARYEN      IDENTITY: the text that analyses.wasm contains for the check in loader.ts
//
// A function stays in multihead.wasm if it is exported, if its address is taken, or if a function that stays calls it. Exceptions
// are the names below. If a name is wrong, a call before analyses.wasm is loaded ends in a trap; no result can become wrong.

import { execFileSync } from 'node:child_process';
import { appendFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [folder, identity, binaryen] = process.argv.slice(2);
const file = (name) => join(folder, name);
/** The WebAssembly features of both builds. With more features, Binaryen would write types that Node 20 does not know. */
const features = ['bulk-memory', 'mutable-globals', 'nontrapping-float-to-int', 'reference-types', 'relaxed-simd', 'sign-ext', 'simd'].map(
  (name) => `--enable-${name}`,
);
const run = (program, ...args) => execFileSync(join(binaryen, program), [...features, ...args], { encoding: 'utf8', maxBuffer: 2 ** 26 });

/** Functions that move although their address is taken: those that JavaScript calls, and the jobs, kernels and classes below them. */
const verbs = 'lens|log_probabilities|measure|gradients|attribution_patch|logit_attribution|trainer_create|train';
const second = new RegExp(
  [
    `webgpu::|bindings::(gpu_|model_(${verbs})|patch_sweep|ablation_sweep|sweep_|trainer_|push_parameter|\\(anonymous namespace\\)::metric_of)`,
    'models::(lens|log_probabilities|attribution_patch)|Trainee|[bB]ackward|gradients',
    '(sgd|adamw)_range|SgdStep|AdamWStep|transform_back|sum_of_squares|cross_entropy',
  ].join('|'),
);
const isOfTrainers = (name) => /^multihead_train/.test(name);

const functions = new Map();
const calls = new Map();
const graph = run('wasm-opt', file('multihead.wasm'), '--print-call-graph', '-o', file('unused.wasm'));
for (const [, name, style] of graph.matchAll(/^ {2}"(.*?)" \[(style=.*)\];/gm)) {
  const { kept, imported } = functions.get(name) ?? {};
  const called = name.replace(/\\([0-9a-f]{2})/g, (_, code) => String.fromCharCode(parseInt(code, 16)));
  const isRoot = (style.includes('gray') && !isOfTrainers(called)) || (style.includes('rounded') && !second.test(called));
  functions.set(name, { kept: kept || isRoot, imported: imported || style.includes('turquoise') });
}
for (const [, from, to] of graph.matchAll(/^ {2}"(.*?)" -> "(.*?)"/gm)) calls.set(from, [...(calls.get(from) ?? []), to]);
const staying = new Set([...functions].filter(([, { kept }]) => kept).map(([name]) => name));
for (const name of staying) for (const each of calls.get(name) ?? []) staying.add(each);
const moved = [...functions].filter(([name, { imported }]) => !imported && !staying.has(name)).map(([name]) => name);
if (moved.length < 100 || staying.size < 100) throw new Error(`${moved.length} of ${functions.size} functions belong to the second file`);

writeFileSync(file('moved.txt'), `${moved.join('\n')}\n`);
const outputs = ['-o1', file('primary.wasm'), '-o2', file('analyses.wasm')];
run('wasm-split', file('multihead.wasm'), '--no-placeholders', '--export-prefix=%', `--split-funcs=@${file('moved.txt')}`, ...outputs);
// With the limit of CMakeLists.txt, and for the reason that stands there.
const optimized = ['-O3', '--one-caller-inline-max-function-size=400', '--reorder-functions'];
run('wasm-opt', file('primary.wasm'), ...optimized, '-o', file('multihead.wasm'));
run('wasm-opt', file('analyses.wasm'), ...optimized, '-o', file('analyses.wasm'));
for (const name of ['primary.wasm', 'unused.wasm', 'moved.txt']) rmSync(file(name));

// A section without code: 0, its length, and a name that is preceded by its length.
const section = Buffer.from(`\tmultihead${identity}`);
appendFileSync(file('analyses.wasm'), Buffer.from([0, section.length, ...section]));
