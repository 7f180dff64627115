// `multihead/models` under the condition "workerd"; see index_workerd.ts.

import analysesRelaxed from './multihead-analyses-relaxed.wasm';
import analysesSimd128 from './multihead-analyses-simd128.wasm';
import relaxed from './multihead-models-relaxed.wasm';
import simd128 from './multihead-models-simd128.wasm';
import { urlFinder } from '../load/source.js';
import { createOpenModel } from '../models/open.js';
import type { WasmUrl } from '../types/load.js';
import type { OpenModel } from '../types/models.js';

export * from './models_exports.js';

/** See {@link OpenModel}. */
export const openModel: OpenModel = /* @__PURE__ */ createOpenModel(
  () => ({ relaxed: () => relaxed, simd128: () => simd128, analyses: (simd) => (simd === 'relaxed' ? analysesRelaxed : analysesSimd128) }),
  { make: () => undefined },
);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder(() => undefined);
