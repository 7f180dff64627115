// load() with the .wasm inside JavaScript.

import { everything } from './everything.js';
import { inlineFiles } from './inline_files.js';
import { createLoader } from './loader.js';
import type { Load } from './types.js';

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(() => inlineFiles, everything);
