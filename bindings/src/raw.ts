// The Embind module as embind.cpp declares it. Nothing above this file sees an address.

/** Four numbers, outermost axis first; what `rank` leaves unused is 0. */
export type Quad = [number, number, number, number];

/** Rank 0 with data 0 means "not given". Strides are in elements. */
export interface TensorArg {
  data: number;
  rank: number;
  shape: Quad;
  strides: Quad;
}

/** 0 none, 1 top left, 2 bottom right, 3 `offset`. */
export type RawCausal = 0 | 1 | 2 | 3;

export interface RawMasking {
  mask: TensorArg;
  bias: TensorArg;
  scale: number;
  hasScale: boolean;
  causal: RawCausal;
  offset: number;
}

export interface RawAttentionArgs extends RawMasking {
  q: TensorArg;
  k: TensorArg;
  v: TensorArg;
  out: TensorArg;
  lse: TensorArg;
  weights: TensorArg;
}

export interface RawMultiHeadAttentionArgs extends RawMasking {
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
  attention(args: RawAttentionArgs): number;
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
