// Options of load(), and the description of the build that it chose.

import type { PlatformAbortSignal, PlatformModule, PlatformResponse, PlatformURL } from './platform.js';

/** `'relaxed'` uses a fused multiply-add; `'simd128'` runs in every browser since 2023. */
export type Simd = 'relaxed' | 'simd128';

/** A `.wasm` file: its address, a response with it, its bytes, or the compiled module. */
export type WasmSource =
  | string
  | PlatformURL
  | PlatformResponse
  | ArrayBuffer
  | ArrayBufferView<ArrayBuffer>
  | PlatformModule;

/** Options of load(). */
export interface LoadOptions {
  /**
   * Source of the `.wasm`. Default: the files next to the package's own modules; for `multihead/inline` the build in
   * its code. `{ relaxed, simd128 }` gives one file for each choice of `simd`; a single source must be the file of the
   * chosen build. The file must be of the same version of the package, which exports the files as
   * `multihead/relaxed.wasm` and `multihead/simd128.wasm`. A string or `URL` is fetched; in Node, `file:` URLs and
   * paths are read from the disk.
   */
  readonly wasm?:
    | WasmSource
    | {
        /** The file of the relaxed build. */
        readonly relaxed: WasmSource;
        /** The file of the simd128 build. */
        readonly simd128: WasmSource;
      }
    | undefined;
  /**
   * Which build to load. Default `'auto'`: the faster one, which is relaxed if the engine supports it, except in V8 below
   * 13 (Node 22, Chromium 129), else simd128. The two differ in the last bits of their results.
   */
  readonly simd?: Simd | 'auto' | undefined;
  /**
   * Aborting rejects this call with `E_ABORTED`. Other callers that wait for the same shared instance
   * are not affected. Default none.
   */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** The build that was loaded, and why it was chosen. */
export interface Backend {
  /** Which of the two builds. */
  readonly simd: Simd;
  /** Highway's name of the SIMD target, for example `"WASM"`. */
  readonly target: string;
  /** Version of the package. */
  readonly version: string;
  /** Size of the `.wasm` in bytes, uncompressed; 0 when a `WebAssembly.Module` was given. */
  readonly wasmBytes: number;
  /** Why this build was chosen, in a sentence. */
  readonly why: string;
}
