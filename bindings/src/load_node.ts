// load() of the condition "node" in package.json: for Node, Deno and Bun, and for what bundlers build to run
// there, such as the server components of Next.js.

import { everything } from './everything.js';
import { createLoader } from './loader.js';
import { fileExists, type WasmFiles } from './source.js';
import type { Load } from './types.js';

/**
 * Not new URL('…', import.meta.url): a bundler would replace that by the address that browsers fetch a copy
 * from. Undefined in a bundle of CommonJS.
 */
const here: string | undefined = import.meta.url;

/** The files beside this module. A bundle that was moved has none: it contains one build itself. */
async function findFiles(): Promise<WasmFiles> {
  if (here !== undefined) {
    const folder = here.slice(0, here.lastIndexOf('/'));
    const [relaxed, simd128] = [`${folder}/multihead-relaxed.wasm`, `${folder}/multihead-simd128.wasm`];
    if ((await fileExists(relaxed)) && (await fileExists(simd128))) {
      return { relaxed: () => relaxed, simd128: () => simd128 };
    }
  }
  return (await import('./inline_files.js')).inlineFiles;
}

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(findFiles, everything);
