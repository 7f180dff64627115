// The losses and the measured accuracy of a run, for its chart.

import { sequenceLength, type Progress } from './messages.js';
import type { TrainingSettings } from './settings.js';

export interface Point {
  readonly step: number;
  readonly value: number;
}

export class Curve {
  readonly settings: TrainingSettings;
  /** The losses of the steps from 1 on. */
  readonly losses: number[] = [];
  /** The accuracies, in the order of steps. */
  readonly accuracy: Point[] = [];

  constructor(settings: TrainingSettings) {
    this.settings = settings;
  }

  /** Adds the losses and accuracies of a report. A run that went back produces the same numbers again. */
  add({ step, losses, frames }: Pick<Progress, 'step' | 'losses' | 'frames'>): void {
    const first = step - losses.length;
    losses.forEach((loss, i) => {
      this.losses[first + i] = loss;
    });
    for (const frame of frames) {
      const at = this.accuracy.findIndex((point) => point.step >= frame.step);
      const point = { step: frame.step, value: frame.accuracy };
      if (at < 0) this.accuracy.push(point);
      else this.accuracy.splice(at, this.accuracy[at]!.step === frame.step ? 1 : 0, point);
    }
  }

  get lossPoints(): Point[] {
    return this.losses.map((value, i) => ({ step: i + 1, value }));
  }
}

/** The value at a step, or the last value before it; undefined before the first. */
export function valueAt(points: readonly Point[], step: number): number | undefined {
  return points.findLast((point) => point.step <= step)?.value;
}

/** The map of one head, from all maps of a frame. */
export function mapOf(maps: Float32Array, head: number): Float32Array {
  const size = sequenceLength * sequenceLength;
  return maps.subarray(head * size, (head + 1) * size);
}
