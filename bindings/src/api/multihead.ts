// The object that load() returns: all operations, bound to one WebAssembly instance and its memory.

import createGlue from 'built:glue';
import { attentionBackward } from '../attention/backward.js';
import { latentAttention } from '../attention/latent.js';
import { WasmPreparedBackward } from '../attention/prepared_backward.js';
import { attentionVarlenBackward } from '../attention/varlen.js';
import { moduleTables } from '../generated/module_tables.js';
import { trainerTables } from '../generated/trainer_tables.js';
import type { Contents, LoadedBackend } from '../load/loader.js';
import { WasmMultiHeadAttention } from '../modules/multi_head_attention.js';
import { readParameter } from '../modules/state_dict.js';
import { WasmTransformer } from '../modules/transformer.js';
import { WasmTransformerBlock } from '../modules/transformer_block.js';
import type { GuardedModule } from '../runtime/guard.js';
import type { Runtime } from '../runtime/operands.js';
import { WasmTrainer } from '../training/trainer.js';
import type { Multihead } from '../types/index.js';
import { completed, coreOperations, createRuntime, type Ended } from './operations.js';

/** For multihead/pool and multihead/lab. */
export const runtimeOf = new WeakMap<Multihead, Runtime>();

export function createMultihead(raw: GuardedModule, backend: LoadedBackend): Multihead {
  const runtime = createRuntime(raw, trainerTables, moduleTables);
  const { scopes } = runtime;
  const multihead = completed(runtime, {
    ...coreOperations(runtime, backend),
    attentionBackward: (inputs, options) => attentionBackward(runtime, inputs, options),
    prepareBackward: (options) => scopes.track(new WasmPreparedBackward(runtime, options)),
    attentionVarlenBackward: (inputs, options) => attentionVarlenBackward(runtime, inputs, options),
    latentAttention: (inputs, options) => latentAttention(runtime, inputs, options),
    multiHeadAttention: (config) => scopes.track(new WasmMultiHeadAttention(runtime, config)),
    transformerBlock: (config) => scopes.track(new WasmTransformerBlock(runtime, config)),
    transformer: (config) => scopes.track(new WasmTransformer(runtime, config)),
    trainer: (model, options) => scopes.track(new WasmTrainer(runtime, model, options)),
    gpu: async (options) => scopes.track(await (await import('../gpu/gpu.js')).openGpu(runtime, options)),
  } satisfies Omit<Multihead, keyof Ended> as Omit<Multihead, keyof Ended>);
  runtimeOf.set(multihead, runtime);
  return multihead;
}

/** The part of the package that every entry point except multihead/core loads. */
export const everything: Contents<Multihead> = { createGlue, createApi: createMultihead, readParameter };
