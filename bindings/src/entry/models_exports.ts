// Exports that multihead/models has in addition to openModel().

import type { OpenSparseAutoencoder } from '../types/sparse_autoencoder.js';

export { MultiheadError } from '../runtime/errors.js';
export { preferredBuild } from '../load/features.js';
export { saveModel } from '../models/save.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type { LoadOptions, Simd, WasmSource, WasmUrl } from '../types/load.js';
export type * from '../types/models.js';
export type * from '../types/sparse_autoencoder.js';

/** See {@link OpenSparseAutoencoder}. */
export const openSparseAutoencoder: OpenSparseAutoencoder = async (...given) =>
  (await import('../models/sparse_autoencoder.js')).openSparseAutoencoder(...given);
