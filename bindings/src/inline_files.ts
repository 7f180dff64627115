// The simd128 build inside JavaScript, compressed with gzip and then written in base64: 198 kB, 150 kB when it is
// served gzipped. Base64 of the plain file would be 513 kB, 198 kB gzipped.

import wasm from './inline_wasm.js';
import type { WasmFiles } from './source.js';
import { unpack } from './unpack.js';

/**
 * Contains only simd128, which runs in every engine with SIMD at four fifths of the speed of relaxed (gpt2-1k in Node
 * 26: 39 and 49 GFLOP/s). Including the relaxed build would add 150 kB gzipped, and Safari and Node 20 could not run
 * it.
 */
export const inlineFiles: WasmFiles = { simd128: () => unpack(wasm) };
