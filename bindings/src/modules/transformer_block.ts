// mh.transformerBlock: a handle to a transformer block in the core.

import { ownCache } from '../cache/module_cache.js';
import { moduleKinds } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { call, checkRank, type Runtime } from '../runtime/operands.js';
import { checkNames, readOptions } from '../runtime/options.js';
import { coreOf } from '../runtime/tensor.js';
import type { BlockGradients, BlockOptions, BlockResult, BlockReturn, BlockStepOptions } from '../types/index.js';
import type { LoadStateDictOptions, ModuleBackwardOptions, MultiHeadAttentionCache, StateDict, TensorLike } from '../types/index.js';
import type { TraceOption, TransformerBlock, TransformerBlockConfig } from '../types/index.js';
import type { Int32 } from '../types/wire.js';
import { CoreModule } from './core_module.js';
import { backwardNames, forwardNames, moduleOptions, notInBackward, notInStep, stepNames } from './options.js';
import { takeStateDict } from './state_dict.js';
import { takeTraces, traceBits } from './trace.js';
import { blockRecord, checkBlockConfig, type CheckedBlockConfig, toLoad } from './transformer_config.js';

const blockReturns: readonly BlockReturn[] = ['attentionOut'];

export class WasmTransformerBlock extends CoreModule implements TransformerBlock {
  readonly config: CheckedBlockConfig;

  constructor(runtime: Runtime, config: TransformerBlockConfig) {
    const checked = checkBlockConfig(config);
    super(runtime, (operands) => wire.blockConfig(runtime.args, blockRecord(checked, operands)), {
      kind: moduleKinds.block,
      argument: 'transformerBlock',
      noun: 'a block',
      filling: 'loadStateDict()',
    });
    this.config = Object.freeze(checked);
    Object.freeze(this);
  }

  loadStateDict(dict: StateDict, options: LoadStateDictOptions = {}): void {
    const wanted = toLoad(dict, options, false);
    this.load(wanted.dict, wanted.names);
  }

  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options: BlockOptions<R, T> = {},
  ): BlockResult<R, T> {
    this.ready();
    const read = readOptions(options, forwardNames, 'forward');
    return this.#call(x, 0, read, (raw) => raw.moduleForward(this.handle));
  }

  backward(x: TensorLike, dOut: TensorLike, given: ModuleBackwardOptions = {}): BlockGradients {
    this.takeAll();
    const options = readOptions(given, backwardNames, 'backward', notInBackward);
    const { runtime } = this;
    return call(runtime, (operands) => {
      const input = operands.input(x, ['f32'], 'x');
      checkRank(input, '(B, N, embedDim)', 'x');
      const d = operands.input(dOut, ['f32'], 'dOut');
      const [batch = 0, queries = 0] = input.shape;
      const record = moduleOptions(options, operands, this.config, { batch, queries, keys: queries });
      const dX = operands.output(input.shape, 'f32', 'dX');
      wire.blockBackward(runtime.args, input, record, d, coreOf(dX));
      operands.run((raw) => raw.moduleBackward(this.handle));
      return operands.disposable({ dX, parameters: takeStateDict(runtime) });
    });
  }

  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options: BlockStepOptions<R, T> = {},
  ): BlockResult<R, T> {
    this.ready();
    const read = readOptions(options, stepNames, 'step', notInStep);
    const own = ownCache(cache, this.runtime.heap);
    return this.#call(x, own.length(), read, (raw) => raw.moduleStep(this.handle, own.handle));
  }

  #call<R extends readonly BlockReturn[], T extends TraceOption>(
    x: TensorLike,
    before: number,
    options: BlockOptions<R, T>,
    run: (raw: Runtime['raw']) => Int32,
  ): BlockResult<R, T> {
    const { runtime } = this;
    return call(runtime, (operands) => {
      const input = operands.input(x, ['f32'], 'x');
      checkRank(input, '(B, N, embedDim)', 'x');
      const [batch = 0, queries = 0] = input.shape;
      const record = moduleOptions(options, operands, this.config, { batch, queries, keys: before + queries });
      const wanted = checkNames(options.return ?? [], blockReturns, 'return');
      const bits = traceBits(options.trace);
      const output = operands.output(input.shape, 'f32', 'out', options.out);
      const attentionOut = wanted.includes('attentionOut') ? operands.output(input.shape, 'f32', 'attentionOut') : undefined;
      const outputs = { out: coreOf(output), attentionOut: coreOf(attentionOut) };
      wire.block(runtime.args, input, record, outputs, bits);
      operands.run(run);
      return operands.disposable({
        output,
        trace: options.trace ? takeTraces(runtime)[0] : undefined,
        ...(attentionOut && { attentionOut }),
      }) as unknown as BlockResult<R, T>;
    });
  }
}
