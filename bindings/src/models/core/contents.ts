// The part of the package that multihead/models loads, on the calling thread or in a worker.

import createGlue from 'built:models-glue';
import { createRuntime } from '../../api/operations.js';
import type { Contents } from '../../load/loader.js';
import type { Runtime } from '../../runtime/operands.js';

/** One instance of the core. */
export interface Core {
  readonly runtime: Runtime;
  /** What its parts import. */
  readonly imports: WebAssembly.Imports;
}

export const modelContents: Contents<Core> = {
  part: 'models',
  createGlue,
  createApi: (raw, _, { load, imports }) => ({ runtime: { ...createRuntime(raw), loadPart: load }, imports }),
};
