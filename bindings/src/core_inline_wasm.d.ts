// multihead-core-simd128.wasm, as inline_wasm.js has that of multihead.
export { default } from './inline_wasm.js';
