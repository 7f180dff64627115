import { load } from 'multihead';
import { expect, it } from 'vitest';
import { Peek } from '../../src/training/peek.js';

it('a model that peeks looks perfect in training, and is lost when it writes; the other is as good in both', async () => {
  const mh = await load();
  const before = mh.memory().live;
  const peek = new Peek(mh);
  const { step, masked, peeking } = peek.run(100);
  expect(step).toBe(100);
  expect(peeking.training).toBeGreaterThan(0.98);
  // One of eight letters is right by chance.
  expect(peeking.writing).toBeLessThan(0.35);
  expect(masked.training).toBeGreaterThan(0.75);
  expect(masked.training).toBeLessThan(0.9);
  expect(masked.writing).toBeGreaterThan(0.75);
  expect(peek.run(1).step).toBe(101);
  peek.dispose();
  expect(mh.memory().live).toBe(before);
});
