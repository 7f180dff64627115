/**
 * Exact multi-head attention in WebAssembly. Importing this module has no side effects; {@link load} gives
 * {@link Multihead}, which has all calls.
 *
 * @module multihead
 */

import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { urlFinder } from '../load/source.js';
import type { Load, WasmUrl } from '../types/index.js';

export * from './exports.js';

/** Listed per build, because bundlers recognize only new URL() of literal paths. */
const files = {
  relaxed: () => new URL('./multihead-relaxed.wasm', import.meta.url),
  simd128: () => new URL('./multihead-simd128.wasm', import.meta.url),
  advice: 'If a bundler left the file out, import "multihead/inline" or give load() its address as wasm; see "Where it runs" in the README',
};

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(() => files, everything);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => files[simd]().href);
