import { describe, expect, it } from 'vitest';
import { Curve, mapOf, valueAt } from '../../src/training/curve.js';
import type { Frame } from '../../src/training/messages.js';
import { usualSettings } from './usual_settings.js';

const frame = (step: number, accuracy: number): Frame => ({
  ...{ step, accuracy, jobAccuracy: [], attention: [], maps: new Float32Array() },
});

describe('a curve', () => {
  it('takes reports in order, and the same numbers again after going back', () => {
    const curve = new Curve(usualSettings('fourJobs'));
    curve.add({ step: 3, losses: [3, 2, 1], frames: [frame(0, 0.1), frame(3, 0.4)] });
    curve.add({ step: 2, losses: [2], frames: [frame(2, 0.3)] });
    curve.add({ step: 5, losses: [0.5, 0.25], frames: [frame(3, 0.5), frame(5, 0.6)] });
    expect(curve.losses).toEqual([3, 2, 1, 0.5, 0.25]);
    expect(curve.lossPoints[3]).toEqual({ step: 4, value: 0.5 });
    expect(curve.accuracy.map(({ step, value }) => [step, value])).toEqual([
      [0, 0.1],
      [2, 0.3],
      [3, 0.5],
      [5, 0.6],
    ]);
  });

  it('has the last value before a step', () => {
    const points = [
      { step: 0, value: 1 },
      { step: 10, value: 2 },
    ];
    expect([valueAt(points, 0), valueAt(points, 9), valueAt(points, 99), valueAt([], 5)]).toEqual([1, 1, 2, undefined]);
  });
});

it('a map is its part of all maps', () => {
  const maps = new Float32Array(3 * 1024).map((_, i) => Math.floor(i / 1024));
  expect([...new Set(mapOf(maps, 2))]).toEqual([2]);
});
