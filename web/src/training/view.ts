// The state of a training that the page shows.

import type { MemoryInfo } from 'multihead';
import { formatPercent } from '../base/format.js';
import { Curve, valueAt } from './curve.js';
import type { Frame, Measured, Muting } from './messages.js';
import { earned, factsOf, type TrainingSettings } from './settings.js';

/** `notStarted`: the worker has not been started; `lost`: it has ended. */
export type Status = 'notStarted' | 'starting' | 'paused' | 'running' | 'lost';

export interface TrainingView {
  readonly status: Status;
  /** The last error message; empty if there was no error. */
  readonly message: string;
  readonly curve: Curve;
  readonly smallerRun: Curve | undefined;
  /** The smaller model's frame at the step shown, or the last one before it. */
  readonly smallerShown: Frame | undefined;
  /** The curve of the previous run, if it was of the same kind. */
  readonly earlier: Curve | undefined;
  /** The sequence on which the maps are computed. Empty before the worker has started. */
  readonly tokens: Int32Array;
  /** `step` is the step that the page shows, `last` the last step that was trained. */
  readonly step: number;
  readonly last: number;
  readonly shown: Frame | undefined;
  readonly moments: readonly number[];
  /** Measurements of the step shown on many sequences; undefined while the model changes. */
  readonly measured: Measured | undefined;
  /** Muted heads, as layer · heads + head. */
  readonly muted: readonly number[];
  readonly muting: Muting | undefined;
  readonly milliseconds: number;
  /** Memory of the run's module, and of the smaller model's module. */
  readonly memory: { readonly main?: MemoryInfo; readonly smallerRun?: MemoryInfo };
  /** Number of the model, a new one with every change; 0 before there is one. */
  readonly model: number;
}

export const blank = (settings: TrainingSettings): TrainingView => ({
  ...{ status: 'notStarted', message: '', curve: new Curve(settings), smallerRun: undefined, smallerShown: undefined, earlier: undefined },
  ...{ tokens: new Int32Array(), step: 0, last: 0, shown: undefined, moments: [], measured: undefined },
  ...{ muted: [], muting: undefined, milliseconds: 0, memory: {}, model: 0 },
});

let models = 0;

/** The fields to set when the model changes, because earlier measurements no longer hold. */
export const changed = () => ({ measured: undefined, muted: [], muting: undefined, model: (models += 1) }) as const;

/** A run with fewer steps is not kept as the previous run. */
const leastSteps = 20;

/** The curve of an earlier run to show behind the curve of a new run. */
export function earlierOf({ curve, earlier }: TrainingView, next: TrainingSettings): Curve | undefined {
  if (curve.settings.kind !== next.kind) return undefined;
  const same = JSON.stringify(curve.settings) === JSON.stringify(next);
  return same || curve.losses.length < leastSteps ? earlier : curve;
}

/** The jobs that a head has earned: the names of the patterns whose keys get at least `earned` of its weight. */
export function earnedBy({ shown, measured, curve }: TrainingView, head: number): string[] {
  const { patterns } = factsOf(curve.settings.kind);
  const attention = (measured ?? shown)?.attention ?? [];
  return patterns.filter((_, i) => (attention[head * patterns.length + i] ?? 0) >= earned).map(({ name }) => name);
}

/** Decimals of a percentage: one where whole numbers would hide progress. */
export const decimalsOf = (share: number): number => (share > 0.995 || share < 0.1 ? 1 : 0);
export const percent = (share: number): string => formatPercent(share, decimalsOf(share));

/** The accuracy of a run at the step shown; undefined before its first measurement. */
export const accuracyAt = (view: TrainingView, curve: Curve): number | undefined =>
  (curve === view.curve ? view.measured?.accuracy : undefined) ?? valueAt(curve.accuracy, view.step);
