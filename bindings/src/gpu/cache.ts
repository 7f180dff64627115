// Caches of keys and values on the GPU. The core knows the lengths, and plans what is written and read; the rows are here.

import { attendElsewhere, attendNames, readAppended, readAttended, WasmKVCache } from '../cache/kv_cache.js';
import * as wire from '../generated/gpu_wire.js';
import type { CacheOperands } from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { bytesPerElement } from '../runtime/memory.js';
import { readOptions, without } from '../runtime/options.js';
import { elements } from '../runtime/shape.js';
import { describe } from '../runtime/tensor.js';
import type { CacheAttendOptions, DType, KVCacheConfig } from '../types/index.js';
import type { Count, Uint32 } from '../types/wire.js';
import { gpuReturns, onCpu } from './attention.js';
import type { Storage } from './buffers.js';
import { type GpuOperands, gpuCall } from './operands.js';
import type { GpuRuntime } from './runtime.js';
import { GpuCore } from './tensor.js';

const attendNamesHere = without(attendNames, onCpu) as typeof attendNames;

/** Rows of keys or of values, (B, H_kv, capacity, d). */
interface Rows {
  readonly storage: Storage;
  readonly dtype: DType;
  readonly shape: readonly Count[];
}

export class GpuKVCache extends WasmKVCache {
  readonly #gpu: GpuRuntime;
  readonly #rows: readonly Rows[];

  constructor(gpu: GpuRuntime, given: KVCacheConfig) {
    const rows: Rows[] = [];
    super(gpu.planner, given, ({ batch, capacity, layout, dtype, pages, pageSize }, { numKvHeads, headDim, valueDim }) => {
      if (dtype === 'int8') throw optionError('dtype', 'f32, f16 or bf16 on a GPU', describe(dtype));
      // Pages have no batch axis; 0 means as many as full entries need.
      const paged = (pages || batch * Math.ceil(capacity / pageSize)) * pageSize;
      for (const width of [headDim, valueDim]) {
        const shape = (layout === 'paged' ? [1, numKvHeads, paged, width] : [batch, numKvHeads, capacity, width]) as Count[];
        const storage = gpu.allocate(elements(shape) * bytesPerElement(dtype), 'cache');
        storage.users = 1;
        rows.push({ storage, dtype, shape });
      }
      const { raw } = gpu.planner;
      return {
        create: () => {
          const handle = raw.gpuCacheCreate();
          if (handle <= 0) free();
          return handle;
        },
        bytes: () => rows.reduce((sum, { storage }) => sum + storage.bytes, 0),
        // allocate() and release() count them.
        count: () => {},
        release: (handle) => {
          raw.cacheRelease(handle);
          free();
        },
        what: (bytes) => `a cache of ${bytes} bytes on a GPU`,
      };
      function free(): void {
        for (const { storage } of rows) gpu.release(storage);
      }
    });
    this.#gpu = gpu;
    this.#rows = rows;
    Object.freeze(this);
  }

  override append(k: never, v: never, counts?: Int32Array): void {
    this.assertLive();
    const gpu = this.#gpu;
    gpuCall(gpu, (operands) => {
      const { key, value, span } = readAppended(this, operands, k, v, counts);
      const rows = this.#operands(operands);
      wire.gpuCacheAppend(gpu.planner.args, gpu.limits(operands), rows, key, value, span);
      operands.play(() => gpu.planner.raw.gpuCacheAppend(this.handle));
    });
  }

  override attend(q: never, given: object = {}): never {
    this.assertLive();
    const gpu = this.#gpu;
    const options = readOptions(given as CacheAttendOptions, attendNamesHere, 'attend', { ...attendElsewhere, ...onCpu });
    return gpuCall(gpu, (operands) => {
      const { query, masking, outputs } = readAttended(gpu.planner, this, operands, q, options, gpuReturns);
      const rows = this.#operands(operands);
      wire.gpuCacheAttend(gpu.planner.args, gpu.limits(operands), rows, query, masking, outputs.record);
      operands.play(() => gpu.planner.raw.gpuCacheAttend(this.handle));
      return outputs.result as never;
    });
  }

  /** Keys and values as operands of a call. */
  #operands(operands: GpuOperands): CacheOperands {
    const [keys, values] = this.#rows.map(({ storage, dtype, shape }) => operands.rows(new GpuCore(this.#gpu, dtype, shape, storage)).address);
    return { keys: keys as Uint32, values: values as Uint32 };
  }
}
