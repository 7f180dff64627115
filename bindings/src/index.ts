/**
 * Exact multi-head attention in WebAssembly. Importing this module has no side effects; {@link load} gives
 * {@link Multihead}, which has all calls.
 *
 * @module multihead
 */

export * from './api.js';
export { load } from './load.js';
