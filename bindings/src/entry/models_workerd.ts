// `multihead/models` under the condition "workerd"; see index_workerd.ts.

import relaxed from './multihead-models-relaxed.wasm';
import simd128 from './multihead-models-simd128.wasm';
import { partModules } from '../generated/part_modules.js';
import { urlFinder } from '../load/source.js';
import { createOpenModel } from '../models/open.js';
import type { WasmUrl } from '../types/load.js';
import type { OpenModel } from '../types/models.js';

export * from './models_exports.js';

/** See {@link OpenModel}. */
export const openModel: OpenModel = /* @__PURE__ */ createOpenModel(
  () => ({ relaxed: () => relaxed, simd128: () => simd128, part: (part, simd) => partModules[part][simd] }),
  { make: () => undefined },
);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder(() => undefined);
