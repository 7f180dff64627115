/**
 * All of `multihead`, `multihead/training` and `multihead/pool` with the WebAssembly in one file of JavaScript, which
 * build.mjs makes of this module. For pages without a bundler, CDNs, service workers, and bundlers that do not copy the .wasm
 * files. It has the simd128 build alone.
 *
 * @module multihead/inline
 */

export * from './api.js';
export { load } from './load_inline.js';
export * from './training.js';
export { createPool } from './pool_inline.js';
export type * from './pool_types.js';
