// Divides multihead.wasm of multihead/models into the file that every model needs and the parts of parts.json: functions that only some
// models or calls need. load/loader.ts links them to the running instance before they are called.
//
//     node split.mjs FOLDER IDENTITY BINARYEN      IDENTITY: the text that a part contains for the check in loader.ts, with % for its name

import { execFileSync } from 'node:child_process';
import { appendFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const [folder, identity, binaryen] = process.argv.slice(2);
/**
 * `functions`: names of those that others call or whose address is taken; what only they call goes with them. If a name is wrong, a call
 * before the part is loaded ends in a trap; no result can become wrong. `needs`: a part that is loaded before, and has what both call.
 */
const parts = JSON.parse(readFileSync(new URL('parts.json', import.meta.url), 'utf8'));
const file = (name) => join(folder, name);
/** The WebAssembly features of both builds. With more features, Binaryen would write types that Node 20 does not know. */
const features = ['bulk-memory', 'mutable-globals', 'nontrapping-float-to-int', 'reference-types', 'relaxed-simd', 'sign-ext', 'simd'].map(
  (name) => `--enable-${name}`,
);
const run = (program, ...args) => execFileSync(join(binaryen, program), [...features, ...args], { encoding: 'utf8', maxBuffer: 2 ** 26 });

/** Names of functions as Binaryen writes them, with the names in C++. */
const functions = new Map();
const calls = new Map();
const graph = run('wasm-opt', file('multihead.wasm'), '--print-call-graph', '-o', file('unused.wasm'));
for (const [, name, style] of graph.matchAll(/^ {2}"(.*?)" \[(style=.*)\];/gm)) {
  const { called, imported } = functions.get(name) ?? {};
  functions.set(name, {
    text: name.replace(/\\([0-9a-f]{2})/g, (_, code) => String.fromCharCode(parseInt(code, 16))),
    /** Exported, or its address is taken. */
    called: called || /gray|rounded/.test(style),
    imported: imported || style.includes('turquoise'),
  });
}
for (const [, from, to] of graph.matchAll(/^ {2}"(.*?)" -> "(.*?)"/gm)) calls.set(from, [...(calls.get(from) ?? []), to]);

const names = Object.keys(parts);
/** The part whose table has a function. */
const named = new Map();
for (const [name, { text, imported }] of functions) {
  const part = names.find((each) => new RegExp(parts[each].functions.join('|')).test(text));
  if (part !== undefined && !imported) named.set(name, part);
}
/** All that these functions call, without the functions that `isLeft`. */
function reached(first, isLeft) {
  const all = new Set(first);
  for (const name of all) for (const each of calls.get(name) ?? []) if (!isLeft(each)) all.add(each);
  return all;
}
const roots = [...functions].filter(([name, { called }]) => called && !named.has(name)).map(([name]) => name);
const staying = reached(roots, (name) => named.has(name));
const reachedBy = new Map(
  names.map((part) => [
    part,
    reached(
      [...named.keys()].filter((name) => named.get(name) === part),
      (name) => staying.has(name) || named.has(name),
    ),
  ]),
);
/** A function of several parts stays, unless the others need the one that takes it. */
const isOf = (part, name) => names.every((other) => other === part || parts[other].needs === part || !reachedBy.get(other).has(name));
const moved = new Map(names.map((part) => [part, [...reachedBy.get(part)].filter((name) => isOf(part, name))]));
for (const [part, { length }] of moved) if (length < 5) throw new Error(`${length} of ${functions.size} functions belong to ${part}`);
writeFileSync(file('moved.txt'), [...moved].map(([part, list]) => [part, ...list, ''].join('\n')).join('\n'));
run('wasm-split', '--multi-split', file('multihead.wasm'), '--manifest', file('moved.txt'), `--out-prefix=${folder}/`, '-o', file('multihead.wasm'));
for (const part of ['multihead', ...names]) {
  // With the limit of CMakeLists.txt, and for the reason that stands there.
  const optimized = ['-O3', '--one-caller-inline-max-function-size=400', '--reorder-functions'];
  run('wasm-opt', file(`${part}.wasm`), ...optimized, '-o', file(`${part}.wasm`));
  if (part === 'multihead') continue;
  // A section without code: 0, its length, and a name that is preceded by its length.
  const section = Buffer.from(`\tmultihead${identity.replace('%', part)}`);
  appendFileSync(file(`${part}.wasm`), Buffer.from([0, section.length, ...section]));
}
for (const name of ['unused.wasm', 'moved.txt']) rmSync(file(name));
