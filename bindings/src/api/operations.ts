// The operations that multihead and multihead/core both have, bound to one WebAssembly instance and its
// memory.

import { attention } from '../attention/attention.js';
import { linear } from '../attention/linear.js';
import { mergeAttention } from '../attention/merge.js';
import { alibiSlopes, rotate } from '../attention/positions.js';
import { WasmPreparedAttention } from '../attention/prepared.js';
import { scores } from '../attention/scores.js';
import { attentionVarlen } from '../attention/varlen.js';
import { WasmKVCache } from '../cache/kv_cache.js';
import type { ErrorTables } from '../generated/tables.js';
import { readSimdTarget } from '../generated/wire.js';
import type { LoadedBackend } from '../load/loader.js';
import { Arguments } from '../runtime/arguments.js';
import type { GuardedModule } from '../runtime/guard.js';
import { Heap } from '../runtime/memory.js';
import type { Runtime } from '../runtime/operands.js';
import { plain, readOptions } from '../runtime/options.js';
import { ScopeStack } from '../runtime/scope.js';
import { makeTensor } from '../runtime/tensor.js';
import type { MultiheadCore } from '../types/core.js';
import type { Shape } from '../types/index.js';

export function createRuntime(raw: GuardedModule, moduleTables?: ErrorTables): Runtime {
  const scopes = new ScopeStack();
  return { raw, args: new Arguments(raw), heap: new Heap(raw, scopes), scopes, moduleTables };
}

/** The methods are closures, so that they also work when destructured: `const { tensor } = mh`. */
export function coreOperations(runtime: Runtime, backend: LoadedBackend): MultiheadCore {
  const { raw, args, heap, scopes } = runtime;
  raw.simdTarget();
  const { name: target } = readSimdTarget(args.results());

  const tensor = (shape: Shape, data?: unknown, given: { readonly dtype?: unknown } = {}): unknown => {
    const { dtype } = readOptions(given, { dtype: plain }, 'tensor');
    return scopes.track(makeTensor(heap, shape, data, dtype));
  };

  return {
    backend: Object.freeze({ ...backend, target }),
    tensor: tensor as MultiheadCore['tensor'],
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
