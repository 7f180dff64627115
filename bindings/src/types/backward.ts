// Inputs, options and results of attentionBackward(), and results of backward()
// of modules.

import type { MaskOptions, VarlenOptions } from './attention.js';
import type { DisposableResult, FloatTensorLike, PlainTensor, Tensor, TensorLike } from './tensor.js';

/**
 * Inputs of {@link Multihead.attentionBackward}. Other properties that a result of attention() may have are ignored, so
 * `{ q, k, v, ...result, dOut }` works.
 */
export interface AttentionBackwardInputs {
  /** (B, H_q, N_q, d_k) */
  readonly q: FloatTensorLike;
  /** (B, H_kv, N_k, d_k) */
  readonly k: FloatTensorLike;
  /** (B, H_kv, N_k, d_v), of k's dtype */
  readonly v: FloatTensorLike;
  /** (B, H_q, N_q, d_v): the output of attention() */
  readonly out: FloatTensorLike;
  /** (B, H_q, N_q): the log-sum-exp that attention() returns with `return: ['lse']` */
  readonly lse: TensorLike;
  /** (B, H_q, N_q, d_v): the gradient of the loss with respect to `out` */
  readonly dOut: FloatTensorLike;
}

/** Gradients of the loss. Each has the shape of its input, and is an array if the input is an array. */
export interface AttentionGradients {
  /** (B, H_q, N_q, d_k) */
  readonly dQ: Tensor;
  /** (B, H_kv, N_k, d_k) */
  readonly dK: Tensor;
  /** (B, H_kv, N_k, d_v) */
  readonly dV: Tensor;
  /** The shape of `bias`: summed over the axes that the bias broadcasts along. A hidden key adds 0. */
  readonly dBias: Tensor;
  /** (H_q) */
  readonly dSinks: Float32Array;
  /** (d_k): gradient of `qkNorm.qGain`. Without `qGain`, the gradient for a gain of 1. */
  readonly dQGain: Float32Array;
  /** (d_k): gradient of `qkNorm.kGain`. Without `kGain`, the gradient for a gain of 1. */
  readonly dKGain: Float32Array;
}

/** The name of a gradient. */
export type GradientName = keyof AttentionGradients;

/** Tensors to write gradients to. None of them may be one of the inputs. */
export type GivenGradients = {
  readonly [N in 'dQ' | 'dK' | 'dV' | 'dBias']?: Tensor | undefined;
};

/** Options of {@link Multihead.attentionBackward}: all options of the attention() call, plus the options below. */
export interface AttentionBackwardOptions<R extends readonly GradientName[] | undefined = readonly GradientName[] | undefined> extends MaskOptions {
  /**
   * Gradients to compute. Default: `dQ`, `dK` and `dV`, plus the gradient of each given option: `dBias`, `dSinks`,
   * `dQGain`, `dKGain`. State the names to skip one, for example the gradient of a constant bias. `dQGain` requires
   * `dQ`, and `dKGain` requires `dK`.
   */
  readonly return?: R | undefined;
  /** Tensors to write to, returned under the same names. Default new ones. */
  readonly out?: GivenGradients | undefined;
  /**
   * True: one row of `lse` is compared with the inputs, so that an `lse` of another call is an error. `false` is for
   * gradients of one part of the keys: `k` and `v` are then that part, `out` and `lse` are the result of
   * {@link Multihead.mergeAttention} over all parts, and the full `dQ` is the sum over the parts. Default `true`.
   */
  readonly checkLse?: boolean | undefined;
}

/**
 * The requested {@link AttentionGradients}. Without `return`, gradients of options are optional; if the type of
 * `return` does not state the names, all gradients are optional. The caller disposes the tensors, or the whole result
 * with `using`.
 */
export type AttentionBackwardResult<R extends readonly GradientName[] | undefined = undefined> = (R extends readonly GradientName[]
  ? number extends R['length']
    ? Partial<Pick<AttentionGradients, R[number]>>
    : Pick<AttentionGradients, R[number]>
  : Pick<AttentionGradients, 'dQ' | 'dK' | 'dV'> & Partial<Omit<AttentionGradients, 'dQ' | 'dK' | 'dV'>>) &
  DisposableResult;

/** The name of a gradient of {@link Multihead.attentionVarlenBackward}. */
export type VarlenGradientName = Exclude<GradientName, 'dBias'>;

/**
 * Options of {@link Multihead.attentionVarlenBackward}: all options of the attentionVarlen() call, plus the options
 * below.
 */
export interface VarlenBackwardOptions<R extends readonly VarlenGradientName[] | undefined = readonly VarlenGradientName[] | undefined> extends Omit<
  VarlenOptions,
  'return' | 'out' | 'outDtype'
> {
  /** Gradients to compute: see {@link AttentionBackwardOptions.return}. */
  readonly return?: R | undefined;
  /** Tensors to write to, returned under the same names. Default new ones. */
  readonly out?: Omit<GivenGradients, 'dBias'> | undefined;
  /** See {@link AttentionBackwardOptions.checkLse}; compares one row of each sequence. */
  readonly checkLse?: boolean | undefined;
}

/** The requested gradients, like {@link AttentionBackwardResult} without `dBias`. */
export type VarlenBackwardResult<R extends readonly VarlenGradientName[] | undefined = undefined> = Omit<AttentionBackwardResult<R>, 'dBias'>;

/**
 * Gradients of a loss: the result of {@link MultiHeadAttention.backward}. The caller disposes the tensors;
 * the gradients of parameters are on the JavaScript heap.
 */
export interface ModuleGradients extends DisposableResult {
  /** The shape of the query. If the query also serves as key or value, the sum over all its uses. */
  readonly dQuery: Tensor;
  /** The shape of the key; present only if a key was given. */
  readonly dKey?: Tensor;
  /** The shape of the value; present only if a value was given. */
  readonly dValue?: Tensor;
  /** Gradients by parameter name, with the names and shapes of `stateDict()`. */
  readonly parameters: Record<string, PlainTensor>;
}

/** Gradients of a loss: the result of {@link TransformerBlock.backward}. The caller disposes the tensor. */
export interface BlockGradients extends DisposableResult {
  /** (B, N, embedDim) */
  readonly dX: Tensor;
  /** Gradients by parameter name, with the names and shapes of `stateDict()`; on the JavaScript heap. */
  readonly parameters: Record<string, PlainTensor>;
}
