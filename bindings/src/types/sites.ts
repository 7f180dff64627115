// The named values inside a model: to read them, and to change them while the model computes.

import type { NestedNumbers, TensorLike } from './tensor.js';

/**
 * A value of a layer. N tokens, S tokens of the encoder, H query heads, K key/value heads, D width of a head, E width of the
 * residual stream, M width of the MLP:
 *
 * - `resid_pre` (N, E): input of the layer
 * - `q` (N, H, D), `k` and `v` (N, K, D): queries and keys as they enter the dot product, and values
 * - `scores` (H, N, N): what the softmax reads, a row for each query
 * - `pattern` (H, N, N): attention weights
 * - `z` (N, H, D): output of each head, before the output projection
 * - `attn_out` (N, E): what attention adds to the residual stream
 * - `resid_mid` (N, E): between attention and MLP; not in models whose MLP reads `resid_pre`
 * - `mlp_hidden` (N, M): input of the MLP's last matrix
 * - `mlp_out` (N, E): what the MLP adds to the residual stream
 * - `resid_post` (N, E): output of the layer, which is `resid_pre` of the next one
 *
 * and of cross-attention in decoders with an encoder, between `resid_mid` and `mlp_hidden`:
 *
 * - `cross_q` (N, H, D), `cross_k` and `cross_v` (S, K, D): queries, and keys and values of the encoder's tokens
 * - `cross_scores` and `cross_pattern` (H, N, S), `cross_z` (N, H, D): as without `cross_`
 * - `cross_attn_out` (N, E): what cross-attention adds to the residual stream
 * - `resid_mid_cross` (N, E): between cross-attention and MLP
 *
 * The names are those of TransformerLens, but `q` and `k` are taken after the norm of heads and the rotary embedding.
 */
export type Site =
  | ('resid_pre' | 'q' | 'k' | 'v' | 'scores' | 'pattern' | 'z' | 'attn_out' | 'resid_mid' | 'mlp_hidden' | 'mlp_out' | 'resid_post')
  | ('cross_q' | 'cross_k' | 'cross_v' | 'cross_scores' | 'cross_pattern' | 'cross_z' | 'cross_attn_out' | 'resid_mid_cross');

/** A value to read. */
export interface Capture {
  /** Which value. */
  readonly site: Site;
  /** The layer, from 0. */
  readonly layer: number;
  /** Only these heads, each once, in this order; for sites with heads. Default all. */
  readonly heads?: readonly number[] | undefined;
}

/** Numbers for a part of a value, finite: one number, arrays, or a tensor of dtype f32. A Float32Array has one axis. */
export type EditValue = number | Float32Array | NestedNumbers | TensorLike;

/** The part of a value that changes. */
export interface EditPlace extends Capture {
  /** Only these positions, in `scores` and `pattern` of queries, in `cross_k` and `cross_v` of the encoder. Default all. */
  readonly tokens?: readonly number[] | undefined;
}

/**
 * A change that is possible while a text grows. Numbers broadcast to the part as in NumPy, from the last axis: the part has the
 * site's shape, with the axes of tokens and heads cut to the lists, in their order.
 */
export type SessionEdit = EditPlace &
  (
    | {
        /** The part becomes these numbers. */
        readonly set: EditValue;
      }
    | {
        /** These numbers are added to the part. */
        readonly add: EditValue;
      }
    | {
        /** The part is multiplied by this number. */
        readonly scale: number;
      }
  );

/**
 * A change of a value. Everything that is computed later uses the changed value. Edits of one place act in the order of their
 * list; keys that a query does not see stay hidden.
 */
export type Edit =
  | SessionEdit
  | (EditPlace & {
      /** The part becomes the same part of these numbers, which have the site's whole shape, such as a capture of another run. */
      readonly replace: EditValue;
    });
