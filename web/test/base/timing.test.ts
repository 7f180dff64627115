import { describe, expect, it } from 'vitest';
import { median, medianTime } from '../../src/base/timing.js';

describe('timing', () => {
  it('finds the median', () => {
    expect(median([5, 1, 9])).toBe(5);
    expect(median([])).toBeNaN();
  });

  it('measures warm calls only', async () => {
    const begun = performance.now();
    // Calls are slow during the pause of 150 ms and 20 ms after it, as if they were not compiled yet.
    const call = (): void => {
      const until = performance.now() + (performance.now() - begun < 170 ? 5 : 0.2);
      while (performance.now() < until);
    };
    const milliseconds = await medianTime(call, () => true);
    expect(milliseconds).toBeLessThan(4);
  });

  it('stops when its result is not wanted any more', async () => {
    let calls = 0;
    const result = await medianTime(
      () => (calls += 1),
      () => false,
    );
    expect([result, calls]).toEqual([undefined, 0]);
  });
});
