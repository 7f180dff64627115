/**
 * All of `multihead`, `multihead/training`, `multihead/lab` and `multihead/pool` with the WebAssembly in one file of JavaScript, which
 * build.mjs makes of this module. For pages without a bundler, CDNs, service workers, and bundlers that do not copy the
 * .wasm files. It has the simd128 build alone.
 *
 * @module multihead/inline
 */

import wasm from 'built:inline-wasm';
import script from 'built:pool-worker-text';
import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { urlFinder } from '../load/source.js';
import { inlineFiles } from '../load/unpack.js';
import { poolCreator } from '../pool/creator.js';
import { workersOf } from '../pool/shared/port.js';
import type { Load, WasmUrl } from '../types/index.js';
import type { CreatePool } from '../types/pool.js';

export * from './exports.js';
export * from '../training/train.js';
export { createExperiment, headStatistics } from '../api/lab.js';
export type * from '../types/pool.js';

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(() => inlineFiles(wasm), everything);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder(() => undefined);

/** See {@link CreatePool}. */
export const createPool: CreatePool = /* @__PURE__ */ poolCreator({ load, findWorkers: () => workersOf({ text: script }) });
