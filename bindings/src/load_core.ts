// load() of multihead/core, with the .wasm files beside this module.

import { coreContents } from './core_contents.js';
import type { LoadCore } from './core_types.js';
import { createLoader } from './loader.js';

/** Listed per build, because bundlers recognize only new URL() of literal paths. */
const files = {
  relaxed: () => new URL('./multihead-core-relaxed.wasm', import.meta.url),
  simd128: () => new URL('./multihead-core-simd128.wasm', import.meta.url),
  advice:
    'If a bundler left the file out, give load() the file\'s address as wasm; see "Where it runs" in the README',
};

/** See {@link LoadCore}. */
export const load: LoadCore = /* @__PURE__ */ createLoader(() => files, coreContents);
