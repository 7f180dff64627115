// Sparse autoencoders: directions in a value of a model, each with a feature.

import type { ModelArray, ModelSource, OpenModelOptions } from './models.js';
import type { SessionEdit, Site } from './sites.js';
import type { DisposableObject, NestedNumbers, TensorLike } from './tensor.js';

/** What a sparse autoencoder is. */
export interface SparseAutoencoderInfo {
  /** How features are computed: {@link SparseAutoencoder.encode}. */
  readonly architecture: 'standard' | 'jumprelu' | 'topk' | 'gated';
  /** The value that it was trained on, by the name of TransformerLens's hook. */
  readonly site: Site;
  /** The layer of the value, from 0. */
  readonly layer: number;
  /** E, the width of the value; for `z` that of all heads. */
  readonly width: number;
  /** F, the number of features. */
  readonly features: number;
}

/** Options of openSparseAutoencoder(); for names of the hub as in {@link OpenModelOptions}. */
export interface OpenSparseAutoencoderOptions extends Pick<OpenModelOptions, 'revision' | 'host' | 'local' | 'onFetch' | 'signal'> {
  /** The folder below the source, such as `'blocks.8.hook_resid_pre'`. Default: the source itself. */
  readonly path?: string | undefined;
}

/** Finite numbers in rows: a capture of {@link Model.run}, a tensor of dtype f32, or arrays. A Float32Array is one row. */
export type Rows = Float32Array | NestedNumbers | TensorLike;

/** A sparse autoencoder in memory of JavaScript. encode() takes about 2 ns for each number of `W_enc` and row on a Zen 3. */
export interface SparseAutoencoder extends DisposableObject {
  /** What it is. */
  readonly info: SparseAutoencoderInfo;
  /**
   * The features (…, F) of rows (…, E), of a `z` also (…, heads, E / heads). A row is normalized as `normalize_activations` says: not
   * at all; with `layer_norm` (x - mean) / (standard deviation + 1e-5), the deviation with E - 1; with `constant_norm_rescale`
   * divided by its root mean square. With `apply_b_dec_to_input`, `b_dec` is then subtracted. With p = x `W_enc`, the features are
   *
   * - standard: max(p + `b_enc`, 0)
   * - jumprelu: the same where p + `b_enc` > `threshold`, else 0
   * - topk: the same for the `k` largest p + `b_enc`, the first of equal ones, else 0. With `rescale_acts_by_decoder_norm`, `b_enc` and
   *   the columns of `W_enc` are multiplied by the norms of the rows of `W_dec`, which are divided by them
   * - gated: max(p exp(`r_mag`) + `b_mag`, 0) where p + `b_gate` > 0, else 0
   *
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION` for numbers that are not finite; `E_MEMORY`, `E_DISPOSED`
   */
  encode(rows: Rows): ModelArray;
  /**
   * The rows (…, E) of features (…, F): features `W_dec` + `b_dec`, after which the normalization is undone. Where rows are
   * normalized, `encoded` are the rows that were encoded: they give the scale.
   *
   * @throws {MultiheadError} as encode()
   */
  decode(features: Rows, encoded?: Rows): ModelArray;
  /**
   * The edit that adds `strength` times the feature's row of `W_dec` at all positions, for `edits` of a model's calls. For a
   * `z`, give the model's number of heads. A layer and a width that do not fit the model are refused by the call that edits.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_DISPOSED`
   */
  edit(feature: number, strength: number, numHeads?: number): SessionEdit;
}

/**
 * Opens a sparse autoencoder as SAELens writes it: a folder with `cfg.json`, of any version, and `sae_weights.safetensors`.
 * Sources: Cunningham et al., arXiv:2309.08600; Rajamanoharan et al., arXiv:2404.16014 (gated) and arXiv:2407.14435 (jumprelu); Gao
 * et al., arXiv:2406.04093 (topk).
 *
 * @throws {MultiheadError} `E_OPTION` naming a setting that is not supported, such as an activation norm whose factor is not in the
 *   file; `E_FORMAT` for a file or a tensor that is missing, of another shape or not finite; `E_LOAD`, `E_MEMORY`, `E_ABORTED`
 */
export type OpenSparseAutoencoder = (source: ModelSource, options?: OpenSparseAutoencoderOptions) => Promise<SparseAutoencoder>;
