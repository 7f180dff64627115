// createPool() of multihead/inline, which contains the script of its workers.

import { load } from './load_inline.js';
import { poolCreator } from './pool_creator.js';
import { workersOf } from './pool_script.js';
import type { CreatePool } from './pool_types.js';
import text from './pool_worker_text.js';

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({ load, findWorkers: () => workersOf({ text }) });
