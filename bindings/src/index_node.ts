// `multihead` under the condition "node": the same as index.ts, with another way to the .wasm files.

export * from './api.js';
export { load } from './load_node.js';
