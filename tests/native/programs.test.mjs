// The exit codes of the command-line programs: 0; 1 for a wrong result; 2 for invalid arguments; 3 if something cannot
// be read or written. Errors go only to standard error.
//
//   node --test tests/native/programs.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { NATIVE_PROGRAM } from '../../native/dev/bench/programs.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const program = (name) => join(dirname(NATIVE_PROGRAM), name);
const goldens = join(root, 'tests', 'conformance');
const run = (name, args, options = {}) => spawnSync(program(name), args, { encoding: 'utf8', ...options });

const QUICK = {
  'multihead-trace': ['a b'],
  'multihead-train': ['induction', '--steps', '2', '--batch', '1'],
  'multihead-conformance': [goldens],
  'multihead-model': [join(goldens, 'models', 'gpt2'), '--ids', '1,2,3', '--max-new-tokens', '4', '--json'],
  'multihead-bench': ['--alone', '--benchmark_filter=tiny/full/f32/threads:1$', '--benchmark_min_time=0.001'],
};

function refused(name, args, code, message) {
  const { status, stdout, stderr } = run(name, args);
  assert.equal(status, code, `${name} ${args.join(' ')}\n${stderr}`);
  assert.equal(stdout, '', `${name} ${args.join(' ')}`);
  assert.match(stderr, message);
}

test('a successful run ends with 0 and prints nothing on standard error', () => {
  for (const [name, args] of Object.entries(QUICK)) {
    const { status, stdout, stderr } = run(name, args);
    assert.equal(status, 0, stderr);
    assert.ok(stdout.length > 0, name);
    if (name !== 'multihead-bench') assert.equal(stderr, ''); // Google Benchmark describes the machine there
  }
});

const noFullDisk = existsSync('/dev/full') ? false : 'there is no /dev/full';

test('a full disk gives 3', { skip: noFullDisk }, () => {
  const cases = [...Object.entries(QUICK), ['multihead-trace', ['a b', '--json']]];
  for (const name of Object.keys(QUICK)) cases.push([name, ['--help']]);
  for (const [name, args] of cases) {
    const full = openSync('/dev/full', 'w');
    try {
      const { status, stderr } = run(name, args, { stdio: ['ignore', full, 'pipe'] });
      assert.equal(status, 3, `${name} ${args.join(' ')}\n${stderr}`);
      assert.match(stderr, /standard output: cannot be written/);
    } finally {
      closeSync(full);
    }
  }
});

test("npm's scripts end with 3 on a full disk, too", { skip: noFullDisk }, () => {
  const full = openSync('/dev/full', 'w');
  try {
    const stdio = ['ignore', full, 'pipe'];
    const { status, stderr } = spawnSync(process.execPath, ['native/dev/bench.mjs', '--help'], { cwd: root, stdio });
    assert.equal(status, 3, String(stderr));
    assert.match(String(stderr), /standard output: /);
  } finally {
    closeSync(full);
  }
});

test('invalid arguments give 2', () => {
  refused('multihead-trace', ['--scores', ''], 2, /^--scores: expected square matrices.*got ""/);
  refused('multihead-trace', ['--fliter'], 2, /--fliter/);
  refused('multihead-trace', ['--heads', 'x'], 2, /heads/);
  refused('multihead-trace', ['a b', '--heads', '7'], 2, /^num_heads: /);
  refused('multihead-trace', ['a b', '--head', '9'], 2, /^--head: /);
  refused('multihead-trace', [''], 2, /^sentence: /);
  refused('multihead-model', [join(goldens, 'models', 'gpt2')], 2, /^--ids: expected token ids, or --bench/);
  refused('multihead-model', [join(goldens, 'models', 'gpt2'), '--ids', '1,-1'], 2, /^ids: expected 0 to \d+, got -1/);
  refused('multihead-model', [join(goldens, 'models', 'vit'), '--bench'], 2, /expected a model of token ids, got vit/);
  refused('multihead-model', [goldens, '--bench'], 3, /config\.json/);
  refused('multihead-model', [join(goldens, 'models', 'gpt2'), '--ids', '1', '--sae', goldens, '--feature', '1'], 3, /cfg\.json/);
  refused('multihead-model', [join(goldens, 'models', 'gpt2'), '--ids', '1', '--feature', '1'], 2, /--feature requires --sae/);
  const gpt2 = (command, ...args) => [command, join(goldens, 'models', 'gpt2'), ...args];
  const pair = ['--ids', '5,6,7', '--corrupt-ids', '5,8,7'];
  for (const [args, message] of [
    [gpt2('lens'), /--ids is required/],
    [gpt2('lens', '--ids', '5,x'), /^--ids: expected numbers, separated by commas/],
    [gpt2('lens', '--ids', '5', '--ids', '6'), /^--ids: expected one list, got more/],
    [gpt2('lens', '--ids', '5,6', '--layers', '3'), /^layers: expected 0 to 2, got 3/],
    [gpt2('lens', '--ids', '5,6', '--position', '2'), /^--position: expected -2 to 1, got 2/],
    [gpt2('patch', '--ids', '5,6,7'), /--corrupt-ids is required/],
    [gpt2('patch', '--ids', '5,6,7', '--corrupt-ids', '5,6'), /^corrupt: expected 3 tokens/],
    [gpt2('patch', ...pair, '--site', 'hook_z'), /^site: expected one of resid_pre, q, k, v,.* got hook_z/],
    [gpt2('patch', ...pair, '--by', 'token'), /--by/],
    [gpt2('patch', ...pair, '--site', 'attn_out'), /^by: expected layer or position/],
    [gpt2('ablate', '--ids', '5,6', '--token', '120'), /^metric\.token: expected 0 to 119, got 120/],
    [gpt2('ablate', '--ids', '5,6', '--against', '1'), /--against requires --token/],
    [gpt2('attribute', '--ids', '5,6', '--token', '1'), /^metric: expected a difference of logits/],
    [['patch', join(goldens, 'models', 'vit'), ...pair], /expected a model of token ids, got vit/],
    [['lens', join(goldens, 'models', 'bert'), '--ids', '5'], /^model: expected a causal language model/],
  ]) {
    refused('multihead-model', args, 2, message);
  }
  refused('multihead-model', ['lens', goldens, '--ids', '5'], 3, /config\.json/);
  refused('multihead-model', gpt2('lens', '--ids', '5', '--chart', '/no/such/folder/a.svg'), 3, /^\/no\/such/);
  refused('multihead-conformance', [], 2, /^expected one folder, got none/);
  refused('multihead-conformance', ['--fliter'], 2, /^expected one folder, got --fliter/);
  refused('multihead-conformance', ['a', 'b'], 2, /^expected one folder, got several arguments/);
  refused('multihead-train', ['four-jobs', '--heads', '7'], 2, /^num_heads: /);
  refused('multihead-bench', ['--fliter=x'], 2, /--fliter=x/);
  refused('multihead-bench', ['--target=mmx'], 2, /^--target: /);
  refused('multihead-bench', ['--benchmark_filter=nothing'], 2, /./);
  const { status, stderr } = spawnSync(process.execPath, ['native/dev/bench.mjs', '--fliter'], { cwd: root });
  assert.equal(status, 2);
  assert.match(String(stderr), /--fliter/);
});

test('a folder that cannot be read gives 3, a case that fails 1', () => {
  refused('multihead-conformance', ['/no/such/folder'], 3, /^\/no\/such\/folder: /);
  const folder = mkdtempSync(join(tmpdir(), 'multihead-programs-'));
  try {
    writeFileSync(join(folder, 'bad.json'), '{"cases": 7}');
    const { status, stdout } = run('multihead-conformance', [folder]);
    assert.equal(status, 1);
    assert.match(stdout, /^FAIL bad\/manifest: not a conformance manifest$/m);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('--help names every option', () => {
  const help = (name) => run(name, ['--help']).stdout;
  const options = '--heads --d-model --causal --head --columns --batch --steps --scores --json --seed --help';
  for (const option of options.split(' ')) assert.ok(help('multihead-trace').includes(option), option);
  for (const option of ['--device', '--target', '--processor', '--save', '--alone', '--explain', '--help', '--benchmark_filter']) {
    assert.ok(help('multihead-bench').includes(option), option);
  }
  assert.match(help('multihead-conformance'), /DIR/);
  for (const option of ['--ids', '--bench', '--weights', '--cache', '--json', '--threads', '--seed', '--sae']) {
    assert.ok(help('multihead-model').includes(option), option);
  }
  for (const command of ['lens', 'patch', 'ablate', 'attribute']) {
    assert.ok(help('multihead-model').includes(command), command);
    const { status, stdout } = run('multihead-model', [command, '--help']);
    assert.equal(status, 0);
    for (const option of ['--ids', '--position', '--chart', '--weights', '--json']) assert.ok(stdout.includes(option), option);
  }
});

test('multihead-model converts a folder, which then gives the same tokens', () => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-convert-'));
  try {
    const source = join(goldens, 'models', 'llama3');
    const out = join(folder, 'smaller');
    const { status, stdout } = run('multihead-model', ['convert', source, out, '--weights', 'int8', '--json']);
    assert.equal(status, 0);
    const { bytes, bytes_before: before, embedding_weights: embedding } = JSON.parse(stdout);
    assert.ok(bytes < before);
    assert.equal(embedding, 'int8');
    const tokens = (...args) => JSON.parse(run('multihead-model', [...args, '--ids', '1,2,3', '--max-new-tokens', '8', '--json']).stdout).ids;
    assert.deepEqual(tokens(out), tokens(source, '--weights', 'int8'));
    assert.deepEqual(readdirSync(folder), ['smaller']);
    assert.ok(readdirSync(out).includes('config.json'));
    refused('multihead-model', ['convert', source, out], 2, /^out: expected a new or an empty folder/);
    refused(
      'multihead-model',
      ['convert', join(out, 'config.json'), join(folder, 'x')],
      2,
      /^folder: expected a folder with config\.json, got the file/,
    );
    refused('multihead-model', ['convert', source, join(out, 'config.json', 'x')], 3, /cannot be written/);
    refused('multihead-model', ['convert', folder, join(folder, 'x')], 3, /config\.json/);
    assert.deepEqual(readdirSync(folder), ['smaller']);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('multihead-model looks into a model: tables, JSON and charts', () => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-programs-'));
  const chart = join(folder, 'chart.svg');
  const ask = (command, ...args) => {
    const all = [command, join(goldens, 'models', 'gpt2'), '--ids', '5,6,7,8', ...args];
    const table = run('multihead-model', [...all, '--chart', chart]);
    assert.equal(table.status, 0, table.stderr);
    assert.equal(table.stderr, '');
    assert.match(table.stdout, /^layer/m);
    const cells = readFileSync(chart, 'utf8').match(/<rect [^>]*><title>/g).length;
    const { status, stdout, stderr } = run('multihead-model', [...all, '--json']);
    assert.equal(status, 0, stderr);
    return { cells, ...JSON.parse(stdout) };
  };
  const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-4, `${a} and ${b}`);
  try {
    const lens = ask('lens', '--top', '2', '--tokens', '9');
    assert.deepEqual(lens.layers, [0, 1, 2]);
    assert.equal(lens.cells, 12);
    assert.equal(lens.ids.length, 24);
    assert.equal(lens.ranks.length, 12);
    const metric = ['--token', '3', '--against', '9'];
    const patch = ask('patch', '--corrupt-ids', '5,60,7,8', ...metric, '--site', 'resid_pre', '--by', 'position');
    assert.equal(patch.cells, 8);
    assert.deepEqual(
      patch.values.map((row) => row.length),
      [4, 4],
    );
    near(patch.values[0][1], patch.corrupt); // the only position that differs
    near(patch.values[0][0], patch.clean);
    const estimate = ask('attribute', '--corrupt-ids', '5,60,7,8', ...metric, '--by', 'layer');
    assert.equal(estimate.cells, 2);
    near(estimate.clean, patch.clean);
    const direct = ask('attribute', ...metric);
    const sum = (values) => values.flat().reduce((a, b) => a + b, 0);
    near(sum(direct.heads) + sum(direct.mlp) + direct.embedding + direct.rest, direct.metric);
    near(direct.metric, patch.clean);
    const zero = ask('ablate', '--ids', '9,10,11,12,13', ...metric);
    const mean = ask('ablate', '--ids', '9,10,11,12,13', '--mean');
    assert.equal(zero.cells, 4);
    assert.notDeepEqual(zero.values, mean.values);
    assert.ok(mean.clean < 0, 'a log-probability');
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('Ctrl-C ends a sweep with 130', { skip: noFullDisk }, async () => {
  const texts = Array.from({ length: 3000 }, () => ['--ids', Array.from({ length: 48 }, (_, i) => i).join(',')]).flat();
  const child = spawn(program('multihead-model'), ['ablate', join(goldens, 'models', 'gpt2'), ...texts]);
  const ended = once(child, 'close');
  let said = '';
  child.stderr.on('data', (data) => (said += data));
  child.stdout.on('data', (data) => (said += data));
  // Signals that the program catches, which Linux alone tells; bit 1 is SIGINT.
  const catches = () => parseInt(/SigCgt:\s*(\w+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8'))[1].slice(-1), 16) & 2;
  while (child.exitCode === null && !catches()) await setTimeout(5);
  child.kill('SIGINT');
  assert.deepEqual(await ended, [130, null]);
  assert.equal(said, 'interrupted\n');
});

test('a trace that is too large is refused; fewer steps fit', () => {
  const words = 'word '.repeat(1500);
  const message = /^--steps: expected a trace of at most 67108864 numbers, got \d+/;
  refused('multihead-trace', [words, '--heads', '16'], 2, message);
  assert.equal(run('multihead-trace', [words, '--heads', '16', '--steps', 'output']).status, 0);
});
