// `multihead` under the condition "workerd": for Cloudflare Workers, which compile WebAssembly when they are deployed, and no bytes
// later. The bundler gives the compiled modules.

import relaxed from './multihead-relaxed.wasm';
import simd128 from './multihead-simd128.wasm';
import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { urlFinder } from '../load/source.js';
import type { Load, WasmUrl } from '../types/index.js';

export * from './exports.js';

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(() => ({ relaxed: () => relaxed, simd128: () => simd128 }), everything);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder(() => undefined);
