// multihead/pool under the condition "node": for Node, Deno and Bun, and for what bundlers build to run there.

import { load } from './load_node.js';
import { poolCreator } from './pool_creator.js';
import { workersOf } from './pool_script.js';
import { fileBeside } from './source.js';
import type { CreatePool } from './pool_types.js';

export * from './pool_api.js';

/** URL of this module, written like in load_node.ts; undefined in a bundle of CommonJS. */
const here: string | undefined = import.meta.url;

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({
  load,
  async findWorkers() {
    const file = await fileBeside(here, 'pool_worker.js');
    return workersOf(file === undefined ? { text: (await import('./pool_worker_text.js')).default } : { file });
  },
});
