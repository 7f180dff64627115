/**
 * Attention, its caches and scores, with a smaller WebAssembly module that contains nothing else.
 *
 * @module multihead/core
 */

export * from './core_api.js';
export { load } from './load_core.js';
