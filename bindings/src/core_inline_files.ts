// The simd128 build of multihead/core inside JavaScript, for bundles without separate files.

import wasm from './core_inline_wasm.js';
import type { WasmFiles } from './source.js';
import { unpack } from './unpack.js';

export const coreInlineFiles: WasmFiles = { simd128: () => unpack(wasm) };
