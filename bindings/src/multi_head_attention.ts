// A multi-head attention layer: weights kept in WebAssembly memory, and calls with them.

import { maskNames, optionsArg } from './attention_options.js';
import { MultiheadError } from './errors.js';
import { call, checkRank, checkTensorLike, type Runtime } from './operands.js';
import { checkCount, checkOptions } from './options.js';
import { formatShape, WasmTensor } from './tensor.js';
import { checkTrace, readTrace } from './trace.js';
import type {
  ForwardOptions,
  ForwardResult,
  MultiHeadAttention,
  MultiHeadAttentionConfig,
  Shape,
  TensorLike,
  TraceOf,
  TraceOption,
} from './types.js';

const weightNames = [
  'qProj',
  'kProj',
  'vProj',
  'qBias',
  'kBias',
  'vBias',
  'outProj',
  'outBias',
] as const;
type WeightName = (typeof weightNames)[number];
const required: readonly WeightName[] = ['qProj', 'kProj', 'vProj'];

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

export class WasmMultiHeadAttention implements MultiHeadAttention {
  readonly embedDim: number;
  readonly numHeads: number;
  readonly headDim: number;
  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #weights = new Map<WeightName, WasmTensor<'f32'>>();
  #disposed = false;

  constructor(runtime: Runtime, config: MultiHeadAttentionConfig) {
    checkOptions(config, ['embedDim', 'numHeads', 'headDim', 'weights'], 'multiHeadAttention');
    this.#runtime = runtime;
    this.embedDim = checkCount(config.embedDim, 'embedDim');
    this.numHeads = checkCount(config.numHeads, 'numHeads');
    this.headDim =
      config.headDim === undefined
        ? headWidth(this.embedDim, this.numHeads)
        : checkCount(config.headDim, 'headDim');

    const { weights } = config;
    checkOptions(weights, weightNames, 'weights');
    if (weights.outBias !== undefined && weights.outProj === undefined) {
      throw new MultiheadError('E_OPTION', {
        argument: 'weights.outBias',
        expected: 'an outProj with it',
        got: 'none',
      });
    }
    try {
      for (const name of weightNames) this.#copyWeight(name, weights[name]);
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  forward<const T extends TraceOption = false>(
    x: TensorLike,
    options: ForwardOptions<T> = {},
  ): ForwardResult<T> {
    if (this.#disposed) {
      throw new MultiheadError('E_DISPOSED', {
        argument: 'multiHeadAttention',
        expected: 'a layer that is not disposed',
        got: 'a disposed one',
      });
    }
    checkOptions(options, [...maskNames, 'trace'], 'forward');
    const traced = checkTrace(options.trace);
    const runtime = this.#runtime;

    return call(runtime, (operands) => {
      const input = operands.input(x, ['f32'], 'x');
      checkRank(input, '(B, N, embedDim)', 'x');
      const [batch = 0, tokens = 0] = input.shape;
      const masking = optionsArg(options, operands, {
        batch,
        heads: this.numHeads,
        queries: tokens,
        keys: tokens,
        width: this.headDim,
      });
      const output = operands.output([batch, tokens, this.#outputWidth], 'f32', 'output');

      const { args, raw, heap } = runtime;
      args.begin().numbers(this.embedDim, this.numHeads, this.headDim);
      for (const name of weightNames) args.tensor(this.#weights.get(name));
      args.tensor(input).options(masking).tensor(output);
      args.number(traced.length > 0 ? 1 : 0);
      try {
        operands.check(raw.multiHeadAttention());
        const trace = options.trace ? readTrace(raw, heap, traced) : undefined;
        return { output, trace: trace as TraceOf<T> };
      } finally {
        if (traced.length > 0) raw.releaseTrace();
      }
    });
  }

  dispose(): void {
    this.#disposed = true;
    for (const tensor of this.#weights.values()) tensor.dispose();
    this.#weights.clear();
  }

  get #mergedWidth(): number {
    return this.numHeads * this.headDim;
  }

  get #outputWidth(): number {
    return this.#weights.has('outProj') ? this.embedDim : this.#mergedWidth;
  }

  #shapeOf(name: WeightName): Shape {
    if (name === 'outProj') return [this.embedDim, this.#mergedWidth];
    if (name === 'outBias') return [this.embedDim];
    return required.includes(name) ? [this.#mergedWidth, this.embedDim] : [this.#mergedWidth];
  }

  #copyWeight(name: WeightName, given: TensorLike | undefined): void {
    const argument = `weights.${name}`;
    const shape = this.#shapeOf(name);
    if (given === undefined) {
      if (!required.includes(name)) return;
      throw new MultiheadError('E_OPTION', {
        argument,
        expected: `a tensor of shape ${formatShape(shape)}`,
        got: 'undefined',
      });
    }
    const { shape: got, data } = checkTensorLike(given, ['f32'], argument);
    if (formatShape(got) !== formatShape(shape)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: formatShape(shape),
        got: formatShape(got),
      });
    }
    this.#weights.set(name, WasmTensor.copy(this.#runtime.heap, 'f32', shape, data, argument));
  }
}
