// Modules that build.mjs makes of the WebAssembly builds and supplies to the bundler; vitest.config.ts does so for tests. In a
// name, `*` is empty, or `core-` for multihead/core, or `models-` for multihead/models.

/** Emscripten's glue for the relaxed and the simd128 build. */
declare module 'built:*glue' {
  const createGlue: import('../runtime/raw.js').CreateGlue;
  export default createGlue;
}

/** A file of the package, compiled by the bundler. */
declare module '*.wasm' {
  const wasm: WebAssembly.Module;
  export default wasm;
}

/** The simd128 build, compressed with gzip and then written in base64. */
declare module 'built:*inline-wasm' {
  const wasm: string;
  export default wasm;
}

/** The module that plans for a GPU, compressed in the same way. */
declare module 'built:gpu-wasm' {
  const wasm: string;
  export default wasm;
}

/** The text of pool_worker.js or models_worker.js. */
declare module 'built:*-worker-text' {
  const text: string;
  export default text;
}
