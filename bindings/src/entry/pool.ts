/**
 * The operations of `mh` on several threads. Importing this module has no side effects.
 *
 * @module multihead/pool
 */

import { poolCreator } from '../pool/creator.js';
import { browserPort, type BrowserWorkerClass, type StartWorker } from '../pool/shared/port.js';
import type { CreatePool } from '../types/pool.js';
import { load } from './index.js';

export { MultiheadError } from '../runtime/errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type * from '../types/pool.js';

// Declared here, because the type of the global Worker would require TypeScript's DOM library.
declare const Worker: BrowserWorkerClass;

const startWorker: StartWorker = (events) => {
  if (typeof Worker !== 'function') return undefined;
  // Bundlers look for exactly this expression, so it cannot be shortened.
  const worker = new Worker(new URL('./pool_worker.js', import.meta.url), { type: 'module' });
  const missing = 'its script did not load: it is missing (see "Where it runs" in the README), or the Content-Security-Policy forbids workers';
  return browserPort(worker, missing, events);
};

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({ load, findWorkers: () => startWorker });
