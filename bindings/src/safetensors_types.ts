// Safetensors files: what is read from them, and what may be written.

import type { StateDict } from './layer_types.js';
import type { DType, FloatDType, PlainTensor, Shape, TensorLike } from './tensor_types.js';

/**
 * A tensor of a safetensors file: its numbers in row-major order, 0 to 8 extents. `F32` is
 * `'f32'`, `F16` and `BF16` are the bits of `'f16'` and `'bf16'`, `BOOL` is `'bool'`, `I32` is `'i32'`.
 */
export type SafetensorsTensor =
  | { readonly dtype: 'f32'; readonly shape: Shape; readonly data: Float32Array }
  | { readonly dtype: 'f16' | 'bf16'; readonly shape: Shape; readonly data: Uint16Array }
  | { readonly dtype: 'bool'; readonly shape: Shape; readonly data: Uint8Array }
  | { readonly dtype: 'i32'; readonly shape: Shape; readonly data: Int32Array };

/** What a safetensors file holds. Records without a prototype: any name is a name. */
export interface SafetensorsFile {
  /** Every tensor by name, in the order of the header. */
  readonly tensors: Readonly<Record<string, SafetensorsTensor>>;
  /** Those of floating point: what the `loadStateDict()` of a layer or a model takes. */
  readonly stateDict: StateDict<PlainTensor<FloatDType>>;
  /** The texts under `__metadata__`; empty where there are none. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** What `writeSafetensors()` takes: tensors, typed arrays with a shape, and what was read. */
export type SafetensorsSource = Readonly<Record<string, TensorLike<DType> | SafetensorsTensor>>;

/** Options of `writeSafetensors()`. */
export interface WriteSafetensorsOptions {
  /** Texts for `__metadata__`. Libraries for Python ask for `{ format: 'pt' }`. Default none. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /**
   * Stores every tensor of floating point as this, rounded to nearest and ties to even. Default: each
   * as it is.
   */
  readonly dtype?: FloatDType | undefined;
}
