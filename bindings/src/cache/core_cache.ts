// Code shared by the caches of attention, modules and transformers.

import { cacheLayouts, dtypes } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { CoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import { call, type Runtime } from '../runtime/operands.js';
import { type Names, namesOf } from '../runtime/options.js';
import { choice, count, readSettings, required } from '../runtime/settings.js';
import { describe } from '../runtime/tensor.js';
import type { CacheDType, CacheLayout, ModuleCacheConfig } from '../types/index.js';
import type { Count, Int32 } from '../types/wire.js';

const layoutNames = namesOf(cacheLayouts) satisfies readonly CacheLayout[];
const dtypeNames = namesOf(dtypes) satisfies readonly CacheDType[];

/** The options that every kind of cache has. */
export const storageSchema = {
  batch: count(1),
  capacity: required,
  layout: choice(layoutNames, 'contiguous'),
  dtype: choice(dtypeNames, 'f32'),
  pageSize: count(16 as Count),
  // The core replaces 0 by the number of pages that a full cache needs.
  pages: count(0),
} satisfies Names<ModuleCacheConfig>;

export type CheckedStorage = ReturnType<typeof checkStorage>;

/** Fills in the defaults. The names have been checked. Throws `E_OPTION`. */
export function checkStorage(config: ModuleCacheConfig) {
  for (const name of ['pageSize', 'pages'] as const) {
    if (config.layout === 'paged' || config[name] === undefined) continue;
    throw optionError(name, 'none unless layout is "paged"', `${describe(config[name])} with layout ${describe(config.layout ?? 'contiguous')}`);
  }
  return readSettings(config, storageSchema);
}

export type HeadExtents = Pick<wire.KVCacheConfig, 'numKvHeads' | 'headDim' | 'valueDim'>;

/** Functions of the core for caches of one kind. */
export interface CacheCalls {
  /** Reads the configuration from the block. Returns a handle above 0, or a negated CallStatus. */
  create(): Int32;
  bytes(handle: Int32): number;
  release(handle: Int32): void;
  /** Counts the bytes where they are; a negative number when they are freed. Default: in WebAssembly memory. */
  count?(bytes: number): void;
  /** For a warning: "a cache of 64 bytes". */
  what(bytes: number): string;
}

export abstract class CoreCache extends CoreObject {
  readonly batch: Count;
  readonly capacity: Count;
  readonly layout: CacheLayout;
  readonly dtype: CacheDType;
  readonly bytes: number;

  constructor(runtime: Runtime, storage: CheckedStorage, heads: HeadExtents, calls: CacheCalls) {
    const { args, heap } = runtime;
    const handle = call(runtime, (operands) => {
      wire.cacheConfig(args, { ...storage, ...heads, layout: cacheLayouts[storage.layout], dtype: dtypes[storage.dtype] });
      return operands.make(() => calls.create());
    });
    const bytes = calls.bytes(handle);
    const count = calls.count ?? ((more: number) => heap.count(more));
    count(bytes);
    const name = { argument: 'cache', noun: 'a cache' };
    super(runtime, handle, name, {
      what: () => calls.what(bytes),
      free() {
        calls.release(handle);
        count(-bytes);
      },
    });
    this.batch = storage.batch;
    this.capacity = storage.capacity;
    this.layout = storage.layout;
    this.dtype = storage.dtype;
    this.bytes = bytes;
  }
}
