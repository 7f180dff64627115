// Code shared by the caches of attention, modules and transformers.

import { cacheLayouts, dtypes } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { CoreObject } from '../runtime/core_object.js';
import { MultiheadError } from '../runtime/errors.js';
import { call, type Runtime } from '../runtime/operands.js';
import { checkChoice, checkCount, namesOf } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { CacheDType, CacheLayout, KVCacheConfig } from '../types/index.js';
import type { Count, Int32 } from '../types/wire.js';

/** The options that every kind of cache has. */
export const storageNames = [
  'batch',
  'capacity',
  'layout',
  'dtype',
  'pageSize',
  'pages',
] as const satisfies readonly (keyof KVCacheConfig)[];

const layoutNames = namesOf(cacheLayouts) satisfies readonly CacheLayout[];
const dtypeNames = namesOf(dtypes) satisfies readonly CacheDType[];

type Storage = Pick<KVCacheConfig, (typeof storageNames)[number]>;
type CheckedStorage = Readonly<{
  [N in keyof Storage]-?: Exclude<Storage[N], undefined> extends number ? Count : Exclude<Storage[N], undefined>;
}>;

/** Fills in the defaults. The names have been checked. Throws `E_OPTION`. */
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
    layout: checkChoice(layout, layoutNames, 'layout'),
    dtype: checkChoice(dtype, dtypeNames, 'dtype'),
    pageSize: checkCount(pageSize, 'pageSize'),
    // The core replaces 0 by the number of pages that a full cache needs.
    pages: pages === undefined ? 0 : checkCount(pages, 'pages'),
  };
}

type HeadExtents = Pick<wire.KVCacheConfig, 'numKvHeads' | 'headDim' | 'valueDim'>;

/** Functions of the core for caches of one kind. */
export interface CacheCalls {
  /** Reads the configuration from the block. Returns a handle above 0, or a negated CallStatus. */
  create(): Int32;
  bytes(handle: Int32): number;
  release(handle: Int32): void;
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
      wire.cacheConfig(args, {
        batch: storage.batch,
        numKvHeads: heads.numKvHeads,
        headDim: heads.headDim,
        valueDim: heads.valueDim,
        capacity: storage.capacity,
        layout: cacheLayouts[storage.layout],
        dtype: dtypes[storage.dtype],
        pageSize: storage.pageSize,
        pages: storage.pages,
      });
      return operands.make(() => calls.create());
    });
    const bytes = calls.bytes(handle);
    heap.count(bytes);
    const name = { argument: 'cache', noun: 'a cache' };
    super(runtime, handle, name, {
      what: () => calls.what(bytes),
      free() {
        calls.release(handle);
        heap.count(-bytes);
      },
    });
    this.batch = storage.batch;
    this.capacity = storage.capacity;
    this.layout = storage.layout;
    this.dtype = storage.dtype;
    this.bytes = bytes;
  }
}
