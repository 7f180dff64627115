/**
 * Attention, its caches and scores, and what belongs to them, with a WebAssembly module that has nothing else.
 *
 * @module multihead/core
 */

export * from './core_api.js';
export { load } from './load_core.js';
