// The object that load() returns: all operations, bound to one WebAssembly instance and its memory.

import { attentionBackward } from './attention_backward.js';
import { coreOperations, createRuntime, type LoadedBackend } from './core_operations.js';
import { WasmExperiment } from './experiment.js';
import type { GuardedModule } from './guard.js';
import { headStatistics } from './head_statistics.js';
import { latentAttention } from './latent_attention.js';
import { moduleTables } from './module_tables.js';
import { WasmMultiHeadAttention } from './multi_head_attention.js';
import type { Runtime } from './operands.js';
import { WasmPreparedBackward } from './prepared_backward.js';
import { WasmTrainer } from './trainer.js';
import { WasmTransformer } from './transformer.js';
import { WasmTransformerBlock } from './transformer_block.js';
import type { Multihead } from './types.js';
import { attentionVarlenBackward } from './varlen.js';

/** For multihead/pool. */
export const runtimeOf = new WeakMap<Multihead, Runtime>();

export function createMultihead(raw: GuardedModule, backend: LoadedBackend): Multihead {
  const runtime = createRuntime(raw, moduleTables);
  const { scopes } = runtime;
  const multihead: Multihead = {
    ...coreOperations(runtime, backend),
    attentionBackward: (inputs, options) => attentionBackward(runtime, inputs, options),
    prepareBackward: (options) => scopes.track(new WasmPreparedBackward(runtime, options)),
    attentionVarlenBackward: (inputs, options) => attentionVarlenBackward(runtime, inputs, options),
    latentAttention: (inputs, options) => latentAttention(runtime, inputs, options),
    multiHeadAttention: (config) => scopes.track(new WasmMultiHeadAttention(runtime, config)),
    transformerBlock: (config) => scopes.track(new WasmTransformerBlock(runtime, config)),
    transformer: (config) => scopes.track(new WasmTransformer(runtime, config)),
    trainer: (model, options) => scopes.track(new WasmTrainer(runtime, model, options)),
    experiment: (options) => scopes.track(new WasmExperiment(runtime, options)),
    headStatistics: (weights, options) => headStatistics(runtime, weights, options),
  };
  runtimeOf.set(multihead, runtime);
  return Object.freeze(multihead);
}
