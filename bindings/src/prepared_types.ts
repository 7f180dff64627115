/// <reference lib="esnext.disposable" preserve="true" />

// An attention call that is prepared once and run many times.

import type { MaskOptions } from './attention_types.js';
import type { FloatDType, Shape, Tensor } from './tensor_types.js';

/**
 * Options of {@link Multihead.prepare}: the shapes and types of its runs, and what attention() takes.
 *
 * A `mask` or `bias` that is a tensor is read by every run as it is then, and must live as long as
 * the operation is used. Typed arrays are copied once: those of masks and biases, slopes, sinks, gains
 * and positions stay as they were, and {@link PreparedAttention.setKvLengths} replaces `kvLengths`.
 */
export interface PrepareOptions extends MaskOptions {
  /** (B, H_q, N_q, d_k): the shape of q. */
  readonly q: Shape;
  /** H_kv, which divides H_q. Default H_q. */
  readonly kvHeads?: number | undefined;
  /** N_k. Default N_q. */
  readonly keys?: number | undefined;
  /** d_v. Default d_k. */
  readonly valueWidth?: number | undefined;
  /** Of q. Default `'f32'`. */
  readonly dtype?: FloatDType | undefined;
  /** Of k and v. Default `dtype`. */
  readonly kvDtype?: FloatDType | undefined;
  /** Of out; results are rounded to nearest, ties to even. Default `'f32'`. */
  readonly outDtype?: FloatDType | undefined;
  /** With `['lse']`, every run writes the log-sum-exp too. Default none. */
  readonly return?: readonly 'lse'[] | undefined;
}

/** Shapes of what a {@link PreparedAttention} is given. */
export interface PreparedShapes {
  /** (B, H_q, N_q, d_k) */
  readonly q: Shape;
  /** (B, H_kv, N_k, d_k) */
  readonly k: Shape;
  /** (B, H_kv, N_k, d_v) */
  readonly v: Shape;
  /** (B, H_q, N_q, d_v) */
  readonly out: Shape;
  /** (B, H_q, N_q) */
  readonly lse: Shape;
}

/** One call of {@link Multihead.attention}, for tensors of the same shapes again and again. Dispose it as a tensor. */
export interface PreparedAttention {
  readonly shapes: PreparedShapes;
  /**
   * Writes the very numbers that {@link Multihead.attention} would give. Allocates nothing. Tensors
   * only, of the shapes and types prepared; they may be others in every run.
   *
   * @param out written to; not one of the inputs
   * @param lse written to; given exactly where it was prepared with `return: ['lse']`
   * @throws {MultiheadError} `E_DISPOSED` for the operation, its mask or bias, or one of the tensors;
   * `E_SHAPE`; `E_OPTION` for what is no tensor of this `Multihead`, another dtype, or an `out` that is
   * an input. Nothing is written then.
   */
  run(
    q: Tensor<FloatDType>,
    k: Tensor<FloatDType>,
    v: Tensor<FloatDType>,
    out: Tensor<FloatDType>,
    lse?: Tensor,
  ): void;
  /**
   * Other `kvLengths` for the runs from now on: how many keys each entry of the batch has. With keys
   * and values that are written to tensors of a fixed size, row by row, this is decoding without a
   * call that allocates. Allocates nothing.
   *
   * @param lengths (B), each from 0 to N_k; copied
   * @throws {MultiheadError} `E_OPTION` where it was prepared without `kvLengths`, for another type
   * and for a length outside of its range; `E_SHAPE` for another count; `E_DISPOSED`. The lengths are
   * what they were then.
   */
  setKvLengths(lengths: Int32Array): void;
  readonly disposed: boolean;
  /** Frees what it holds. A second call does nothing. */
  dispose(): void;
  /** The same as {@link PreparedAttention.dispose}, for `using`. */
  [Symbol.dispose](): void;
}
