// Prepared attention and its gradients: calls that are checked and planned once and run many times.

import type { MaskOptions } from './attention.js';
import type { AttentionBackwardInputs, AttentionGradients, GradientName } from './backward.js';
import type { DisposableObject, FloatDType, Shape, Tensor } from './tensor.js';

/**
 * Options shared by {@link PrepareOptions} and {@link PrepareBackwardOptions}: the shapes and dtypes of the runs, and
 * options of attention(). A `mask` or `bias` that is a tensor is not copied: every run reads its current contents, and
 * it must not be disposed while the operation is in use. Typed arrays (of masks, biases, slopes, sinks, gains and
 * positions) are copied once; later writes to them have no effect. `setKvLengths()` replaces `kvLengths`.
 */
export interface PreparedCallOptions extends MaskOptions {
  /** (B, H_q, N_q, d_k): the shape of q. */
  readonly q: Shape;
  /** H_kv, which divides H_q. Default H_q. */
  readonly numKvHeads?: number | undefined;
  /** N_k. Default N_q. */
  readonly keys?: number | undefined;
  /** d_v. Default d_k. */
  readonly valueDim?: number | undefined;
  /** The dtype of q. Default `'f32'`. */
  readonly dtype?: FloatDType | undefined;
  /** The dtype of k and v. Default `dtype`. */
  readonly kvDtype?: FloatDType | undefined;
  /** The dtype of out; results are rounded to nearest, ties to even. Default `'f32'`. */
  readonly outDtype?: FloatDType | undefined;
}

/** Options of {@link Multihead.prepare}. */
export interface PrepareOptions extends PreparedCallOptions {
  /** With `['lse']`, every run also writes the log-sum-exp. Default none. */
  readonly return?: readonly 'lse'[] | undefined;
}

/** The shapes of the tensors that {@link PreparedAttention.run} and {@link PreparedBackward.run} take. */
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

/**
 * A call of {@link Multihead.attention} for tensors of fixed shapes and dtypes. Dispose it like a tensor.
 */
export interface PreparedAttention extends DisposableObject {
  /** The shapes that the tensors of a run must have. */
  readonly shapes: PreparedShapes;
  /**
   * Computes bit for bit the results of {@link Multihead.attention}. Allocates nothing. Takes tensors
   * only, of the prepared shapes and dtypes; each run may have different ones.
   *
   * @param out written to; must not be one of the inputs
   * @param lse written to; required if prepared with `return: ['lse']`, else an error
   * @throws {MultiheadError} `E_DISPOSED` if the operation, its mask or bias, or one of the tensors is
   * disposed; `E_SHAPE`; `E_OPTION` for an argument that is not a tensor of this `Multihead`, for
   * another dtype, or if `out` is an input. A call that throws writes nothing.
   */
  run(q: Tensor<FloatDType>, k: Tensor<FloatDType>, v: Tensor<FloatDType>, out: Tensor<FloatDType>, lse?: Tensor): void;
  /**
   * Replaces `kvLengths`, the number of keys per batch entry, for all following runs. Allocates nothing.
   * It allows decoding without allocations: write each new key and value into tensors of a fixed size,
   * set the new lengths, and run.
   *
   * @param lengths (B), each from 0 to N_k; copied
   * @throws {MultiheadError} `E_OPTION` if prepared without `kvLengths`, for an argument of another type
   * and for a length out of range; `E_SHAPE` for a number of lengths other than B; `E_DISPOSED`. A call
   * that throws leaves the lengths unchanged.
   */
  setKvLengths(lengths: Int32Array): void;
}

/** Options of {@link Multihead.prepareBackward}: all options of the attention() call, plus the options below. */
export interface PrepareBackwardOptions extends PreparedCallOptions {
  /** The dtype of dOut. Default `outDtype`. */
  readonly dOutDtype?: FloatDType | undefined;
  /** The gradients to compute, as in {@link AttentionBackwardOptions}. */
  readonly return?: readonly GradientName[] | undefined;
  /**
   * Required if `dBias` is among the gradients: a tensor of the shape of `bias` that every run writes to.
   * It must not be disposed while the operation is in use.
   */
  readonly out?:
    | {
        /** The shape is that of `bias`. */
        readonly dBias?: Tensor | undefined;
      }
    | undefined;
}

/** Inputs of {@link PreparedBackward.run}: the {@link AttentionBackwardInputs}, as tensors alone. */
export type PreparedBackwardInputs = {
  readonly [N in keyof AttentionBackwardInputs]: N extends 'lse' ? Tensor : Tensor<FloatDType>;
};

/** Tensors that {@link PreparedBackward.run} writes to: one for each prepared gradient. */
export type PreparedBackwardGradients = {
  readonly [N in 'dQ' | 'dK' | 'dV']?: Tensor | undefined;
};

/** The prepared gradients of sinks and gains, as new arrays. */
export type PreparedBackwardResult = Partial<Pick<AttentionGradients, 'dSinks' | 'dQGain' | 'dKGain'>>;

/**
 * A call of {@link Multihead.attentionBackward} for tensors of fixed shapes and dtypes. Dispose it like a
 * tensor.
 */
export interface PreparedBackward extends DisposableObject {
  /**
   * The shapes that the tensors of a run must have. `dOut` has the shape of `out`, each gradient the shape of its
   * input.
   */
  readonly shapes: PreparedShapes;
  /**
   * Computes bit for bit the results of {@link Multihead.attentionBackward}, and allocates no WebAssembly
   * memory. Takes tensors only, of the prepared shapes and dtypes; each run may have different ones.
   *
   * @param gradients written to: all of `dQ`, `dK` and `dV` that were prepared, and no others. None may be
   * one of the inputs
   * @throws {MultiheadError} `E_DISPOSED` if the operation, its mask, bias or `dBias`, or one of the tensors
   * is disposed; `E_SHAPE`; `E_OPTION` for an argument that is not a tensor of this `Multihead`, for
   * another dtype, if a gradient was not prepared, or if it shares memory with another tensor. A call that
   * throws writes nothing.
   */
  run(inputs: PreparedBackwardInputs, gradients?: PreparedBackwardGradients): PreparedBackwardResult;
  /** See {@link PreparedAttention.setKvLengths}. */
  setKvLengths(lengths: Int32Array): void;
}
