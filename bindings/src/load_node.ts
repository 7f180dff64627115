// load() for the condition "node" in package.json: for Node, Deno, Bun, and bundles that run there, such as the server
// components of Next.js.

import { everything } from './everything.js';
import { createLoader } from './loader.js';
import { filesBeside, type WasmFiles } from './source.js';
import type { Load } from './types.js';

/**
 * URL of this module; undefined in a bundle of CommonJS. This avoids new URL('…', import.meta.url), which a bundler
 * would replace by the address from which browsers fetch a copy.
 */
const here: string | undefined = import.meta.url;

/**
 * Finds the files of both builds. A bundle that was moved has no files next to it, and uses the build inside its code.
 */
async function findFiles(): Promise<WasmFiles> {
  return (await filesBeside(here, 'multihead')) ?? (await import('./inline_files.js')).inlineFiles;
}

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(findFiles, everything);
