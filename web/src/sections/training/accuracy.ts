// The share of right answers of a run, as every part of "Train live" gives it.

import { formatPercent } from '../../base/format.js';
import { valueAt, type Curve } from '../../training/curve.js';
import type { TrainingView } from '../../training/view.js';

/** With a decimal where whole numbers would hide progress. */
export const percent = (share: number): string => formatPercent(share, share > 0.995 || share < 0.1 ? 1 : 0);

/** The accuracy of a run at the step shown; undefined before its first measurement. */
export const accuracyAt = (view: TrainingView, curve: Curve): number | undefined =>
  (curve === view.curve ? view.measured?.accuracy : undefined) ?? valueAt(curve.accuracy, view.step);
