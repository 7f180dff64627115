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
import { optionError } from '../runtime/errors.js';
import { describe, makeTensor, makeZeros } from '../runtime/tensor.js';
import type { MultiheadCore } from '../types/core.js';

/** Properties that completed() adds. */
export type Ended = Pick<MultiheadCore, 'disposed' | typeof Symbol.dispose>;

export function createRuntime(raw: GuardedModule, ...moreTables: ErrorTables[]): Runtime {
  const scopes = new ScopeStack();
  return { raw, args: new Arguments(raw), heap: new Heap(raw, scopes), scopes, moreTables };
}

/** Adds the properties that are not enumerable, and freezes the object. */
export function completed<Api extends { dispose(): void }>({ raw }: Runtime, api: Api) {
  Object.defineProperty(api, 'disposed', { get: () => raw.disposed });
  Object.defineProperty(api, Symbol.dispose, { value: api.dispose });
  return Object.freeze(api) as Readonly<Api & Ended>;
}

/** The methods are closures, so that they also work when destructured: `const { tensor } = mh`. */
export function coreOperations(runtime: Runtime, backend: LoadedBackend): Omit<MultiheadCore, keyof Ended> {
  const { raw, args, heap, scopes } = runtime;
  raw.simdTarget();
  const { name: target } = readSimdTarget(args.results());

  const dtypeOf = (call: string, given: { readonly dtype?: unknown } = {}): unknown => readOptions(given, { dtype: plain }, call).dtype;

  const scope = (...given: [fn?: () => unknown]): unknown => {
    raw.assertAlive();
    if (given.length === 0) return scopes.open();
    const [fn] = given;
    if (typeof fn === 'function') return scopes.run(fn as () => unknown);
    throw optionError('scope', 'a function', describe(fn));
  };

  return {
    backend: Object.freeze({ ...backend, target }),
    tensor: (data: unknown, shape?: unknown, options?: object) => scopes.track(makeTensor(heap, data, shape, dtypeOf('tensor', options))) as never,
    zeros: (shape: unknown, options?: object) => scopes.track(makeZeros(heap, shape, dtypeOf('zeros', options))) as never,
    attention: (q, k, v, options) => attention(runtime, q, k, v, options),
    prepare: (options) => scopes.track(new WasmPreparedAttention(runtime, options)),
    scores: (q, k, options) => scores(runtime, q, k, options),
    attentionVarlen: (q, k, v, options) => attentionVarlen(runtime, q, k, v, options),
    mergeAttention: (a, b) => mergeAttention(runtime, a, b),
    alibiSlopes: (heads) => alibiSlopes(runtime, heads),
    rotate: (x, positions, rope) => rotate(runtime, x, positions, rope),
    linear: (x, weight, options) => linear(runtime, x, weight, options),
    createCache: (config) => scopes.track(new WasmKVCache(runtime, config)),
    scope: scope as MultiheadCore['scope'],
    memory: () => heap.info(),
    dispose: () => {
      heap.end();
      raw.dispose();
      args.forget();
    },
  };
}
