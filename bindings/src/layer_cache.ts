// The cache of a layer, a block or a stack: keys and values that the core keeps, by a handle.

import { checkStorage, CoreCache, storageNames } from './core_cache.js';
import { isCoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import type { Heap } from './memory.js';
import { call, type Runtime } from './operands.js';
import { checkWhole, readOptions } from './options.js';
import { describe } from './tensor.js';
import type { LayerCacheConfig, MultiHeadAttentionCache } from './types.js';

const elsewhere = {
  kvHeads: 'the layer has it',
  keyWidth: 'the layer has it',
  valueWidth: 'the layer has it',
};

export class WasmLayerCache extends CoreCache implements MultiHeadAttentionCache {
  /** `make` is the core's call for a module that is live. */
  constructor(runtime: Runtime, make: () => number, given: LayerCacheConfig) {
    const config = readOptions(given, storageNames, 'createCache', elsewhere);
    const { raw } = runtime;
    // The core knows heads and widths from the layer.
    super(runtime, checkStorage(config), { kvHeads: 1, keyWidth: 1, valueWidth: 1 }, {
      create: make,
      bytes: (cache) => raw.moduleCacheBytes(cache),
      release: (cache) => raw.moduleCacheRelease(cache),
      what: (bytes) => `the cache of a layer, of ${bytes} bytes,`,
    });
    Object.freeze(this);
  }

  get length(): number {
    return this.runtime.raw.moduleCacheLength(this.handle);
  }

  rewind(length: number): void {
    this.assertLive();
    const rest = checkWhole(length, 'length');
    call(this.runtime, (operands) => {
      operands.run(() => this.runtime.raw.moduleCacheRewind(this.handle, rest));
    });
  }

  livesIn(heap: Heap): boolean {
    return this.runtime.heap === heap;
  }
}

/** A live cache of this memory; of which layer, the core checks. Throws `E_OPTION`, `E_DISPOSED`. */
export function ownCache(given: unknown, heap: Heap): WasmLayerCache {
  const isCache = isCoreObject(given) && given instanceof WasmLayerCache;
  if (isCache && given.livesIn(heap)) return given;
  throw new MultiheadError('E_OPTION', {
    argument: 'cache',
    expected: "one of this layer's createCache()",
    got: isCache ? 'one of another load()' : describe(given),
  });
}
