// The cache of a layer, a block or a stack: keys and values that the core keeps, by a handle.

import { MultiheadError } from './errors.js';
import { checkStorage, storageNames, writeConfig } from './kv_cache.js';
import type { Heap, Holding } from './memory.js';
import { call, type Runtime } from './operands.js';
import { checkOptions, checkWhole } from './options.js';
import { describe } from './tensor.js';
import type {
  CacheDType,
  CacheLayout,
  LayerCacheConfig,
  MultiHeadAttentionCache,
} from './types.js';

const elsewhere = {
  kvHeads: 'the layer has it',
  keyWidth: 'the layer has it',
  valueWidth: 'the layer has it',
};

export class WasmLayerCache implements MultiHeadAttentionCache {
  readonly batch: number;
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

  /** `make` is the core's call for a module that is live. */
  constructor(runtime: Runtime, make: () => number, config: LayerCacheConfig) {
    checkOptions(config, storageNames, 'createCache', elsewhere);
    const storage = checkStorage(config);
    this.#runtime = runtime;
    this.batch = storage.batch;
    this.capacity = storage.capacity;
    this.layout = storage.layout;
    this.dtype = storage.dtype;

    const { args, raw, heap } = runtime;
    const handle = call(runtime, (operands) => {
      // The core knows heads and widths from the layer.
      writeConfig(args, storage, [1, 1, 1]);
      return operands.checkHandle(make());
    });
    const bytes = raw.moduleCacheBytes(handle);
    this.#handle = handle;
    this.bytes = bytes;
    this.#holding = {
      what: () => `the cache of a layer, of ${bytes} bytes,`,
      free() {
        raw.moduleCacheRelease(handle);
        heap.count(-bytes);
      },
    };
    heap.count(bytes);
    heap.adopt(this, this.#holding);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  get length(): number {
    return this.#runtime.raw.moduleCacheLength(this.handle);
  }

  rewind(length: number): void {
    const { handle } = this;
    const rest = checkWhole(length, 'length');
    call(this.#runtime, (operands) => {
      operands.check(this.#runtime.raw.moduleCacheRewind(handle, rest));
    });
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#holding);
  }

  /** Throws `E_DISPOSED`. */
  get handle(): number {
    if (!this.#disposed) return this.#handle;
    throw new MultiheadError('E_DISPOSED', {
      argument: 'cache',
      expected: 'a cache that is not disposed',
      got: 'a disposed one',
    });
  }

  livesIn(heap: Heap): boolean {
    return this.#runtime.heap === heap;
  }
}

/** A live cache of this memory; of which layer, the core checks. Throws `E_OPTION`, `E_DISPOSED`. */
export function ownCache(given: unknown, heap: Heap): WasmLayerCache {
  if (given instanceof WasmLayerCache && given.livesIn(heap)) return given;
  throw new MultiheadError('E_OPTION', {
    argument: 'cache',
    expected: "one of this layer's createCache()",
    got: given instanceof WasmLayerCache ? 'one of another load()' : describe(given),
  });
}
