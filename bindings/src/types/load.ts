// Options of load(), and the description of the build that it chose.

import type { PlatformAbortSignal, PlatformModule, PlatformResponse, PlatformURL } from './platform.js';

/** `'relaxed'` uses a fused multiply-add; `'simd128'` runs in every browser since 2023. */
export type Simd = 'relaxed' | 'simd128';

/** A `.wasm` file: its address, a response with it, its bytes, or the compiled module. */
export type WasmSource = string | PlatformURL | PlatformResponse | ArrayBuffer | ArrayBufferView<ArrayBuffer> | PlatformModule;

/** Options of load(). */
export interface LoadOptions {
  /**
   * Source of the `.wasm`. Default: the files next to the package's own modules; for `multihead/inline` the build in
   * its code. `{ relaxed, simd128 }` gives one file for each choice of `simd`; a single source is the file of the build
   * that `simd` names, or with `'auto'` of either. The file must be of the same version of the package, which exports the files as
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
   * Hashes of the `.wasm`, written like the `integrity` of `fetch()`: `"sha384-…"`. The file must have one of them, so
   * name those of both builds, separated by a space, if `simd` is `'auto'`. All are of one algorithm: SHA-256, 384 or 512.
   * The hash is also checked for bytes, responses and files in Node; it needs `crypto.subtle`, which pages have under
   * HTTPS and on localhost. Default none.
   */
  readonly integrity?: string | undefined;
  /**
   * Called while the `.wasm` is loaded, with the bytes so far and their total number, which is unknown until the end if
   * the server compresses the file or does not state its length. The last call has the same number twice. A caller that
   * shares an instance that is already loaded gets only this call. If it throws, this call of load() is rejected with
   * that error. Not called for a `WebAssembly.Module`. Default none.
   */
  readonly onProgress?: ((loaded: number, total: number | undefined) => void) | undefined;
  /**
   * Aborting rejects this call with `E_ABORTED`. Other callers that wait for the same shared instance
   * are not affected. Default none.
   */
  readonly signal?: PlatformAbortSignal | undefined;
}

/**
 * Returns the address of the `.wasm` that load() without options fetches, so that a page can preload it:
 * `<link rel="preload" as="fetch" crossorigin="anonymous" href="…">`. In Node it is a `file:` URL. Undefined if the
 * build is inside the code, as in `multihead/inline` and in some bundles for Node, and in Cloudflare Workers.
 *
 * @param simd the build; default the one that this engine would load, see `preferredBuild()`
 * @throws {MultiheadError} `E_OPTION`; `E_LOAD` if the engine has no WebAssembly SIMD
 */
export type WasmUrl = (simd?: Simd) => string | undefined;

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
