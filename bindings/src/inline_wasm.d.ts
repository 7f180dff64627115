// multihead-simd128.wasm, compressed with gzip and then written in base64; build.mjs makes it.
declare const wasm: string;
export default wasm;
