/**
 * Models of Hugging Face folders: opens config.json and safetensors files as they are, generates, embeds, and shows what
 * every head attends to. It has a WebAssembly module of its own.
 *
 * @module multihead/models
 */

import { partUrls } from '../generated/part_urls.js';
import type { PartName } from '../generated/parts.js';
import { urlFinder } from '../load/source.js';
import { createOpenModel } from '../models/open.js';
import type { BrowserWorkerClass } from '../pool/shared/port.js';
import type { Simd, WasmUrl } from '../types/load.js';
import type { OpenModel } from '../types/models.js';

export * from './models_exports.js';

/** Listed per build, because bundlers recognize only new URL() of literal paths. */
const files = {
  relaxed: () => new URL('./multihead-models-relaxed.wasm', import.meta.url),
  simd128: () => new URL('./multihead-models-simd128.wasm', import.meta.url),
  part: (part: PartName, simd: Simd) => partUrls[part][simd](),
  advice: 'If a bundler left the file out, give openModel() the file\'s address as wasm; see "Where it runs" in the README',
};

// Declared here, because the type of the global Worker would require TypeScript's DOM library.
declare const Worker: BrowserWorkerClass;

const platform = {
  make: () => {
    if (typeof Worker !== 'function') return undefined;
    // Bundlers look for exactly this expression, so it cannot be shortened.
    return new Worker(new URL('./models_worker.js', import.meta.url), { type: 'module' });
  },
};

/** See {@link OpenModel}. */
export const openModel: OpenModel = /* @__PURE__ */ createOpenModel(() => files, platform);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => files[simd]().href);
