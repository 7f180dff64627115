// mh.createCache: keys and values that the core keeps, by a handle.

import type { Arguments } from './arguments.js';
import { optionsArg, sharedNames } from './attention_options.js';
import { attentionReturns } from './attention.js';
import { MultiheadError } from './errors.js';
import type { Holding } from './memory.js';
import { call, checkRank, type Runtime } from './operands.js';
import { checkChoice, checkCount, checkOptions } from './options.js';
import { outputNames, prepareOutputs, pushCaptures } from './outputs.js';
import { describe, floatDTypes } from './tensor.js';
import type {
  AttentionResult,
  AttentionReturn,
  CacheAttendOptions,
  CacheDType,
  CacheLayout,
  Capture,
  FloatDType,
  FloatTensorLike,
  KVCache,
  KVCacheConfig,
} from './types.js';

/** What a cache's memory is like, whatever it is a cache of. */
export const storageNames = [
  'batch',
  'capacity',
  'layout',
  'dtype',
  'pageSize',
  'pages',
] as const satisfies readonly (keyof KVCacheConfig)[];

const configNames = [
  ...(['kvHeads', 'keyWidth', 'valueWidth'] as const),
  ...storageNames,
] as const satisfies readonly (keyof KVCacheConfig)[];

/** In the order of multihead::KVCacheConfig::Layout and ::Type. */
const layouts: readonly CacheLayout[] = ['contiguous', 'ring', 'paged'];
const dtypes: readonly CacheDType[] = ['f32', 'f16', 'bf16', 'int8'];

const attendNames = [
  ...sharedNames,
  'mask',
  'bias',
  ...outputNames,
] as const satisfies readonly (keyof CacheAttendOptions)[];
const before = 'do it to keys before append(), and to queries before attend()';
const elsewhere = {
  kvLengths: 'the cache knows its lengths',
  qkNorm: before,
  rope: `${before}, with rotate()`,
};

type Storage = Pick<KVCacheConfig, (typeof storageNames)[number]>;
type CheckedStorage = Required<{ [N in keyof Storage]: Exclude<Storage[N], undefined> }>;

/** With the defaults filled in; throws `E_OPTION`. The names have been checked. */
export function checkStorage(config: Storage): CheckedStorage {
  const {
    batch = 1,
    capacity,
    layout = 'contiguous',
    dtype = 'f32',
    pageSize = 16,
    pages,
  } = config;
  for (const name of ['pageSize', 'pages'] as const) {
    if (layout === 'paged' || config[name] === undefined) continue;
    throw new MultiheadError('E_OPTION', {
      argument: name,
      expected: 'none unless layout is "paged"',
      got: `${describe(config[name])} with layout ${describe(layout)}`,
    });
  }
  return {
    batch: checkCount(batch, 'batch'),
    capacity: checkCount(capacity, 'capacity'),
    layout: checkChoice(layout, layouts, 'layout'),
    dtype: checkChoice(dtype, dtypes, 'dtype'),
    pageSize: checkCount(pageSize, 'pageSize'),
    // The core's word for "enough".
    pages: pages === undefined ? 0 : checkCount(pages, 'pages'),
  };
}

/** In the order of multihead::KVCacheConfig. */
export function writeConfig(
  args: Arguments,
  storage: CheckedStorage,
  [kvHeads, keyWidth, valueWidth]: readonly [number, number, number],
): void {
  const { batch, capacity, layout, dtype, pageSize, pages } = storage;
  args.begin().numbers(batch, kvHeads, keyWidth, valueWidth, capacity);
  args.numbers(layouts.indexOf(layout), dtypes.indexOf(dtype), pageSize, pages);
}

export class WasmKVCache implements KVCache {
  readonly batch: number;
  readonly kvHeads: number;
  readonly keyWidth: number;
  readonly valueWidth: number;
  readonly capacity: number;
  readonly layout: CacheLayout;
  readonly dtype: CacheDType;
  readonly bytes: number;
  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #handle: number;
  readonly #holding: Holding;
  #disposed = false;

  constructor(runtime: Runtime, config: KVCacheConfig) {
    checkOptions(config, configNames, 'createCache');
    const { kvHeads, keyWidth, valueWidth = keyWidth } = config;
    const storage = checkStorage(config);
    this.#runtime = runtime;
    this.batch = storage.batch;
    this.kvHeads = checkCount(kvHeads, 'kvHeads');
    this.keyWidth = checkCount(keyWidth, 'keyWidth');
    this.valueWidth = checkCount(valueWidth, 'valueWidth');
    this.capacity = storage.capacity;
    this.layout = storage.layout;
    this.dtype = storage.dtype;

    const { args, raw, heap } = runtime;
    writeConfig(args, storage, [this.kvHeads, this.keyWidth, this.valueWidth]);
    const handle = raw.cacheCreate();
    // What the core refuses it reports as minus a status.
    if (handle <= 0) call(runtime, (operands) => operands.check(-handle));
    const bytes = raw.cacheBytes(handle);
    this.#handle = handle;
    this.bytes = bytes;
    this.#holding = {
      what: () => `a cache of ${bytes} bytes`,
      free() {
        raw.cacheRelease(handle);
        heap.count(-bytes);
      },
    };
    heap.count(bytes);
    heap.adopt(this, this.#holding);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array): void {
    this.#assertLive();
    call(this.#runtime, (operands) => {
      const key = operands.input(k, floatDTypes, 'k');
      const value = operands.input(v, floatDTypes, 'v');
      checkRank(key, '(B, H_kv, n, d_k)', 'k');
      checkRank(value, '(B, H_kv, n, d_v)', 'v');
      const span = operands.optionalSpan(counts, 'i32', 'counts', this.batch);
      const { args, raw } = this.#runtime;
      args.begin().tensor(key).tensor(value).span(span);
      operands.check(raw.cacheAppend(this.#handle));
    });
  }

  attend<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
  >(q: FloatTensorLike, options: CacheAttendOptions<R, O, C> = {}): AttentionResult<R, O, C> {
    this.#assertLive();
    checkOptions(options, attendNames, 'attend', elsewhere);
    return call(this.#runtime, (operands) => {
      const query = operands.input(q, floatDTypes, 'q');
      checkRank(query, '(B, H_q, N_q, d_k)', 'q');
      const [batch = 0, heads = 0, queries = 0, width = 0] = query.shape;
      const keys = this.#longest();
      const masking = optionsArg(options, operands, { batch, heads, queries, keys, width });

      const shapes = {
        out: [batch, heads, queries, this.valueWidth],
        lse: [batch, heads, queries],
        scores: [batch, heads, queries, keys],
      };
      const outputs = prepareOutputs(options, attentionReturns, shapes, operands);
      pushCaptures(this.#runtime, outputs);
      const { args, raw } = this.#runtime;
      args.begin().tensor(query).options(masking).outputs(outputs.arg);
      operands.check(raw.cacheAttend(this.#handle));
      return outputs.result as AttentionResult<R, O, C>;
    });
  }

  truncate(batch: number, length: number): void {
    this.#assertLive();
    const entry = checkCount(batch, 'batch', 0);
    const rest = checkCount(length, 'length', 0);
    call(this.#runtime, (operands) => {
      operands.check(this.#runtime.raw.cacheTruncate(this.#handle, entry, rest));
    });
  }

  clear(): void {
    this.#assertLive();
    this.#runtime.raw.cacheClear(this.#handle);
  }

  length(batch = 0): number {
    return this.#runtime.raw.cacheLength(this.#handle, this.#entry(batch));
  }

  firstKept(batch = 0): number {
    return this.#runtime.raw.cacheFirstKept(this.#handle, this.#entry(batch));
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#holding);
  }

  #longest(): number {
    let longest = 0;
    for (let entry = 0; entry < this.batch; entry += 1) {
      longest = Math.max(longest, this.#runtime.raw.cacheLength(this.#handle, entry));
    }
    return longest;
  }

  /** An entry that there is, of a cache that is live. */
  #entry(batch: unknown): number {
    this.#assertLive();
    const entry = checkCount(batch, 'batch', 0);
    if (entry < this.batch) return entry;
    throw new MultiheadError('E_OPTION', {
      argument: 'batch',
      expected: `an entry from 0 to ${this.batch - 1}`,
      got: String(entry),
    });
  }

  #assertLive(): void {
    if (!this.#disposed) return;
    throw new MultiheadError('E_DISPOSED', {
      argument: 'cache',
      expected: 'a cache that is not disposed',
      got: 'a disposed one',
    });
  }
}
