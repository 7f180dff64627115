// mh.createCache: a cache of keys and values in the core.

import { attentionReturns } from '../attention/attention.js';
import { alignedCausal, attentionOptions, attentionSchema } from '../attention/options.js';
import { outputNames, outputShapes, prepareOutputs, pushCaptures } from '../attention/outputs.js';
import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { call, checkRank, type Operands, type Runtime } from '../runtime/operands.js';
import { checkCount, type Names, plain, readOptions, without } from '../runtime/options.js';
import { floatDTypes } from '../runtime/tensor.js';
import type {
  AttentionResult,
  AttentionReturn,
  CacheAttendOptions,
  Capture,
  FloatDType,
  FloatTensorLike,
  KVCache,
  KVCacheConfig,
} from '../types/index.js';
import type { Count } from '../types/wire.js';
import { type CacheCalls, type CheckedStorage, checkStorage, CoreCache, type HeadExtents, storageSchema } from './core_cache.js';

const configNames = {
  ...{ numKvHeads: plain, headDim: plain, valueDim: plain },
  ...storageSchema,
} satisfies Names<KVCacheConfig>;

const before = 'do it to keys before append(), and to queries before attend()';
export const attendElsewhere = {
  kvLengths: 'the cache knows its lengths',
  qkNorm: before,
  rope: `${before}, with rotate()`,
};
export const attendNames = {
  ...without(attentionSchema, attendElsewhere),
  ...outputNames,
} satisfies Names<CacheAttendOptions>;

export class WasmKVCache extends CoreCache implements KVCache {
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;

  /** `elsewhere`: the calls of a cache whose rows are not in WebAssembly memory, made once the configuration is checked. */
  constructor(runtime: Runtime, given: KVCacheConfig, elsewhere?: (storage: CheckedStorage, heads: HeadExtents) => CacheCalls) {
    const config = readOptions(given, configNames, 'createCache');
    const storage = checkStorage(config);
    const numKvHeads = checkCount(config.numKvHeads, 'numKvHeads');
    const headDim = checkCount(config.headDim, 'headDim');
    const valueDim = config.valueDim === undefined ? headDim : checkCount(config.valueDim, 'valueDim');
    const { raw } = runtime;
    const heads = { numKvHeads, headDim, valueDim };
    const calls = elsewhere?.(storage, heads) ?? {
      create: () => raw.cacheCreate(),
      bytes: (cache) => raw.cacheBytes(cache),
      release: (cache) => raw.cacheRelease(cache),
      what: (bytes) => `a cache of ${bytes} bytes`,
    };
    super(runtime, storage, heads, calls);
    this.numKvHeads = numKvHeads;
    this.headDim = headDim;
    this.valueDim = valueDim;
    if (elsewhere === undefined) Object.freeze(this);
  }

  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array): void {
    this.assertLive();
    call(this.runtime, (operands) => {
      const { key, value, span } = readAppended(this, operands, k, v, counts);
      wire.cacheAppend(this.runtime.args, key, value, span);
      operands.run((raw) => raw.cacheAppend(this.handle));
    });
  }

  attend<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: FloatTensorLike,
    given: CacheAttendOptions<R, O, C> = {},
  ): AttentionResult<R, O, C> {
    this.assertLive();
    const options = readOptions(given, attendNames, 'attend', attendElsewhere);
    return call(this.runtime, (operands) => {
      const { query, masking, outputs } = readAttended(this.runtime, this, operands, q, options);
      wire.cacheAttend(this.runtime.args, query, masking, outputs.record);
      operands.run((raw) => raw.cacheAttend(this.handle));
      return outputs.result as AttentionResult<R, O, C>;
    });
  }

  truncate(length: number, batch = 0): void {
    this.assertLive();
    const rest = checkCount(length, 'length', 0);
    const entry = checkCount(batch, 'batch', 0);
    call(this.runtime, (operands) => {
      operands.run((raw) => raw.cacheTruncate(this.handle, entry, rest));
    });
  }

  clear(): void {
    this.runtime.raw.cacheClear(this.handle);
  }

  length(batch = 0): number {
    return this.runtime.raw.cacheLength(this.handle, this.#entry(batch));
  }

  firstKept(batch = 0): number {
    return this.runtime.raw.cacheFirstKept(this.handle, this.#entry(batch));
  }

  /** An entry of the batch. Throws `E_OPTION` if it does not exist. */
  #entry(batch: unknown): Count {
    const entry = checkCount(batch, 'batch', 0);
    if (entry < this.batch) return entry;
    throw optionError('batch', `an entry from 0 to ${this.batch - 1}`, String(entry));
  }
}

/** The arguments of append(). Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function readAppended({ batch }: WasmKVCache, operands: Operands, k: FloatTensorLike, v: FloatTensorLike, counts: Int32Array | undefined) {
  const key = operands.input(k, floatDTypes, 'k');
  const value = operands.input(v, floatDTypes, 'v');
  checkRank(key, '(B, H_kv, n, d_k)', 'k');
  checkRank(value, '(B, H_kv, n, d_v)', 'v');
  const span = operands.optionalSpan(counts, 'i32', 'counts', batch);
  return { key, value, span };
}

/** The arguments and outputs of attend(), whose captures are pushed: nothing may fail before the call. Throws as attend(). */
export function readAttended(
  runtime: Runtime,
  cache: WasmKVCache,
  operands: Operands,
  q: FloatTensorLike,
  options: CacheAttendOptions,
  returns = attentionReturns,
) {
  const query = operands.input(q, floatDTypes, 'q');
  checkRank(query, '(B, H_q, N_q, d_k)', 'q');
  const [batch = 0, heads = 0, queries = 0, width = 0] = query.shape;
  const lengths = Array.from({ length: cache.batch }, (_, entry) => cache.length(entry));
  const keys = Math.max(...lengths);
  const extents = { batch, heads, queries, keys, width };
  const allHave = lengths.every((length) => length === queries);
  const aligned = options.causal === true ? { ...options, causal: alignedCausal(options, allHave, 'bottomRight') } : options;
  const masking = attentionOptions(aligned, operands, extents);
  const outputs = prepareOutputs(options, returns, outputShapes(extents, cache.valueDim), operands);
  pushCaptures(runtime, outputs, operands);
  return { query, masking, outputs };
}
