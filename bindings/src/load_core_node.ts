// load() of multihead/core under the condition "node"; see load_node.ts.

import { coreContents } from './core_contents.js';
import type { LoadCore } from './core_types.js';
import { createLoader } from './loader.js';
import { filesBeside } from './source.js';

/** URL of this module, written like in load_node.ts; undefined in a bundle of CommonJS. */
const here: string | undefined = import.meta.url;

/** See {@link LoadCore}. */
export const load: LoadCore = /* @__PURE__ */ createLoader(
  async () => (await filesBeside(here, 'multihead-core')) ?? (await import('./core_inline_files.js')).coreInlineFiles,
  coreContents,
);
