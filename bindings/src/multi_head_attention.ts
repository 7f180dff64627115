// A multi-head attention layer: a module of the core by a handle, and calls of it.

import { optionsArg, rotationNames } from './attention_options.js';
import { MultiheadError } from './errors.js';
import { ownCache, WasmLayerCache } from './layer_cache.js';
import {
  forwardNames,
  moduleOptionsArg,
  notInStep,
  runLayer,
  stepNames,
} from './layer_options.js';
import { bytesPerElement, type Holding } from './memory.js';
import { call, type Runtime } from './operands.js';
import { checkCount, checkFlag, checkNumber, checkOptions } from './options.js';
import { pushStateDict, takeStateDict } from './state_dict.js';
import { describe } from './tensor.js';
import type {
  ForwardOptions,
  LayerCacheConfig,
  LayerInputs,
  LayerResult,
  LayerReturn,
  MultiHeadAttention,
  MultiHeadAttentionCache,
  MultiHeadAttentionConfig,
  PlainTensor,
  Shape,
  StateDict,
  StepOptions,
  TensorLike,
  TraceOption,
} from './types.js';

type Config = MultiHeadAttention['config'];

const configNames = [
  ...(['embedDim', 'numHeads', 'headDim', 'numKvHeads', 'valueDim'] as const),
  ...(['kdim', 'vdim', 'outDim', 'bias', 'outProj', 'addBiasKv', 'addZeroAttn'] as const),
  ...(['batchFirst', 'sinks', 'qkNorm', 'qkNormEps', 'softcap', 'window', 'rope'] as const),
  'dropout',
] as const satisfies readonly (keyof MultiHeadAttentionConfig)[];

/** Beyond this many divisors, an error message lists the ones nearest to what was asked for. */
const maxDivisors = 16;

function headWidth(embedDim: number, numHeads: number): number {
  if (embedDim % numHeads === 0) return embedDim / numHeads;
  const divisors = new Set<number>();
  for (let n = 1; n * n <= embedDim; n += 1) {
    if (embedDim % n === 0) divisors.add(n).add(embedDim / n);
  }
  const near = [...divisors]
    .sort((a, b) => Math.abs(a - numHeads) - Math.abs(b - numHeads))
    .slice(0, maxDivisors)
    .sort((a, b) => a - b);
  const choices = near.join(', ').replace(/, (\d+)$/, ' or $1');
  throw new MultiheadError('E_OPTION', {
    argument: 'numHeads',
    expected: `a divisor of embedDim = ${embedDim}: ${choices}`,
    got: String(numHeads),
    message:
      `numHeads = ${numHeads} does not divide embedDim = ${embedDim}; ` +
      `use ${choices}, or give headDim`,
  });
}

/** Types and defaults; most values are the core's to check. Throws `E_OPTION`. */
function checkConfig(config: MultiHeadAttentionConfig): Config {
  checkOptions(config, configNames, 'multiHeadAttention');
  const count = (name: 'numKvHeads' | 'valueDim' | 'kdim' | 'vdim', otherwise: number): number =>
    config[name] === undefined ? otherwise : checkCount(config[name], name);
  const flag = (name: FlagName, otherwise: boolean): boolean =>
    config[name] === undefined ? otherwise : checkFlag(config[name], name);

  const embedDim = checkCount(config.embedDim, 'embedDim');
  const numHeads = checkCount(config.numHeads, 'numHeads');
  const headDim =
    config.headDim === undefined
      ? headWidth(embedDim, numHeads)
      : checkCount(config.headDim, 'headDim');
  const valueDim = count('valueDim', headDim);
  const outProj = flag('outProj', true);
  if (!outProj && config.outDim !== undefined) throw without('outDim', 'outProj: false');
  const projected = config.outDim === undefined ? embedDim : checkCount(config.outDim, 'outDim');
  const qkNorm = flag('qkNorm', false);
  const { qkNormEps, softcap = 0, window, rope, dropout = 0 } = config;
  if (!qkNorm && qkNormEps !== undefined) throw without('qkNormEps', 'qkNorm: false');
  if (window !== undefined) checkOptions(window, ['left', 'right'], 'window', { align: ofCalls });
  const positions = { qPositions: ofCalls, kPositions: ofCalls };
  if (rope !== undefined) checkOptions(rope, rotationNames, 'rope', positions);
  return {
    ...{ embedDim, numHeads, headDim, valueDim, outProj, qkNorm, window, rope },
    numKvHeads: count('numKvHeads', numHeads),
    kdim: count('kdim', embedDim),
    vdim: count('vdim', embedDim),
    outDim: outProj ? projected : numHeads * valueDim,
    bias: flag('bias', true),
    addBiasKv: flag('addBiasKv', false),
    addZeroAttn: flag('addZeroAttn', false),
    batchFirst: flag('batchFirst', true),
    sinks: flag('sinks', false),
    qkNormEps: checkBelow(Infinity, qkNormEps ?? 1e-6, 'qkNormEps', 'a finite number ≥ 0'),
    softcap: checkNumber(softcap, 'softcap'),
    dropout: checkBelow(1, dropout, 'dropout', '0 ≤ p < 1'),
  };
}

/** From 0 on. Where a layer has another name for an option than a call, the core would not use it. */
function checkBelow(limit: number, value: unknown, argument: string, expected: string): number {
  const number = checkNumber(value, argument, expected);
  if (number >= 0 && number < limit) return number;
  throw new MultiheadError('E_OPTION', { argument, expected, got: describe(number) });
}

type FlagName = {
  [N in keyof Config]: Config[N] extends boolean ? N : never;
}[keyof Config];

const ofCalls = 'positions are those of each call';

const without = (argument: string, other: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument, expected: `none with ${other}`, got: 'one' });

export class WasmMultiHeadAttention implements MultiHeadAttention {
  readonly config: Config;
  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #handle: number;
  readonly #holding: Holding;
  /** Of the parameters; shared with #holding, which must not refer to the layer. */
  readonly #memory = { bytes: 0 };
  #loaded = false;
  #disposed = false;

  constructor(runtime: Runtime, config: MultiHeadAttentionConfig) {
    const checked = checkConfig(config);
    this.config = Object.freeze(checked);
    this.#runtime = runtime;
    const handle = call(runtime, (operands) => {
      const { embedDim: width, numHeads: heads } = checked;
      const extents = { batch: 1, heads, queries: 1, keys: 1, width };
      const { softcap, window, rope } = checked;
      const arg = optionsArg({ softcap, window, rope }, operands, extents);
      const { args, raw } = runtime;
      args.begin().numbers(width, heads, checked.headDim, checked.numKvHeads, checked.valueDim);
      args.numbers(checked.kdim, checked.vdim, checked.outDim);
      for (const name of flagNames) args.number(checked[name] ? 1 : 0);
      args.numbers(checked.qkNormEps, arg.softcap, arg.windowLeft, arg.windowRight);
      args.rope(arg.rope).number(checked.dropout);
      const made = raw.moduleCreate();
      // What the core refuses it reports as minus a status.
      if (made <= 0) operands.check(-made);
      return made;
    });
    this.#handle = handle;
    const { heap, raw } = runtime;
    const memory = this.#memory;
    this.#holding = {
      what: () => `a layer of ${memory.bytes} bytes`,
      free() {
        raw.moduleRelease(handle);
        heap.count(-memory.bytes);
      },
    };
    heap.adopt(this, this.#holding);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  loadStateDict(dict: StateDict): void {
    const handle = this.#live();
    const runtime = this.#runtime;
    call(runtime, (operands) => {
      const bytes = pushStateDict(runtime, dict, operands) * bytesPerElement('f32');
      operands.check(runtime.raw.moduleLoad(handle));
      runtime.heap.count(bytes - this.#memory.bytes);
      this.#memory.bytes = bytes;
      this.#loaded = true;
    });
  }

  stateDict(): Record<string, PlainTensor> {
    const handle = this.#ready();
    return call(this.#runtime, (operands) => {
      operands.check(this.#runtime.raw.moduleState(handle));
      return takeStateDict(this.#runtime);
    });
  }

  forward<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | LayerInputs,
    options: ForwardOptions<R, T> = {},
  ): LayerResult<R, T> {
    const handle = this.#ready();
    checkOptions(options, forwardNames, 'forward');
    const inputs = inputsOf(query);
    const { config } = this;
    const runtime = this.#runtime;

    return call(runtime, (operands) => {
      const q = operands.input(inputs.query, ['f32'], 'query');
      const k = operands.optional(inputs.key, ['f32'], 'key');
      const v = operands.optional(inputs.value, ['f32'], 'value');
      const { batch, tokens: queries } = this.#extents(q.shape);
      const { tokens: keys } = this.#extents((k ?? q).shape);
      const extents = { batch, heads: config.numHeads, queries, keys, width: config.headDim };
      const arg = moduleOptionsArg(options, operands, extents);
      const appended = (config.addBiasKv ? 1 : 0) + (config.addZeroAttn ? 1 : 0);
      const shapes = this.#outputShapes(q.shape, keys + appended, arg.skipOutProj);
      const { args, raw } = runtime;
      return runLayer(runtime, operands, {
        options,
        shapes,
        write: () => args.begin().tensor(q).tensor(k).tensor(v).moduleOptions(arg),
        run: () => raw.moduleForward(handle),
      }) as unknown as LayerResult<R, T>;
    });
  }

  createCache(config: LayerCacheConfig): MultiHeadAttentionCache {
    const runtime = this.#runtime;
    return runtime.scopes.track(new WasmLayerCache(runtime, this.#live(), config));
  }

  step<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options: StepOptions<R, T> = {},
  ): LayerResult<R, T> {
    const handle = this.#ready();
    checkOptions(options, stepNames, 'step', notInStep);
    const { config } = this;
    const runtime = this.#runtime;
    const own = ownCache(cache, runtime.heap);
    const before = own.length;

    return call(runtime, (operands) => {
      const input = operands.input(x, ['f32'], 'x');
      const { batch, tokens: queries } = this.#extents(input.shape);
      const keys = before + queries;
      const extents = { batch, heads: config.numHeads, queries, keys, width: config.headDim };
      const arg = moduleOptionsArg(options, operands, extents);
      const shapes = this.#outputShapes(input.shape, keys, arg.skipOutProj);
      const { args, raw } = runtime;
      return runLayer(runtime, operands, {
        options,
        shapes,
        write: () => args.begin().tensor(input).moduleOptions(arg),
        run: () => raw.moduleStep(handle, own.handle),
      }) as unknown as LayerResult<R, T>;
    });
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#holding);
  }

  /** The handle; throws `E_DISPOSED`. */
  #live(): number {
    if (!this.#disposed) return this.#handle;
    throw new MultiheadError('E_DISPOSED', {
      argument: 'multiHeadAttention',
      expected: 'a layer that is not disposed',
      got: 'a disposed one',
    });
  }

  /** The handle of a layer that has parameters; throws `E_DISPOSED`, `E_OPTION`. */
  #ready(): number {
    const handle = this.#live();
    if (this.#loaded) return handle;
    throw new MultiheadError('E_OPTION', {
      argument: 'multiHeadAttention',
      expected: 'a layer with parameters: call loadStateDict() first',
      got: 'one without',
    });
  }

  /** Of tokens whose rank the core has yet to check. */
  #extents(shape: Shape): { batch: number; tokens: number } {
    const [first = 0, second = 0] = shape;
    if (shape.length < 3) return { batch: 1, tokens: first };
    return this.config.batchFirst
      ? { batch: first, tokens: second }
      : { batch: second, tokens: first };
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

/** In the order of multihead::MultiHeadAttentionConfig. */
const flagNames = [
  'bias',
  'outProj',
  'addBiasKv',
  'addZeroAttn',
  'batchFirst',
  'sinks',
  'qkNorm',
] as const satisfies readonly FlagName[];

/** Throws `E_OPTION`. */
function inputsOf(given: TensorLike | LayerInputs): LayerInputs {
  const several = typeof given === 'object' && given !== null && 'query' in given;
  if (!several) return { query: given };
  checkOptions(given, ['query', 'key', 'value'], 'forward');
  return given;
}
