// The public types of `multihead/core`.

import type { LoadOptions, Multihead } from './types.js';

/**
 * The operations of `multihead/core`, with the signatures of {@link Multihead}. Not among them: modules and
 * transformers, training and gradients, `latentAttention()`, `headStatistics()`.
 */
export interface MultiheadCore
  extends Pick<
    Multihead,
    | 'backend'
    | 'tensor'
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
  > {}

/** As `load()` of `multihead`. The files are `multihead/core-relaxed.wasm` and `multihead/core-simd128.wasm`. */
export type LoadCore = (options?: LoadOptions) => Promise<MultiheadCore>;
