// `multihead/core` under the condition "workerd"; see index_workerd.ts.

import relaxed from './multihead-core-relaxed.wasm';
import simd128 from './multihead-core-simd128.wasm';
import { coreContents } from '../api/core.js';
import { createLoader } from '../load/loader.js';
import { urlFinder } from '../load/source.js';
import type { LoadCore } from '../types/core.js';
import type { WasmUrl } from '../types/index.js';

export * from './core_exports.js';

/** See {@link LoadCore}. */
export const load: LoadCore = /* @__PURE__ */ createLoader(() => ({ relaxed: () => relaxed, simd128: () => simd128 }), coreContents);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder(() => undefined);
