// Exports that multihead/core has in addition to load().

export { MultiheadError } from '../runtime/errors.js';
export { preferredBuild } from '../load/features.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type { LoadCore, MultiheadCore } from '../types/core.js';
export type * from '../types/index.js';
