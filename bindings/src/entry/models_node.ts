// `multihead/models` under the condition "node": the same as models.ts, with another way to the .wasm files; see
// index_node.ts.

import { partTexts } from '../generated/part_texts.js';
import type { PartName } from '../generated/parts.js';
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
    const part = async (name: PartName, simd: Simd) =>
      (await fileBeside(here, `multihead-${name}-${simd}.wasm`)) ?? unpack((await partTexts[name]()).default);
    return { ...(files ?? inlineFiles((await import('built:models-inline-wasm')).default)), part };
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
