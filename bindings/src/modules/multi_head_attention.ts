// mh.multiHeadAttention: a handle to a multi-head attention module in the core.

import { ownCache } from '../cache/module_cache.js';
import { moduleKinds } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { call, type Runtime } from '../runtime/operands.js';
import { type Names, plain, readOptions } from '../runtime/options.js';
import { coreOf } from '../runtime/tensor.js';
import type { ForwardOptions, ModuleBackwardOptions, ModuleGradients, ModuleInputs, ModuleResult, ModuleReturn } from '../types/index.js';
import type { MultiHeadAttention, MultiHeadAttentionCache, MultiHeadAttentionConfig, Shape, StateDict, StepOptions } from '../types/index.js';
import type { TensorLike, TraceOption } from '../types/index.js';
import { checkConfig, type CheckedConfig, moduleRecord } from './config.js';
import { CoreModule } from './core_module.js';
import { backwardNames, forwardNames, moduleOptions, notInBackward, notInStep, runModule, stepNames } from './options.js';
import { takeStateDict } from './state_dict.js';

export class WasmMultiHeadAttention extends CoreModule implements MultiHeadAttention {
  readonly config: CheckedConfig;

  constructor(runtime: Runtime, config: MultiHeadAttentionConfig) {
    const checked = checkConfig(config);
    super(runtime, (operands) => wire.moduleConfig(runtime.args, moduleRecord(checked, operands)), {
      kind: moduleKinds.attention,
      argument: 'multiHeadAttention',
      noun: 'a module',
      filling: 'loadStateDict()',
    });
    this.config = Object.freeze(checked);
    Object.freeze(this);
  }

  loadStateDict(dict: StateDict): void {
    this.load(dict);
  }

  forward<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | ModuleInputs,
    given: ForwardOptions<R, T> = {},
  ): ModuleResult<R, T> {
    this.ready();
    const options = readOptions(given, forwardNames, 'forward');
    const inputs = inputsOf(query);
    const { config, runtime } = this;

    return call(runtime, (operands) => {
      const q = operands.input(inputs.query, ['f32'], 'query');
      const k = operands.optional(inputs.key, ['f32'], 'key');
      const v = operands.optional(inputs.value, ['f32'], 'value');
      const { batch, tokens: queries } = this.#extents(q.shape);
      const keys = this.#extents((k ?? q).shape).tokens;
      const record = moduleOptions(options, operands, config, { batch, queries, keys });
      const appended = (config.addBiasKv ? 1 : 0) + (config.addZeroAttn ? 1 : 0);
      const shapes = this.#outputShapes(q.shape, keys + appended, record.skipOutProj);
      return runModule(runtime, operands, {
        options,
        shapes,
        write: (outputs, steps) => wire.moduleForward(runtime.args, { query: q, key: k, value: v }, record, outputs, steps),
        run: (raw) => raw.moduleForward(this.handle),
      }) as unknown as ModuleResult<R, T>;
    });
  }

  backward(query: TensorLike | ModuleInputs, dOut: TensorLike, given: ModuleBackwardOptions = {}): ModuleGradients {
    this.takeAll();
    const options = readOptions(given, backwardNames, 'backward', notInBackward);
    const inputs = inputsOf(query);
    const { runtime } = this;

    return call(runtime, (operands) => {
      const q = operands.input(inputs.query, ['f32'], 'query');
      const k = operands.optional(inputs.key, ['f32'], 'key');
      const v = operands.optional(inputs.value, ['f32'], 'value');
      const d = operands.input(dOut, ['f32'], 'dOut');
      const { batch, tokens: queries } = this.#extents(q.shape);
      const record = moduleOptions(options, operands, this.config, { batch, queries, keys: this.#extents((k ?? q).shape).tokens });
      const dQuery = operands.output(q.shape, 'f32', 'dQuery');
      const dKey = k && operands.output(k.shape, 'f32', 'dKey');
      const dValue = v && operands.output(v.shape, 'f32', 'dValue');
      const gradients = { dQuery: coreOf(dQuery), dKey: coreOf(dKey), dValue: coreOf(dValue) };
      wire.moduleBackward(runtime.args, { query: q, key: k, value: v }, record, d, gradients);
      operands.run((raw) => raw.moduleBackward(this.handle));
      const parameters = takeStateDict(runtime);
      return operands.disposable({ dQuery, ...(dKey && { dKey }), ...(dValue && { dValue }), parameters });
    });
  }

  step<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    given: StepOptions<R, T> = {},
  ): ModuleResult<R, T> {
    this.ready();
    const options = readOptions(given, stepNames, 'step', notInStep);
    const { runtime } = this;
    const own = ownCache(cache, runtime.heap);
    const before = own.length();

    return call(runtime, (operands) => {
      const input = operands.input(x, ['f32'], 'x');
      const { batch, tokens: queries } = this.#extents(input.shape);
      const keys = before + queries;
      const record = moduleOptions(options, operands, this.config, { batch, queries, keys });
      const shapes = this.#outputShapes(input.shape, keys, record.skipOutProj);
      return runModule(runtime, operands, {
        options,
        shapes,
        write: (outputs, steps) => wire.moduleStep(runtime.args, input, record, outputs, steps),
        run: (raw) => raw.moduleStep(this.handle, own.handle),
      }) as unknown as ModuleResult<R, T>;
    });
  }

  /** Returns batch and number of tokens of an input. The core checks its rank. */
  #extents(shape: Shape): { batch: number; tokens: number } {
    const [first = 0, second = 0] = shape;
    if (shape.length < 3) return { batch: 1, tokens: first };
    return this.config.batchFirst ? { batch: first, tokens: second } : { batch: second, tokens: first };
  }

  #outputShapes(query: Shape, keys: number, skipsOutProj: boolean) {
    const { numHeads, valueDim, outDim } = this.config;
    const { batch, tokens } = this.#extents(query);
    const batched = query.length < 3 ? [] : [batch];
    return {
      out: [...query.slice(0, -1), skipsOutProj ? numHeads * valueDim : outDim],
      weights: [...batched, numHeads, tokens, keys],
      meanWeights: [...batched, tokens, keys],
    };
  }
}

const inputNames = { query: plain, key: plain, value: plain } satisfies Names<ModuleInputs>;

/** Reads query, key and value from forward()'s first argument; throws `E_OPTION`. */
function inputsOf(given: TensorLike | ModuleInputs): ModuleInputs {
  const several = typeof given === 'object' && given !== null && 'query' in given;
  return several ? readOptions(given, inputNames, 'forward') : { query: given };
}
