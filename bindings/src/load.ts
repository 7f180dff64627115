// load() with the .wasm files beside this module, as browsers and bundlers for browsers find them.

import { everything } from './everything.js';
import { createLoader } from './loader.js';
import type { Load } from './types.js';

/** Listed per build, because bundlers recognize only new URL() of literal paths. */
const files = {
  relaxed: () => new URL('./multihead-relaxed.wasm', import.meta.url),
  simd128: () => new URL('./multihead-simd128.wasm', import.meta.url),
  advice:
    'If a bundler left the file out, import "multihead/inline" or give load() its address as wasm; ' +
    'see "Where it runs" in the README',
};

/** See {@link Load}. */
export const load: Load = /* @__PURE__ */ createLoader(() => files, everything);
