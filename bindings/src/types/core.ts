// The public types of `multihead/core`.

import type { LoadOptions, Multihead } from './index.js';

/**
 * The operations of `multihead/core`, with the signatures of {@link Multihead}. Excludes modules and transformers,
 * training and gradients, `latentAttention()` and `headStatistics()`.
 */
export interface MultiheadCore extends Pick<
  Multihead,
  | 'backend'
  | 'tensor'
  | 'zeros'
  | 'attention'
  | 'prepare'
  | 'scores'
  | 'attentionVarlen'
  | 'mergeAttention'
  | 'alibiSlopes'
  | 'rotate'
  | 'linear'
  | 'createCache'
  | 'scope'
  | 'memory'
  | 'dispose'
  | 'disposed'
  | typeof Symbol.dispose
> {}

/** Like `load()` of `multihead`, with the files `multihead/core-relaxed.wasm` and `multihead/core-simd128.wasm`. */
export type LoadCore = (options?: LoadOptions) => Promise<MultiheadCore>;
