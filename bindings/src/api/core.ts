// The object that load() of multihead/core returns.

import createGlue from 'built:core-glue';
import type { Contents, LoadedBackend } from '../load/loader.js';
import type { GuardedModule } from '../runtime/guard.js';
import type { MultiheadCore } from '../types/core.js';
import { completed, coreOperations, createRuntime } from './operations.js';

function createCore(raw: GuardedModule, backend: LoadedBackend): MultiheadCore {
  const runtime = createRuntime(raw);
  return completed(runtime, coreOperations(runtime, backend));
}

/** The part of the package that multihead/core loads. */
export const coreContents: Contents<MultiheadCore> = { part: 'core', createGlue, createApi: createCore };
