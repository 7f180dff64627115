// `multihead` under the condition "node" in package.json: for Node, Deno, Bun, and bundles that run there, such as the
// server components of Next.js. The same as index.ts, with another way to the .wasm files.

import { everything } from '../api/multihead.js';
import { createLoader } from '../load/loader.js';
import { addressBeside, filesBeside, urlFinder } from '../load/source.js';
import { inlineFiles } from '../load/unpack.js';
import type { Load, WasmUrl } from '../types/index.js';

export * from './exports.js';

/**
 * URL of this module; undefined in a bundle of CommonJS. This avoids new URL('…', import.meta.url), which a bundler
 * would replace by the address from which browsers fetch a copy.
 */
const here: string | undefined = import.meta.url;

/**
 * Finds the files of both builds. A bundle that was moved has no files next to it, and uses the build inside its code.
 */
export const load: Load = /* @__PURE__ */ createLoader(
  async () => (await filesBeside(here, 'multihead')) ?? inlineFiles((await import('built:inline-wasm')).default),
  everything,
);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => addressBeside(here, `multihead-${simd}.wasm`));
