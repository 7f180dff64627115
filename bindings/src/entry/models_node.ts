// `multihead/models` under the condition "node": the same as models.ts, with another way to the .wasm files; see
// index_node.ts.

import { addressBeside, fileBeside, filesBeside, urlFinder } from '../load/source.js';
import { inlineFiles, unpack } from '../load/unpack.js';
import { createOpenModel } from '../models/open.js';
import type { Simd, WasmUrl } from '../types/load.js';
import type { OpenModel } from '../types/models.js';

export * from './models_exports.js';

/** URL of this module, written like in index_node.ts; undefined in a bundle of CommonJS. */
const here: string | undefined = import.meta.url;

/** See {@link OpenModel}. */
export const openModel: OpenModel = /* @__PURE__ */ createOpenModel(
  async () => {
    const files = await filesBeside(here, 'multihead-models');
    const analyses = async (simd: Simd) =>
      (await fileBeside(here, `multihead-analyses-${simd}.wasm`)) ?? unpack((await import('built:analyses-inline-wasm')).default);
    return { ...(files ?? inlineFiles((await import('built:models-inline-wasm')).default)), analyses };
  },
  {
    findScript: async () => {
      const file = await fileBeside(here, 'models_worker.js');
      return file === undefined ? { text: (await import('built:models-worker-text')).default } : { file };
    },
  },
);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => addressBeside(here, `multihead-models-${simd}.wasm`));
