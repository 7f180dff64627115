// The operations that multihead and multihead/core both have, bound to one WebAssembly instance and its
// memory.

import { alibiSlopes } from './alibi.js';
import { Arguments } from './arguments.js';
import { attention } from './attention.js';
import type { MultiheadCore } from './core_types.js';
import type { GuardedModule } from './guard.js';
import { WasmKVCache } from './kv_cache.js';
import { linear } from './linear.js';
import { Heap } from './memory.js';
import { mergeAttention } from './merge.js';
import type { Runtime } from './operands.js';
import { readOptions } from './options.js';
import type { PlatformFloat16Array } from './platform_types.js';
import { WasmPreparedAttention } from './prepared.js';
import { rotate } from './rope.js';
import { ScopeStack } from './scope.js';
import { scores } from './scores.js';
import type { ErrorTables } from './tables.js';
import { makeTensor } from './tensor.js';
import type { Backend, DType, Shape, SourceOf, Tensor, TensorOptions } from './types.js';
import { attentionVarlen } from './varlen.js';
import { readSimdTarget } from './wire.js';

/** The backend without `target`, which only the core knows. */
export type LoadedBackend = Omit<Backend, 'target'>;

export function createRuntime(raw: GuardedModule, moduleTables?: ErrorTables): Runtime {
  const scopes = new ScopeStack();
  return { raw, args: new Arguments(raw), heap: new Heap(raw, scopes), scopes, moduleTables };
}

/** The object that load() of multihead/core returns. */
export function createCore(raw: GuardedModule, backend: LoadedBackend): MultiheadCore {
  return Object.freeze(coreOperations(createRuntime(raw), backend));
}

/** The methods are closures, so that they also work when destructured: `const { tensor } = mh`. */
export function coreOperations(runtime: Runtime, backend: LoadedBackend): MultiheadCore {
  const { raw, args, heap, scopes } = runtime;
  raw.simdTarget();
  const { name: target } = readSimdTarget(args.results());

  function tensor(shape: Shape, data?: Float32Array, options?: { readonly dtype?: undefined }): Tensor;
  function tensor(shape: Shape, data: Uint8Array, options?: { readonly dtype?: undefined }): Tensor<'bool'>;
  function tensor(shape: Shape, data: PlatformFloat16Array, options?: { readonly dtype?: undefined }): Tensor<'f16'>;
  function tensor<D extends DType>(
    shape: Shape,
    data: SourceOf<D> | undefined,
    options: TensorOptions<D>,
  ): Tensor<D>;
  function tensor(shape: Shape, data?: unknown, given: { readonly dtype?: unknown } = {}): unknown {
    const { dtype } = readOptions(given, ['dtype'], 'tensor');
    return scopes.track(makeTensor(heap, shape, data, dtype));
  }

  return {
    backend: Object.freeze({ ...backend, target }),
    tensor,
    attention: (q, k, v, options) => attention(runtime, q, k, v, options),
    prepare: (options) => scopes.track(new WasmPreparedAttention(runtime, options)),
    scores: (q, k, options) => scores(runtime, q, k, options),
    attentionVarlen: (q, k, v, options) => attentionVarlen(runtime, q, k, v, options),
    mergeAttention: (a, b) => mergeAttention(runtime, a, b),
    alibiSlopes: (heads) => alibiSlopes(runtime, heads),
    rotate: (x, positions, rope) => rotate(runtime, x, positions, rope),
    linear: (x, weight, options) => linear(runtime, x, weight, options),
    createCache: (config) => scopes.track(new WasmKVCache(runtime, config)),
    scope: (fn) => scopes.run(fn),
    memory: () => heap.info(),
  };
}
