// What the page shows of a training.

import type { MemoryInfo } from 'multihead';
import { Curve } from './curve.js';
import type { Frame, Measured, Muting } from './messages.js';
import type { TrainingSettings } from './settings.js';

/** `asleep`: the worker has not been started; `lost`: it has ended. */
export type Status = 'asleep' | 'starting' | 'paused' | 'running' | 'lost';

export interface TrainingView {
  readonly status: Status;
  /** What went wrong last; empty if nothing did. */
  readonly message: string;
  readonly curve: Curve;
  /** The smaller model's curve. */
  readonly beside: Curve | undefined;
  /** The curve of the run before, if it was of the same kind. */
  readonly earlier: Curve | undefined;
  /** The sequence of the maps. Empty before the worker has started. */
  readonly tokens: Int32Array;
  /** The step that the page shows, and the last one that was trained. */
  readonly step: number;
  readonly last: number;
  readonly shown: Frame | undefined;
  /** The steps that can be shown. */
  readonly moments: readonly number[];
  /** On many sequences, for the step shown; undefined while the model changes. */
  readonly measured: Measured | undefined;
  /** Muted heads, as layer · heads + head. */
  readonly muted: readonly number[];
  readonly muting: Muting | undefined;
  /** Time spent training so far. */
  readonly milliseconds: number;
  /** Of the run and of the smaller model's. */
  readonly memory: { readonly main?: MemoryInfo; readonly beside?: MemoryInfo };
  /** Another number for every change of the model. */
  readonly model: number;
}

export const blank = (settings: TrainingSettings): TrainingView => ({
  ...{ status: 'asleep', message: '', curve: new Curve(settings), beside: undefined, earlier: undefined },
  ...{ tokens: new Int32Array(), step: 0, last: 0, shown: undefined, moments: [], measured: undefined },
  ...{ muted: [], muting: undefined, milliseconds: 0, memory: {}, model: 0 },
});

/** A change of the model: what was measured of it no longer holds. */
export const changed = ({ model }: TrainingView) =>
  ({ measured: undefined, muted: [], muting: undefined, model: model + 1 }) as const;

/** Fewer steps are not worth keeping as the run before. */
const leastSteps = 20;

/** The curve that a new run is laid over. */
export function earlierOf({ curve, earlier }: TrainingView, next: TrainingSettings): Curve | undefined {
  if (curve.settings.kind !== next.kind) return undefined;
  const same = JSON.stringify(curve.settings) === JSON.stringify(next);
  return same || curve.losses.length < leastSteps ? earlier : curve;
}
