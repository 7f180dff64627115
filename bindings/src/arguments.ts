// What a call is given, written as numbers into a block of WebAssembly memory that arguments.h reads in the same order.

import type {
  CaptureArg,
  ModuleOptionsArg,
  ModuleOutputsArg,
  OptionsArg,
  OutputsArg,
  RawModule,
  RopeArg,
  SeedArg,
  SpanArg,
} from './raw.js';
import type { DType, Shape } from './types.js';

/** arguments.h has room for as many; the longest call writes half of them. */
const capacity = 256;

/** The core's numbers for dtypes; it does not read those of booleans. */
const dtypeCode: Record<DType, number> = { f32: 0, f16: 1, bf16: 2, bool: 0 };

/** Where a tensor lies and how it is shaped: row-major without gaps. */
export interface Operand {
  readonly address: number;
  readonly dtype: DType;
  readonly shape: Shape;
}

/** Start with begin(), write, make the call: nothing may allocate in between. */
export class Arguments {
  readonly #raw: RawModule;
  readonly #address: number;
  #block: Float64Array = new Float64Array();
  #next = 0;

  constructor(raw: RawModule) {
    this.#raw = raw;
    this.#address = raw.argumentBlock();
  }

  begin(): this {
    // A growth of the memory detaches the view.
    if (this.#block.length === 0) {
      this.#block = new Float64Array(this.#raw.HEAPU8.buffer, this.#address, capacity);
    }
    this.#next = 0;
    return this;
  }

  number(value: number): this {
    this.#block[this.#next] = value;
    this.#next += 1;
    return this;
  }

  numbers(...values: readonly number[]): this {
    for (const value of values) this.number(value);
    return this;
  }

  /** Undefined is "not given", rank 0; a scalar has rank −1. `shape` may regroup the axes. */
  tensor(operand: Operand | undefined, shape: Shape = operand?.shape ?? []): this {
    if (operand === undefined) return this.number(0);
    this.number(shape.length || -1)
      .number(operand.address)
      .number(dtypeCode[operand.dtype]);
    for (let axis = 0; axis < shape.length; axis += 1) this.number(shape[axis] as number);
    return this;
  }

  span(span: SpanArg): this {
    return this.number(span.address).number(span.length);
  }

  options(arg: OptionsArg): this {
    this.tensor(arg.mask).tensor(arg.bias);
    this.number(arg.scale === undefined ? 0 : 1);
    if (arg.scale !== undefined) this.number(arg.scale);
    this.number(arg.causal).number(arg.offset).number(arg.windowLeft).number(arg.windowRight);
    this.number(arg.windowAlignment).number(arg.windowOffset);
    this.span(arg.kvLengths).span(arg.alibiSlopes).number(arg.softcap).span(arg.sinks);
    this.number(arg.normEnabled ? 1 : 0)
      .span(arg.qGain)
      .span(arg.kGain)
      .number(arg.epsilon);
    this.rope(arg.rope).span(arg.qPositions).span(arg.kPositions);
    return this.number(arg.dropout).seed(arg.seed);
  }

  seed({ low, high }: SeedArg): this {
    return this.number(low).number(high);
  }

  rope({ style, base, rotaryDim }: RopeArg): this {
    return this.number(style).number(base).number(rotaryDim);
  }

  outputs({ out, lse, weights, dropoutMask }: OutputsArg): this {
    return this.tensor(out).tensor(lse).tensor(weights).tensor(dropoutMask);
  }

  moduleOptions(arg: ModuleOptionsArg): this {
    this.options(arg.attention);
    this.tensor(arg.attnMaskBlocked).tensor(arg.keyPaddingBlocked).tensor(arg.keyPaddingBias);
    this.number(arg.training ? 1 : 0).seed(arg.dropoutSeed);
    this.span(arg.headScales)
      .number(arg.skipOutProj ? 1 : 0)
      .number(arg.temperature);
    return this.number(arg.scaleByEmbedDim ? 1 : 0);
  }

  moduleOutputs({ out, weights, meanWeights }: ModuleOutputsArg): this {
    return this.tensor(out).tensor(weights).tensor(meanWeights);
  }

  capture({ stage, out, heads, firstRow }: CaptureArg): this {
    return this.number(stage).tensor(out).span(heads).number(firstRow);
  }

  /** The next number of what a call has written; start with begin(). */
  read(): number {
    const value = this.#block[this.#next] as number;
    this.#next += 1;
    return value;
  }
}
