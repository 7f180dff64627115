/**
 * Attention, its caches and scores, with a smaller WebAssembly module that contains nothing else.
 *
 * @module multihead/core
 */

import { coreContents } from '../api/core.js';
import { createLoader } from '../load/loader.js';
import { urlFinder } from '../load/source.js';
import type { LoadCore } from '../types/core.js';
import type { WasmUrl } from '../types/index.js';

export * from './core_exports.js';

/** Listed per build, because bundlers recognize only new URL() of literal paths. */
const files = {
  relaxed: () => new URL('./multihead-core-relaxed.wasm', import.meta.url),
  simd128: () => new URL('./multihead-core-simd128.wasm', import.meta.url),
  advice: 'If a bundler left the file out, give load() the file\'s address as wasm; see "Where it runs" in the README',
};

/** See {@link LoadCore}. */
export const load: LoadCore = /* @__PURE__ */ createLoader(() => files, coreContents);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => files[simd]().href);
