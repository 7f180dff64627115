// multihead: exact multi-head attention in WebAssembly. Importing this module has no side effects.

export * from './api.js';
export { load } from './load.js';
