import { afterEach, describe, expect, it, vi } from 'vitest';
import { median, medianTime } from '../../src/base/timing.js';

describe('timing', () => {
  afterEach(() => vi.unstubAllGlobals());

  it('finds the median', () => {
    expect(median([5, 1, 9])).toBe(5);
    expect(median([])).toBeNaN();
  });

  it('measures warm calls only', async () => {
    // A clock that only pauses and calls advance, so that the result does not depend on the machine.
    let now = 0;
    vi.stubGlobal('performance', { now: () => now });
    vi.stubGlobal('setTimeout', (run: () => void, pause: number) => {
      now += pause;
      queueMicrotask(run);
    });
    // Calls are slow during the pause of 150 ms and 20 ms after it, as if they were not compiled yet.
    const call = (): void => {
      now += now < 170 ? 5 : 0.25;
    };
    expect(await medianTime(call, () => true)).toBe(0.25);
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
