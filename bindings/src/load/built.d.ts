// Modules that build.mjs makes of the WebAssembly builds and supplies to the bundler; vitest.config.ts does so for tests.

/** Emscripten's glue for multihead-relaxed.wasm and multihead-simd128.wasm. */
declare module 'built:glue' {
  const createGlue: import('../runtime/raw.js').CreateGlue;
  export default createGlue;
}

/** Emscripten's glue for the two builds of multihead/core. */
declare module 'built:core-glue' {
  export { default } from 'built:glue';
}

/** Emscripten's glue for the two builds of multihead/models. */
declare module 'built:models-glue' {
  export { default } from 'built:glue';
}

/** A file of the package, compiled by the bundler. */
declare module '*.wasm' {
  const wasm: WebAssembly.Module;
  export default wasm;
}

/** multihead-simd128.wasm, compressed with gzip and then written in base64. */
declare module 'built:inline-wasm' {
  const wasm: string;
  export default wasm;
}

/** multihead-core-simd128.wasm, encoded likewise. */
declare module 'built:core-inline-wasm' {
  export { default } from 'built:inline-wasm';
}

/** The text of pool_worker.js. */
declare module 'built:pool-worker-text' {
  const text: string;
  export default text;
}

/** The text of models_worker.js. */
declare module 'built:models-worker-text' {
  export { default } from 'built:pool-worker-text';
}

/** multihead-models-simd128.wasm, encoded likewise. */
declare module 'built:models-inline-wasm' {
  export { default } from 'built:inline-wasm';
}
