import { describe, expect, it } from 'vitest';
import { Moments } from '../../src/training/moments.js';

const bytes = (size: number) => new Uint8Array(size);

describe('moments of a training', () => {
  it('keeps every moment until there are too many, then every second', () => {
    const moments = new Moments(10, { count: 4, bytes: 1e6 });
    for (let step = 0; step <= 70; step += 10) if (moments.due(step)) moments.keep(step, bytes(10));
    expect(moments.steps).toEqual([0, 20, 40, 60]);
    expect(moments.due(70)).toBe(false);
    expect(moments.due(80)).toBe(true);
    expect(moments.bytes).toBe(40);
  });

  it('never holds more bytes than its limit, and keeps the newest', () => {
    const moments = new Moments(10, { count: 64, bytes: 1000 });
    for (let step = 0; step <= 5000; step += 1) {
      if (!moments.due(step) && step !== 4999) continue;
      moments.keep(step, bytes(100));
      expect(moments.bytes).toBeLessThanOrEqual(1000);
      expect(moments.get(step)).toBeDefined();
    }
    expect(moments.steps[0]).toBe(0);
    expect(moments.steps).toContain(4999);
  });

  it('drops moments where they are closest together', () => {
    const moments = new Moments(10, { count: 6, bytes: 1e6 });
    for (const step of [0, 10, 11, 12, 13, 40, 70]) moments.keep(step, bytes(1));
    expect(moments.steps).toEqual([0, 13, 40, 70]);
  });

  it('keeps the first, the last and the new moment, even if they are too large', () => {
    const moments = new Moments(10, { count: 64, bytes: 10 });
    for (const step of [0, 20, 10]) moments.keep(step, bytes(6));
    expect(moments.steps).toEqual([0, 10, 20]);
  });

  it('replaces a moment of the same step', () => {
    const moments = new Moments(10);
    moments.keep(0, bytes(5));
    moments.keep(0, bytes(7));
    expect([moments.bytes, moments.steps]).toEqual([7, [0]]);
    expect(moments.get(10)).toBeUndefined();
  });
});
