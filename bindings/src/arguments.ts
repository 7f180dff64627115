// What a call is given, written as numbers into a block of WebAssembly memory that arguments.h reads in the same order.

import { MultiheadError } from './errors.js';
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

/** As in arguments.h. A module with another one is refused before it runs. */
export const wireVersion = 3;

/** As in arguments.h: how many numbers the call writes, and room for twice the longest call. */
const capacity = 256;

/** The core's numbers for dtypes; it does not read those of booleans. */
const dtypeCode: Record<DType, number> = { f32: 0, f16: 1, bf16: 2, bool: 0 };

/** What multihead::Dims holds of a shape. */
const maxRank = 8;

/** Where a tensor lies and how it is shaped: row-major without gaps. */
export interface Operand {
  readonly address: number;
  readonly dtype: DType;
  readonly shape: Shape;
}

const decoder = new TextDecoder();

/** Start with begin(), write, close(), make the call: nothing may allocate in between. */
export class Arguments {
  readonly #raw: RawModule;
  readonly #address: number;
  #block: Float64Array = new Float64Array();
  #next = 1;

  constructor(raw: RawModule) {
    this.#raw = raw;
    this.#address = raw.argumentBlock();
  }

  begin(): this {
    this.#refresh();
    this.#next = 1;
    return this;
  }

  /** Tells the core how many numbers there are: it reads as many, or refuses the call. */
  close(): void {
    if (this.#next > 1 && this.#block.length === 0) throw otherArguments();
    this.#refresh();
    this.#block[0] = this.#next - 1;
    this.#next = 1;
  }

  /** A growth of the memory detaches the view. */
  #refresh(): void {
    if (this.#block.length > 0) return;
    this.#block = new Float64Array(this.#raw.HEAPU8.buffer, this.#address, capacity);
  }

  number(value: number): this {
    if (this.#next >= capacity) throw otherArguments();
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

  /** What a call has written into the block. */
  results(): Results {
    this.#refresh();
    return new Results(this.#block, this.#raw);
  }
}

/** Reads the block from its beginning. */
export class Results {
  readonly #block: Float64Array;
  readonly #raw: RawModule;
  #next = 0;

  constructor(block: Float64Array, raw: RawModule) {
    this.#block = block;
    this.#raw = raw;
  }

  number(): number {
    const value = this.#block[this.#next];
    if (value === undefined) throw otherArguments();
    this.#next += 1;
    return value;
  }

  shape(): number[] {
    return Array.from({ length: Math.min(this.number(), maxRank) }, () => this.number());
  }

  text(): string {
    const address = this.number();
    return decoder.decode(this.#raw.HEAPU8.subarray(address, address + this.number()));
  }
}

/** A fault of the package, which no caller can cause. */
export const otherArguments = (): MultiheadError =>
  new MultiheadError('E_FATAL', {
    argument: 'multihead',
    expected: 'as many numbers as the call of the core reads',
    got: 'others',
    message: 'multihead: the package and its .wasm disagree on a call; please report this',
  });
