/**
 * Attention, its caches and scores, and what belongs to them, with a WebAssembly module that has nothing else.
 *
 * @module multihead/core
 */

export { load } from './load_core.js';
export { MultiheadError } from './errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type { LoadCore, MultiheadCore } from './core_types.js';
export type * from './types.js';
