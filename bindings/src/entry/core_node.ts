// `multihead/core` under the condition "node": the same as core.ts, with another way to the .wasm files; see
// index_node.ts.

import { coreContents } from '../api/core.js';
import { createLoader } from '../load/loader.js';
import { addressBeside, filesBeside, urlFinder } from '../load/source.js';
import { inlineFiles } from '../load/unpack.js';
import type { LoadCore } from '../types/core.js';
import type { WasmUrl } from '../types/index.js';

export * from './core_exports.js';

/** URL of this module, written like in index_node.ts; undefined in a bundle of CommonJS. */
const here: string | undefined = import.meta.url;

/** See {@link LoadCore}. */
export const load: LoadCore = /* @__PURE__ */ createLoader(
  async () => (await filesBeside(here, 'multihead-core')) ?? inlineFiles((await import('built:core-inline-wasm')).default),
  coreContents,
);

/** See {@link WasmUrl}. */
export const wasmUrl: WasmUrl = /* @__PURE__ */ urlFinder((simd) => addressBeside(here, `multihead-core-${simd}.wasm`));
