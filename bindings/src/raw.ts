// The module as embind.cpp declares it. Nothing above this file and arguments.ts knows how a call is written.

import type { Operand } from './arguments.js';

/** Numbers in a row; address 0 with length 0 is "not given". */
export interface SpanArg {
  readonly address: number;
  readonly length: number;
}

/** multihead::Alignment: 0 none, 1 top left, 2 bottom right, 3 bottom right of kvLengths, 4 the offset given. */
export type RawAlignment = 0 | 1 | 2 | 3 | 4;

/** multihead::Rope without positions. */
export interface RopeArg {
  readonly style: number;
  readonly base: number;
  readonly rotaryDim: number;
}

/** A number of 64 bits in two of 32. */
export interface SeedArg {
  readonly low: number;
  readonly high: number;
}

/** multihead::AttentionOptions */
export interface OptionsArg {
  mask: Operand | undefined;
  bias: Operand | undefined;
  scale: number | undefined;
  causal: RawAlignment;
  offset: number;
  windowLeft: number;
  windowRight: number;
  windowAlignment: RawAlignment;
  windowOffset: number;
  kvLengths: SpanArg;
  alibiSlopes: SpanArg;
  softcap: number;
  sinks: SpanArg;
  normEnabled: boolean;
  qGain: SpanArg;
  kGain: SpanArg;
  epsilon: number;
  rope: RopeArg;
  qPositions: SpanArg;
  kPositions: SpanArg;
  dropout: number;
  seed: SeedArg;
}

/** multihead::MultiHeadAttentionOptions */
export interface ModuleOptionsArg {
  readonly attention: OptionsArg;
  readonly attnMaskBlocked: Operand | undefined;
  readonly keyPaddingBlocked: Operand | undefined;
  readonly keyPaddingBias: Operand | undefined;
  readonly training: boolean;
  readonly dropoutSeed: SeedArg;
  readonly headScales: SpanArg;
  readonly skipOutProj: boolean;
  readonly temperature: number;
  readonly scaleByEmbedDim: boolean;
}

/** multihead::MultiHeadAttentionOutputs */
export interface ModuleOutputsArg {
  readonly out: Operand | undefined;
  readonly weights: Operand | undefined;
  readonly meanWeights: Operand | undefined;
}

/** multihead::ScoreCapture */
export interface CaptureArg {
  readonly stage: number;
  readonly out: Operand | undefined;
  readonly heads: SpanArg;
  readonly firstRow: number;
}

/** multihead::AttentionOutputs; captures are pushed before the call. */
export interface OutputsArg {
  out: Operand | undefined;
  lse: Operand | undefined;
  weights: Operand | undefined;
  dropoutMask: Operand | undefined;
}

/**
 * What calls return: multihead::StatusCode, and behind it what embind.cpp says without a status:
 * `nothingLeft` where there is no memory to start a call with, `otherArguments` where other numbers
 * were written than the call reads.
 */
export const Status = {
  ok: 0,
  shape: 1,
  option: 2,
  memory: 3,
  format: 4,
  nothingLeft: 5,
  otherArguments: 6,
} as const;

/**
 * What a call is given it finds in the block: the order is stated here. Those that compute give a
 * status code, those that make an object a handle above 0, or minus a status code. Texts come through
 * the block, as an address and a number of bytes.
 */
export interface RawModule {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** Where arguments.ts writes. */
  argumentBlock(): number;
  /** A 64-byte aligned address, or 0 when the memory is exhausted. */
  allocate(bytes: number): number;
  release(address: number): void;
  /** A capture, for the next of the three calls that take some, which consumes it even when it fails. */
  pushCapture(): number;
  /** q, k, v, options, outputs */
  attention(): number;
  /** The same, of which q, k, v, out and lse need no address. */
  prepare(): number;
  /** An address of 0 is "not given". */
  _multihead_run(handle: number, q: number, k: number, v: number, out: number, lse: number): number;
  preparedRelease(handle: number): void;
  /** q, k, options; with one capture pushed */
  attentionScores(): number;
  /** q, k, v, cuQ, cuK, options, outputs */
  attentionVarlen(): number;
  /** outA, lseA, outB, lseB */
  mergeAttention(): number;
  alibiSlopes(address: number, count: number): void;
  /** x, positions, rope, y */
  rotate(): number;
  /** form, qNope, qRope, latent, kRope, wUk, wUv, options, outputs */
  latentAttention(): number;
  /** Numbers in the order of multihead::KVCacheConfig. */
  cacheCreate(): number;
  cacheRelease(handle: number): void;
  /** k, v, counts */
  cacheAppend(handle: number): number;
  /** q, options, outputs */
  cacheAttend(handle: number): number;
  cacheTruncate(handle: number, batch: number, length: number): number;
  cacheClear(handle: number): void;
  cacheLength(handle: number, batch: number): number;
  cacheFirstKept(handle: number, batch: number): number;
  cacheBytes(handle: number): number;
  /** x, weight, bias, y */
  linear(): number;
  /** Numbers in the order of multihead::MultiHeadAttentionConfig. */
  moduleCreate(): number;
  moduleRelease(handle: number): void;
  /** tensor, name; for the next moduleLoad(), which consumes all of them even when it fails. */
  pushParameter(): number;
  moduleLoad(handle: number): number;
  /** Lists the parameters. */
  moduleState(handle: number): number;
  /** query, key, value, options, outputs, bits of the steps wanted, which it lists */
  moduleForward(handle: number): number;
  /** Numbers in the order of multihead::KVCacheConfig. */
  moduleCacheCreate(handle: number): number;
  moduleCacheRelease(handle: number): void;
  moduleCacheRewind(handle: number, length: number): number;
  moduleCacheLength(handle: number): number;
  moduleCacheBytes(handle: number): number;
  /** x, options, outputs, bits of the steps wanted, which it lists */
  moduleStep(handle: number, cache: number): number;
  /** Numbers in the order of multihead::TransformerBlockConfig. */
  blockCreate(): number;
  blockRelease(handle: number): void;
  /** As moduleLoad(); `names` is a number of multihead::ParameterNames. */
  blockLoad(handle: number, names: number): number;
  blockState(handle: number): number;
  /** x, options, out, attention_out, bits of the steps wanted, which it lists */
  blockForward(handle: number): number;
  /** As moduleCacheCreate(), and so are those of transformers: one kind of handle for all. */
  blockCacheCreate(handle: number): number;
  blockStep(handle: number, cache: number): number;
  /** Numbers in the order of multihead::TransformerConfig. */
  transformerCreate(): number;
  transformerRelease(handle: number): void;
  transformerLoad(handle: number, names: number): number;
  transformerState(handle: number): number;
  /** tokens, batch, options, logits, hidden, bits of the steps wanted, which it lists layer by layer */
  transformerForward(handle: number): number;
  transformerCacheCreate(handle: number): number;
  transformerStep(handle: number, cache: number): number;
  /** weights, tokens, and what is written to: entropy, previousToken, firstToken, induction */
  headStatistics(): number;
  /** The tensors that the last call listed, until releaseListed(). */
  listedCount(): number;
  /** Writes the name as a text, address, rank, extents, and 1 for a matrix column by column into the block. */
  listed(index: number): void;
  releaseListed(): void;
  /** Writes the last status that was not ok into the block: messages.ts reads it. */
  lastError(): void;
  /** A text. */
  simdTarget(): void;
}

/** What Emscripten's glue lets its caller replace. */
export interface ModuleOverrides {
  instantiateWasm(
    imports: WebAssembly.Imports,
    receive: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void,
  ): object;
}

export type ModuleFactory = (overrides: ModuleOverrides) => Promise<RawModule>;
