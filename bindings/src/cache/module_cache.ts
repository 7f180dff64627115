// The KV cache of a module, a transformer block or a transformer: a handle to a cache in the core.

import { isCoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import { call, type Runtime } from '../runtime/operands.js';
import { checkCount, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { ModuleCacheConfig, MultiHeadAttentionCache } from '../types/index.js';
import type { Int32 } from '../types/wire.js';
import { checkStorage, CoreCache, storageSchema } from './core_cache.js';

const elsewhere = {
  numKvHeads: 'the module knows it',
  headDim: 'the module knows it',
  valueDim: 'the module knows it',
};

export class WasmModuleCache extends CoreCache implements MultiHeadAttentionCache {
  /** `make` calls the core for a module that is not disposed. */
  constructor(runtime: Runtime, make: () => Int32, given: ModuleCacheConfig) {
    const config = readOptions(given, storageSchema, 'createCache', elsewhere);
    const { raw } = runtime;
    // Placeholders: the core takes the number of heads and both head dims from the module.
    super(
      runtime,
      checkStorage(config),
      { numKvHeads: 1, headDim: 1, valueDim: 1 },
      {
        create: make,
        bytes: (cache) => raw.moduleCacheBytes(cache),
        release: (cache) => raw.moduleCacheRelease(cache),
        what: (bytes) => `the cache of a module, of ${bytes} bytes,`,
      },
    );
    Object.freeze(this);
  }

  length(): number {
    return this.runtime.raw.moduleCacheLength(this.handle);
  }

  truncate(length: number): void {
    this.assertLive();
    const rest = checkCount(length, 'length', 0);
    call(this.runtime, (operands) => {
      operands.run((raw) => raw.moduleCacheTruncate(this.handle, rest));
    });
  }
}

/**
 * Checks that `given` is a cache in the memory of `heap`. The core then checks that it belongs to the module of the
 * call. Throws `E_OPTION`.
 */
export function ownCache(given: unknown, heap: Heap): WasmModuleCache {
  const isCache = isCoreObject(given) && given instanceof WasmModuleCache;
  if (isCache && given.livesIn(heap)) return given;
  throw optionError('cache', "one made by this module's createCache()", isCache ? 'one of another load()' : describe(given));
}
