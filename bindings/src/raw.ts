// The Embind module as embind.cpp declares it. Nothing above this file sees an address.

/** Four numbers, outermost axis first; what `rank` leaves unused is 0. */
export type Quad = [number, number, number, number];

/** Rank 0 with data 0 means "not given". Strides are in elements. */
export interface TensorArg {
  data: number;
  /** multihead::DType: 0 f32, 1 f16, 2 bf16; not read for booleans. */
  dtype: number;
  rank: number;
  shape: Quad;
  strides: Quad;
}

/** Numbers in a row; address 0 with length 0 is "not given". */
export interface SpanArg {
  data: number;
  length: number;
}

/** multihead::Alignment: 0 none, 1 top left, 2 bottom right, 3 bottom right of kvLengths, 4 the offset given. */
export type RawAlignment = 0 | 1 | 2 | 3 | 4;

/** multihead::AttentionOptions */
export interface OptionsArg {
  mask: TensorArg;
  bias: TensorArg;
  scale: number;
  hasScale: boolean;
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
  ropeStyle: number;
  ropeBase: number;
  rotaryDim: number;
  qPositions: SpanArg;
  kPositions: SpanArg;
  dropout: number;
  seedLow: number;
  seedHigh: number;
}

/** multihead::ScoreCapture */
export interface CaptureArg {
  stage: number;
  out: TensorArg;
  heads: SpanArg;
  firstRow: number;
}

/** multihead::AttentionOutputs; captures are pushed before the call. */
export interface OutputsArg {
  out: TensorArg;
  lse: TensorArg;
  weights: TensorArg;
  dropoutMask: TensorArg;
}

/** multihead::Rope without positions. */
export interface RopeArg {
  style: number;
  base: number;
  rotaryDim: number;
}

export interface LatentInputsArg {
  qNope: TensorArg;
  qRope: TensorArg;
  latent: TensorArg;
  kRope: TensorArg;
  wUk: TensorArg;
  wUv: TensorArg;
}

/** multihead::KVCacheConfig */
export interface CacheConfigArg {
  batch: number;
  kvHeads: number;
  keyWidth: number;
  valueWidth: number;
  capacity: number;
  layout: number;
  type: number;
  pageSize: number;
  pages: number;
}

export interface RawMultiHeadAttentionArgs {
  embedDim: number;
  numHeads: number;
  headDim: number;
  qProj: TensorArg;
  kProj: TensorArg;
  vProj: TensorArg;
  qBias: TensorArg;
  kBias: TensorArg;
  vBias: TensorArg;
  outProj: TensorArg;
  outBias: TensorArg;
  x: TensorArg;
  output: TensorArg;
  options: OptionsArg;
  trace: boolean;
}

/** Status codes that calls return: multihead::StatusCode. */
export const Status = { ok: 0, shape: 1, option: 2, memory: 3, format: 4 } as const;

export interface RawError {
  code: number;
  argument: string;
  expected: string;
  got: string;
}

export interface RawModule {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** A 64-byte aligned address, or 0 when the memory is exhausted. */
  allocate(bytes: number): number;
  release(address: number): void;
  /** For the next of the three calls that take captures, which consumes it even when it fails. */
  pushCapture(capture: CaptureArg): void;
  attention(
    q: TensorArg,
    k: TensorArg,
    v: TensorArg,
    options: OptionsArg,
    outputs: OutputsArg,
  ): number;
  /** With one capture pushed. */
  attentionScores(q: TensorArg, k: TensorArg, options: OptionsArg): number;
  attentionVarlen(
    q: TensorArg,
    k: TensorArg,
    v: TensorArg,
    cuQ: SpanArg,
    cuK: SpanArg,
    options: OptionsArg,
    outputs: OutputsArg,
  ): number;
  mergeAttention(outA: TensorArg, lseA: TensorArg, outB: TensorArg, lseB: TensorArg): number;
  alibiSlopes(address: number, count: number): void;
  rotate(x: TensorArg, positions: SpanArg, rope: RopeArg, y: TensorArg): number;
  latentAttention(
    inputs: LatentInputsArg,
    form: number,
    options: OptionsArg,
    outputs: OutputsArg,
  ): number;
  /** A handle above 0, or minus a status code. */
  cacheCreate(config: CacheConfigArg): number;
  cacheRelease(handle: number): void;
  cacheAppend(handle: number, k: TensorArg, v: TensorArg, counts: SpanArg): number;
  cacheAttend(handle: number, q: TensorArg, options: OptionsArg, outputs: OutputsArg): number;
  cacheTruncate(handle: number, batch: number, length: number): number;
  cacheClear(handle: number): void;
  cacheLength(handle: number, batch: number): number;
  cacheFirstKept(handle: number, batch: number): number;
  cacheBytes(handle: number): number;
  linear(x: TensorArg, weight: TensorArg, bias: TensorArg, y: TensorArg): number;
  multiHeadAttention(args: RawMultiHeadAttentionArgs): number;
  /** The trace of the last call with `trace: true`, until releaseTrace(). */
  traceCount(): number;
  traceName(index: number): string;
  traceShape(index: number): Quad;
  traceRank(index: number): number;
  traceAddress(index: number): number;
  releaseTrace(): void;
  lastError(): RawError;
  simdTarget(): string;
  simdBuild(): 'relaxed' | 'simd128';
}

/** What Emscripten's glue lets its caller replace. */
export interface ModuleOverrides {
  instantiateWasm(
    imports: WebAssembly.Imports,
    receive: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void,
  ): object;
}

export type ModuleFactory = (overrides: ModuleOverrides) => Promise<RawModule>;
