// The file multihead-core-simd128.wasm, encoded like multihead-simd128.wasm in inline_wasm.js.
export { default } from './inline_wasm.js';
