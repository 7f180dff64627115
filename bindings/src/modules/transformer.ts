// mh.transformer: a handle to a transformer in the core.

import { noSeed, seedWords } from '../attention/options.js';
import { ownCache } from '../cache/module_cache.js';
import { moduleKinds } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { optionError, shapeError } from '../runtime/errors.js';
import { call, type Operands, type Runtime } from '../runtime/operands.js';
import { checkCount, checkNames, type Names, plain, readOptions, without } from '../runtime/options.js';
import { number, readSettings, type Setting } from '../runtime/settings.js';
import { coreOf } from '../runtime/tensor.js';
import type { ForwardOptions, InitializeOptions, LoadStateDictOptions, StateDict, TraceOption, Transformer } from '../types/index.js';
import type { TransformerCache, TransformerConfig, TransformerOptions, TransformerResult, TransformerReturn } from '../types/index.js';
import type { TransformerStepOptions } from '../types/index.js';
import type { Count, Int32, Whole64 } from '../types/wire.js';
import { type BorrowedModule, CoreModule } from './core_module.js';
import { forwardNames, moduleOptions, notInStep, stepNames } from './options.js';
import { takeTraces, traceBits } from './trace.js';
import { type CheckedModelConfig, checkModelConfig, modelRecord, namesCode, toLoad } from './transformer_config.js';

const returns: readonly TransformerReturn[] = ['logits', 'hidden'];
const initialization = {
  seed: { otherwise: noSeed, read: seedWords } as Setting<Whole64>,
  embedding: number(0.5),
  weight: number(1),
  residual: number(0.7),
  output: number(0.5),
};
const initializeNames = { ...initialization, names: plain } satisfies Names<InitializeOptions>;
const notInForward = { causal: "it is the model's" };
const modelNames = { ...without(forwardNames, notInForward), batch: plain } satisfies Names<TransformerOptions>;
const notInModelStep = { ...notInStep, batch: 'it is that of the cache' };

/** Values that differ between forward() and step(). */
interface Call {
  readonly batch: Count;
  /** Tokens that the cache holds before the call. */
  readonly before: number;
  run(raw: Runtime['raw']): Int32;
}

type Options = Omit<ForwardOptions, 'return'> & {
  readonly return?: readonly TransformerReturn[] | undefined;
};

const transformerName = {
  kind: moduleKinds.transformer,
  argument: 'transformer',
  noun: 'a model',
  filling: 'loadStateDict() or initialize()',
} as const;

export class WasmTransformer extends CoreModule implements Transformer {
  readonly config: CheckedModelConfig;
  /** The owner of a borrowed model. The reference keeps the owner from being collected first. */
  #owner: object | undefined;

  constructor(runtime: Runtime, config: TransformerConfig, borrowed?: BorrowedModule) {
    const checked = checkModelConfig(config);
    const write = (operands: Operands): void => wire.transformerConfig(runtime.args, modelRecord(checked, operands));
    super(runtime, write, transformerName, borrowed);
    this.config = Object.freeze(checked);
    Object.freeze(this);
  }

  belongTo(owner: object): this {
    this.assertLive();
    this.#owner = owner;
    return this;
  }

  /** Throws `E_DISPOSED`, or `E_OPTION` if an experiment owns the parameters, which `what` would change. */
  assertOwnParameters(what: string): void {
    this.assertLive();
    if (this.#owner === undefined) return;
    throw optionError('transformer', `a model that mh.transformer() made, for ${what}`, 'the model of an experiment');
  }

  loadStateDict(dict: StateDict, options: LoadStateDictOptions = {}): void {
    this.assertOwnParameters('loadStateDict()');
    const wanted = toLoad(dict, options, this.config.tiedOutput);
    this.load(wanted.dict, wanted.names);
  }

  initialize(given: InitializeOptions = {}): void {
    this.assertOwnParameters('initialize()');
    const options = readOptions(given, initializeNames, 'initialize');
    const record = readSettings(options, initialization);
    const names = namesCode(options.names);
    call(this.runtime, (operands) => {
      wire.initialize(this.runtime.args, record, names);
      operands.run((raw) => raw.transformerInitialize(this.handle));
      this.replaced(names);
    });
  }

  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    given: TransformerOptions<R, T> = {},
  ): TransformerResult<R, T> {
    this.ready();
    const options = readOptions(given, modelNames, 'forward', notInForward);
    const batch = checkCount(options.batch ?? 1, 'batch');
    return this.#call(tokens, options, { batch, before: 0, run: (raw) => raw.moduleForward(this.handle) }) as TransformerResult<R, T>;
  }

  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: TransformerCache,
    given: TransformerStepOptions<R, T> = {},
  ): TransformerResult<R, T> {
    this.ready();
    const options = readOptions(given, stepNames, 'step', notInModelStep);
    const own = ownCache(cache, this.runtime.heap);
    const step: Call = { batch: own.batch, before: own.length(), run: (raw) => raw.moduleStep(this.handle, own.handle) };
    return this.#call(tokens, options, step) as TransformerResult<R, T>;
  }

  #call(tokens: unknown, options: Options, { batch, before, run }: Call): unknown {
    const { config, runtime } = this;
    return call(runtime, (operands) => {
      const span = operands.span(tokens, 'i32', 'tokens');
      const queries = span.length / batch;
      if (!Number.isInteger(queries)) {
        throw shapeError('tokens', `as many for each of the ${batch} batch entries`, `${span.length}`);
      }
      const { embedDim, numLayers } = config;
      const record = moduleOptions(options, operands, config, { batch, queries, keys: before + queries });
      const wanted = checkNames(options.return ?? ['logits'], returns, 'return');
      if (options.out !== undefined && !wanted.includes('logits')) {
        throw optionError('out', 'none unless logits are returned', 'one');
      }
      const bits = traceBits(options.trace);
      const logits = wanted.includes('logits')
        ? operands.output([batch, queries, config.numReadouts * config.vocabSize], 'f32', 'out', options.out)
        : undefined;
      const hidden = wanted.includes('hidden') ? operands.output([numLayers, batch, queries, embedDim], 'f32', 'hidden') : undefined;
      const outputs = { logits: coreOf(logits), hidden: coreOf(hidden) };
      wire.transformer(runtime.args, span, batch, record, outputs, bits);
      operands.run(run);
      const traces = options.trace ? takeTraces(runtime, numLayers) : undefined;
      return operands.disposable({ traces, ...(logits && { logits }), ...(hidden && { hidden }) });
    });
  }
}
