// Exports that multihead/core has in addition to load().

export { MultiheadError } from './errors.js';
export { preferredBuild } from './features.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type { LoadCore, MultiheadCore } from './core_types.js';
export type * from './types.js';
