// load() of the condition "node" in package.json: for Node, Deno and Bun, and for what bundlers build to run
// there, such as the server components of Next.js.

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
  const beside = (simd: string): string =>
    `${here?.slice(0, here.lastIndexOf('/'))}/multihead-${simd}.wasm`;
  const [relaxed, simd128] = [beside('relaxed'), beside('simd128')];
  if ((await fileExists(relaxed)) && (await fileExists(simd128))) {
    return { relaxed: () => relaxed, simd128: () => simd128 };
  }
  return (await import('./inline_files.js')).inlineFiles;
}

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(findFiles);
