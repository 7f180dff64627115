// multihead-trace prints the matrices that published articles print.
//
//   node --test tests/native/trace.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { NATIVE_PROGRAM } from '../../native/dev/bench/programs.mjs';

const program = join(dirname(NATIVE_PROGRAM), 'multihead-trace');
const run = (...args) => spawnSync(program, args, { encoding: 'utf8' });

function printed(...args) {
  const { status, stdout, stderr } = run(...args);
  assert.equal(status, 0, stderr);
  return stdout;
}

const json = (...args) => JSON.parse(printed(...args, '--json'));
const step = (trace, name) => trace.steps.find((one) => one.name === name);

/** The printed rows of the matrix of a step. */
function rowsOf(text, name, count) {
  const lines = text.split('\n');
  const first = lines.findIndex((line) => line.startsWith(`${name} (`)) + 4;
  return lines.slice(first, first + count).map((line) => line.trim().split(/\s+/).slice(1));
}

const article4 = '2.0 1.5 .8 .3; 1.2 1.8 .9 .4; .5 1.1 2.1 .7; .3 .6 1.3 1.9';

test('raw scores of an article give its causal weights', () => {
  const text = printed('The cat sat on', '--scores', article4, '--causal');
  assert.deepEqual(rowsOf(text, 'weights', 4), [
    ['1.0000', '0.0000', '0.0000', '0.0000'],
    ['0.3543', '0.6457', '0.0000', '0.0000'],
    ['0.1286', '0.2344', '0.6370', '0.0000'],
    ['0.0998', '0.1347', '0.2713', '0.4943'],
  ]);
  assert.deepEqual(rowsOf(text, 'masked_scores', 2), [
    ['2.0000', '-inf', '-inf', '-inf'],
    ['1.2000', '1.8000', '-inf', '-inf'],
  ]);
});

test('equal scores: 1, halves, thirds, quarters; and quarters everywhere without the mask', () => {
  const equal = ['--scores', '1 1 1 1; 1 1 1 1; 1 1 1 1; 1 1 1 1'];
  assert.deepEqual(rowsOf(printed(...equal, '--causal'), 'weights', 4), [
    ['1.0000', '0.0000', '0.0000', '0.0000'],
    ['0.5000', '0.5000', '0.0000', '0.0000'],
    ['0.3333', '0.3333', '0.3333', '0.0000'],
    ['0.2500', '0.2500', '0.2500', '0.2500'],
  ]);
  const quarter = Array(4).fill('0.2500');
  assert.deepEqual(rowsOf(printed(...equal), 'weights', 4), Array(4).fill(quarter));
});

/** Tensors of the golden cases, as { shape, data }. */
function golden(file) {
  const bytes = readFileSync(fileURLToPath(new URL(`../conformance/${file}.safetensors`, import.meta.url)));
  const start = 8 + Number(bytes.readBigUInt64LE());
  const header = JSON.parse(bytes.toString('utf8', 8, start));
  return (name) => {
    const {
      shape,
      dtype,
      data_offsets: [from, to],
    } = header[name];
    const Floats = { F32: Float32Array, F64: Float64Array }[dtype];
    return { shape, data: new Floats(Uint8Array.from(bytes.subarray(start + from, start + to)).buffer) };
  };
}

test('three heads of four tokens, to the four decimals that an article prints', () => {
  const tensor = golden('published');
  const scores = tensor('published_4x4_three_heads/scores');
  const weights = tensor('published_4x4_three_heads/printed_weights');
  assert.deepEqual(scores.shape.slice(-3), [3, 4, 4]);
  const rows = Array.from({ length: 12 }, (_, row) => scores.data.slice(4 * row, 4 * row + 4).join(' '));
  const heads = [0, 4, 8].map((first) => rows.slice(first, first + 4).join('; ')).join(' / ');
  const { values } = step(json('--scores', heads, '--causal'), 'weights');
  assert.equal(values.length, weights.data.length);
  values.forEach((value, i) => assert.ok(Math.abs(value - weights.data[i]) <= 1e-4, `${i}: ${value}`));
});

test('several heads, side by side', () => {
  const trace = json('--scores', '0 0; 0 0 / 5 5; 5 5 / 1 2; 3 4', '--causal');
  assert.deepEqual(step(trace, 'weights').shape, [1, 3, 2, 2]);
  assert.deepEqual(step(trace, 'masked_scores').values.slice(8), [1, null, 3, 4]);
});

test('B, N, d_model, H = 2, 5, 64, 8: the shapes that an article prints', () => {
  const text = printed('one two three four five', '--heads', '8', '--batch', '2');
  const shapes = ['q_heads (2, 8, 5, 8)', 'scores (2, 8, 5, 5)', 'output (2, 5, 64)'];
  for (const shape of shapes) assert.ok(text.includes(`\n${shape}\n`), shape);
});

test('the requested steps, as text and as JSON', () => {
  const trace = json('a b c', '--steps', 'weights,per_head_output,output', '--causal');
  assert.deepEqual(trace.tokens, ['a', 'b', 'c']);
  assert.deepEqual(
    trace.steps.map(({ name, shape }) => [name, shape]),
    [
      ['weights', [1, 4, 3, 3]],
      ['per_head_output', [1, 4, 3, 64]],
      ['output', [1, 3, 64]],
    ],
  );
  const { values: shares } = step(trace, 'per_head_output');
  const { values: output } = step(trace, 'output');
  for (let i = 0; i < output.length; i += 1) {
    const sum = [0, 1, 2, 3].reduce((total, head) => total + shares[head * 192 + i], 0);
    assert.ok(Math.abs(sum - output[i]) < 1e-5);
  }
});

test('errors are reported in one line', () => {
  const refused = (...args) => {
    const { status, stdout, stderr } = run(...args);
    assert.notEqual(status, 0);
    assert.equal(stdout, '');
    return stderr.trim();
  };
  assert.equal(refused('a b', '--heads', '7'), 'num_heads: expected a divisor of embed_dim = 64 (1, 2, 4, 8, 16, 32 or 64), got 7');
  assert.match(refused('a', '--steps', 'scrores'), /^--steps: expected names out of x, q, .*got scrores$/);
  for (const scores of ['1 2; 3', '1 2; 3 4; 5 6', '1 x; 2 3', '1 nan; 2 3', '1 / 1 2; 3 4', ';']) {
    assert.match(refused('--scores', scores), /^--scores: expected square matrices/);
  }
  assert.match(refused('--scores', '1', '--head', '2'), /^--head: expected 1 to 1, got 2$/);
});
