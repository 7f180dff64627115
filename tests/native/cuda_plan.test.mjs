// The bound of a kernel's time from the instructions of its step.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cyclesOf, microseconds, schedule, shapeOf, slowest } from '../../native/dev/cuda_plan.mjs';

test('a step takes what its slowest unit needs', () => {
  // 128 × 176 scores of d 128, twice: 4 · 128 · 176 · 128 FLOP at 4096 a cycle; 8 warps share 4 schedulers.
  const cycles = cyclesOf({ rows: 128, columns: 176, d: 128, products: 2, instructions: 648 });
  assert.deepEqual(cycles, { 'tensor cores': 2816, instructions: 1296, exponentials: 1408 });
  assert.deepEqual(slowest(cycles), ['tensor cores', 2816]);
  assert.deepEqual(slowest(cyclesOf({ rows: 192, columns: 128, d: 64, products: 2, instructions: 600 })), ['instructions', 1800]);
});

test('blocks start on the first multiprocessor that is free', () => {
  assert.equal(schedule([3, 2, 1, 1], 2), 4);
  assert.equal(schedule([5, 1, 1, 1], 2), 5);
  assert.equal(schedule([1], 132), 1);
});

test('a causal mask halves the steps, and its last steps have masks', () => {
  const kernel = { rows: 128, columns: 128, d: 128, products: 2, step: { instructions: 700, masks: 200 } };
  const full = microseconds(kernel, 16384, false);
  const causal = microseconds(kernel, 16384, true);
  assert.ok(causal > full * 0.45 && causal < full * 0.6, `${causal} of ${full}`);
  const slow = { ...kernel, step: { instructions: 2000, masks: 1500 } };
  assert.equal(microseconds(slow, 16384, false), full);
  assert.ok(microseconds(slow, 16384, true) > causal);
});

test('shapes are in the names of the kernels', () => {
  const forward = shapeOf('forward_hopper<BFloat16, HopperTile<64, 128, 3, true> >');
  assert.deepEqual(forward, { backward: false, rows: 192, columns: 128, d: 64, products: 2 });
  const backward = shapeOf('backward_hopper<BFloat16, HopperBackwardTile<(HopperSums)3, 128, 64, 3, 3> >');
  assert.deepEqual(backward, { backward: true, sums: 3, rows: 128, columns: 64, d: 128, products: 4 });
  assert.equal(shapeOf('forward_hopper<Float16, HopperTile<64, 128, 3, true> >'), null);
  assert.equal(shapeOf('forward_mma<false, BFloat16, 128>'), null);
});
