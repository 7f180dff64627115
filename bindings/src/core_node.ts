// `multihead/core` under the condition "node": the same as core.ts, with another way to the .wasm files.

export * from './core_api.js';
export { load } from './load_core_node.js';
