// The object that load() returns: the operations, bound to one WebAssembly instance and its memory.

import { alibiSlopes } from './alibi.js';
import { Arguments } from './arguments.js';
import { attention } from './attention.js';
import { attentionBackward } from './attention_backward.js';
import { WasmExperiment } from './experiment.js';
import type { GuardedModule } from './guard.js';
import { headStatistics } from './head_statistics.js';
import { WasmKVCache } from './kv_cache.js';
import { latentAttention } from './latent_attention.js';
import { linear } from './linear.js';
import { Heap } from './memory.js';
import { mergeAttention } from './merge.js';
import { WasmMultiHeadAttention } from './multi_head_attention.js';
import type { Runtime } from './operands.js';
import { readOptions } from './options.js';
import { WasmPreparedAttention } from './prepared.js';
import { rotate } from './rope.js';
import { ScopeStack } from './scope.js';
import { scores } from './scores.js';
import { makeTensor } from './tensor.js';
import { WasmTrainer } from './trainer.js';
import { WasmTransformer } from './transformer.js';
import { WasmTransformerBlock } from './transformer_block.js';
import type { Backend, DType, Multihead, Shape, SourceOf, Tensor, TensorOptions } from './types.js';
import { attentionVarlen, attentionVarlenBackward } from './varlen.js';
import { readSimdTarget } from './wire.js';

/** For multihead/pool. */
export const runtimeOf = new WeakMap<Multihead, Runtime>();

/** The methods are closures, so that they also work when destructured: `const { tensor } = mh`. */
export function createMultihead(
  raw: GuardedModule,
  backend: Omit<Backend, 'target'>,
): Multihead {
  const scopes = new ScopeStack();
  const heap = new Heap(raw, scopes);
  const args = new Arguments(raw);
  const runtime: Runtime = { raw, args, heap, scopes };
  raw.simdTarget();
  const { name: target } = readSimdTarget(args.results());

  function tensor(shape: Shape, data?: Float32Array): Tensor;
  function tensor(shape: Shape, data: Uint8Array): Tensor<'bool'>;
  function tensor<D extends DType>(
    shape: Shape,
    data: SourceOf<D> | undefined,
    options: TensorOptions<D>,
  ): Tensor<D>;
  function tensor(shape: Shape, data?: unknown, given: Partial<TensorOptions> = {}): unknown {
    const { dtype } = readOptions(given, ['dtype'], 'tensor');
    return scopes.track(makeTensor(heap, shape, data, dtype));
  }

  const multihead: Multihead = {
    backend: Object.freeze({ ...backend, target }),
    tensor,
    attention: (q, k, v, options) => attention(runtime, q, k, v, options),
    attentionBackward: (inputs, options) => attentionBackward(runtime, inputs, options),
    prepare: (options) => scopes.track(new WasmPreparedAttention(runtime, options)),
    scores: (q, k, options) => scores(runtime, q, k, options),
    attentionVarlen: (q, k, v, options) => attentionVarlen(runtime, q, k, v, options),
    attentionVarlenBackward: (inputs, options) => attentionVarlenBackward(runtime, inputs, options),
    mergeAttention: (a, b) => mergeAttention(runtime, a, b),
    alibiSlopes: (heads) => alibiSlopes(runtime, heads),
    rotate: (x, positions, rope) => rotate(runtime, x, positions, rope),
    latentAttention: (inputs, options) => latentAttention(runtime, inputs, options),
    linear: (x, weight, options) => linear(runtime, x, weight, options),
    multiHeadAttention: (config) => scopes.track(new WasmMultiHeadAttention(runtime, config)),
    transformerBlock: (config) => scopes.track(new WasmTransformerBlock(runtime, config)),
    transformer: (config) => scopes.track(new WasmTransformer(runtime, config)),
    trainer: (model, options) => scopes.track(new WasmTrainer(runtime, model, options)),
    experiment: (options) => scopes.track(new WasmExperiment(runtime, options)),
    headStatistics: (weights, options) => headStatistics(runtime, weights, options),
    createCache: (config) => scopes.track(new WasmKVCache(runtime, config)),
    scope: (fn) => scopes.run(fn),
    memory: () => heap.info(),
  };
  runtimeOf.set(multihead, runtime);
  return Object.freeze(multihead);
}
