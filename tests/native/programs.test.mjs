// The exit codes of the command-line programs: 0; 1 for a wrong result; 2 for invalid arguments; 3 if something cannot
// be read or written. Errors go only to standard error.
//
//   node --test tests/native/programs.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, existsSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
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
  for (const option of ['--ids', '--bench', '--weights', '--cache', '--json', '--threads', '--seed']) {
    assert.ok(help('multihead-model').includes(option), option);
  }
});

test('a trace that is too large is refused; fewer steps fit', () => {
  const words = 'word '.repeat(1500);
  const message = /^--steps: expected a trace of at most 67108864 numbers, got \d+/;
  refused('multihead-trace', [words, '--heads', '16'], 2, message);
  assert.equal(run('multihead-trace', [words, '--heads', '16', '--steps', 'output']).status, 0);
});
