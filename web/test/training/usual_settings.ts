// The settings that the page trains with before the visitor changes them.

import type { ExperimentKind } from 'multihead';
import { defaults } from '../../src/state/page_state.js';
import { settingsOf, type TrainingSettings } from '../../src/training/settings.js';

export const usualSettings = (train: ExperimentKind): TrainingSettings => settingsOf({ ...defaults, train });
