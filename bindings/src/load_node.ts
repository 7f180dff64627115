// load() of the condition "node" in package.json: for Node, Deno and Bun, and for what bundlers build to run
// there, such as the server components of Next.js.

import { everything } from './everything.js';
import { createLoader } from './loader.js';
import { filesBeside, type WasmFiles } from './source.js';
import type { Load } from './types.js';

/**
 * Not new URL('…', import.meta.url): a bundler would replace that by the address that browsers fetch a copy
 * from. Undefined in a bundle of CommonJS.
 */
const here: string | undefined = import.meta.url;

/** Which build is where; a bundle that was moved has no files beside it, and contains one build itself. */
async function findFiles(): Promise<WasmFiles> {
  return (await filesBeside(here, 'multihead')) ?? (await import('./inline_files.js')).inlineFiles;
}

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(findFiles, everything);
