// The part of the package that multihead/models loads, on the calling thread or in a worker.

import createGlue from 'built:models-glue';
import { createRuntime } from '../../api/operations.js';
import { trainerTables } from '../../generated/trainer_tables.js';
import type { Contents } from '../../load/loader.js';
import type { Runtime } from '../../runtime/operands.js';

/** One instance of the core. */
export interface Core {
  readonly runtime: Runtime;
}

export const modelContents: Contents<Core> = {
  part: 'models',
  createGlue,
  createApi: (raw, _, loadAnalyses) => ({ runtime: { ...createRuntime(raw, trainerTables), loadAnalyses } }),
};
