// multihead/pool under the condition "workerd": Cloudflare Workers have no threads, so all calls run on the calling one.

import { poolCreator } from '../pool/creator.js';
import type { CreatePool } from '../types/pool.js';
import { load } from './index_workerd.js';

export { MultiheadError } from '../runtime/errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type * from '../types/pool.js';

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({ load, findWorkers: () => () => undefined });
