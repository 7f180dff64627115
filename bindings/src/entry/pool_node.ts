// multihead/pool under the condition "node": for Node, Deno and Bun, and for what bundlers build to run there.

import { fileBeside } from '../load/source.js';
import { poolCreator } from '../pool/creator.js';
import { workersOf } from '../pool/shared/port.js';
import type { CreatePool } from '../types/pool.js';
import { load } from './index_node.js';

export { MultiheadError } from '../runtime/errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type * from '../types/pool.js';

/** URL of this module, written like in index_node.ts; undefined in a bundle of CommonJS. */
const here: string | undefined = import.meta.url;

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({
  load,
  async findWorkers() {
    // One file: Node 20 keeps the messages to a thread that ends while it loads several, with 4 MiB for each shared object.
    const file = await fileBeside(here, 'pool_worker.js');
    return workersOf(file === undefined ? { text: (await import('built:pool-worker-text')).default } : { file });
  },
});
