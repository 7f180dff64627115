// Inputs, options and results of attentionBackward(), and results of backward()
// of modules.

import type { MaskOptions, VarlenOptions } from './attention_types.js';
import type { FloatTensorLike, PlainTensor, Tensor, TensorLike } from './tensor_types.js';

/**
 * Inputs of {@link Multihead.attentionBackward}. The other results of a call of attention() are ignored, so
 * that `{ q, k, v, ...result, dOut }` is one.
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
  /** (B, H_q, N_q): what attention() gives for `return: ['lse']` */
  readonly lse: TensorLike;
  /** (B, H_q, N_q, d_v): the gradient of the loss with respect to `out` */
  readonly dOut: FloatTensorLike;
}

/**
 * Gradients of the loss. Each has the shape of what it is the gradient of, and is an array where that is
 * one.
 */
export interface AttentionGradients {
  /** (B, H_q, N_q, d_k) */
  readonly dQ: Tensor;
  /** (B, H_kv, N_k, d_k) */
  readonly dK: Tensor;
  /** (B, H_kv, N_k, d_v) */
  readonly dV: Tensor;
  /** The shape of `bias`: summed over the axes along which the bias is shared. 0 where a key is hidden. */
  readonly dBias: Tensor;
  /** (H_q) */
  readonly dSinks: Float32Array;
  /** (d_k), of `qkNorm.qGain`; of a gain of 1 if that is not given. */
  readonly dQGain: Float32Array;
  /** (d_k), of `qkNorm.kGain`; of a gain of 1 if that is not given. */
  readonly dKGain: Float32Array;
}

/** The name of a gradient. */
export type GradientName = keyof AttentionGradients;

/** Tensors to write gradients to. None of them may be one of the inputs. */
export type GivenGradients = {
  readonly [N in 'dQ' | 'dK' | 'dV' | 'dBias']?: Tensor | undefined;
};

/** Options of {@link Multihead.attentionBackward}: those that the call of attention() had, and these. */
export interface AttentionBackwardOptions<
  R extends readonly GradientName[] | undefined = readonly GradientName[] | undefined,
> extends MaskOptions {
  /**
   * The gradients to compute. Default: `dQ`, `dK` and `dV`, and those of the options given: `dBias`,
   * `dSinks`, `dQGain`, `dKGain`. State them to skip one, such as that of a constant bias. `dQGain` needs
   * `dQ` beside it, and `dKGain` needs `dK`.
   */
  readonly return?: R | undefined;
  /** Tensors to write to, returned under the same names. Default new ones. */
  readonly out?: GivenGradients | undefined;
  /**
   * Whether one row of `lse` is compared with the inputs, so that an `lse` of another call is refused.
   * Default `true`. `false` for one part of the keys: `k` and `v` are then those of the part, `out` and `lse`
   * those of {@link Multihead.mergeAttention} over all parts; `dQ` is the sum over the parts.
   */
  readonly checkLse?: boolean | undefined;
}

/**
 * The requested {@link AttentionGradients}. Without `return`, those of options are optional; if the type of
 * `return` does not state the names, all are. The caller disposes the tensors.
 */
export type AttentionBackwardResult<
  R extends readonly GradientName[] | undefined = undefined,
> = R extends readonly GradientName[]
  ? number extends R['length']
    ? Partial<Pick<AttentionGradients, R[number]>>
    : Pick<AttentionGradients, R[number]>
  : Pick<AttentionGradients, 'dQ' | 'dK' | 'dV'> & Partial<Omit<AttentionGradients, 'dQ' | 'dK' | 'dV'>>;

/** The name of a gradient of {@link Multihead.attentionVarlenBackward}. */
export type VarlenGradientName = Exclude<GradientName, 'dBias'>;

/** Options of {@link Multihead.attentionVarlenBackward}: those that the call of attentionVarlen() had, and these. */
export interface VarlenBackwardOptions<
  R extends readonly VarlenGradientName[] | undefined = readonly VarlenGradientName[] | undefined,
> extends Omit<VarlenOptions, 'return' | 'out' | 'outDtype'> {
  /** As in {@link AttentionBackwardOptions}. */
  readonly return?: R | undefined;
  /** Tensors to write to, returned under the same names. Default new ones. */
  readonly out?: Omit<GivenGradients, 'dBias'> | undefined;
  /** As in {@link AttentionBackwardOptions}, for one row of each sequence. */
  readonly checkLse?: boolean | undefined;
}

/** As {@link AttentionBackwardResult}, without `dBias`. */
export type VarlenBackwardResult<R extends readonly VarlenGradientName[] | undefined = undefined> = Omit<
  AttentionBackwardResult<R>,
  'dBias'
>;

/**
 * Gradients of a loss: the result of {@link MultiHeadAttention.backward}. The caller disposes the tensors;
 * the gradients of parameters are on the JavaScript heap.
 */
export interface ModuleGradients {
  /** The shape of the query. Of an input that is also key or value by default: the sum of all its uses. */
  readonly dQuery: Tensor;
  /** The shape of the key; only if there was one. */
  readonly dKey?: Tensor;
  /** The shape of the value; only if there was one. */
  readonly dValue?: Tensor;
  /** Under the names and in the shapes of `stateDict()`. */
  readonly parameters: Record<string, PlainTensor>;
}

/** Gradients of a loss: the result of {@link TransformerBlock.backward}. The caller disposes the tensor. */
export interface BlockGradients {
  /** (B, N, embedDim) */
  readonly dX: Tensor;
  /** On the JavaScript heap, under the names and in the shapes of `stateDict()`. */
  readonly parameters: Record<string, PlainTensor>;
}
