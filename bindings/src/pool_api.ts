// Exports that every entry point with createPool() has in addition.

export { MultiheadError } from './errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type * from './pool_types.js';
