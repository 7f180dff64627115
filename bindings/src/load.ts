// Loading: choose the build, compile, instantiate. One instance serves every plain load().

import { CoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import { chooseSimd } from './features.js';
import { createMultihead } from './multihead.js';
import { checkOptions } from './options.js';
import type { ModuleFactory, RawModule } from './raw.js';
import { compileWasm, loadError, type CompiledWasm } from './source.js';
import { makeDisposable } from './symbol_dispose.js';
import { describe, WasmTensor } from './tensor.js';
import type { LoadOptions, Multihead, Simd } from './types.js';
import { version } from './version.js';

interface Build {
  glue(): Promise<{ default: ModuleFactory }>;
  wasm(): URL;
}

/** Written out in full, because bundlers look for these two forms. */
const builds: Record<Simd, Build> = {
  relaxed: {
    glue: () => import('./multihead-relaxed.mjs'),
    wasm: () => new URL('./multihead-relaxed.wasm', import.meta.url),
  },
  simd128: {
    glue: () => import('./multihead-simd128.mjs'),
    wasm: () => new URL('./multihead-simd128.wasm', import.meta.url),
  },
};

let shared: Promise<Multihead> | undefined;

/**
 * Loads the WebAssembly module.
 *
 * Without `wasm` and `simd`, every call gives the same instance; with one of them, each call makes
 * an instance with a memory of its own. A failure is not remembered: a later call tries again.
 *
 * @throws {MultiheadError} `E_LOAD` with the address and what was wrong, `E_ABORTED`, `E_OPTION`
 */
export async function load(options: LoadOptions = {}): Promise<Multihead> {
  checkOptions(options, ['wasm', 'simd', 'signal'], 'load');
  const { wasm, simd = 'auto', signal } = options;
  if (simd !== 'auto' && simd !== 'relaxed' && simd !== 'simd128') {
    throw new MultiheadError('E_OPTION', {
      argument: 'simd',
      expected: '"auto", "relaxed" or "simd128"',
      got: describe(simd),
    });
  }
  if (signal?.aborted) throw abortedError(signal);
  if (wasm !== undefined || simd !== 'auto')
    return abortable(instantiate(wasm, simd, signal), signal);

  shared ??= instantiate(undefined, simd, undefined).catch((error: unknown) => {
    shared = undefined;
    throw error;
  });
  return abortable(shared, signal);
}

async function instantiate(
  source: LoadOptions['wasm'],
  wanted: Simd | 'auto',
  signal: AbortSignal | undefined,
): Promise<Multihead> {
  const { simd, why } = chooseSimd(wanted);
  const build = builds[simd];
  const wasm = await compileWasm(source ?? build.wasm(), signal);
  const raw = await createRaw(build, wasm);
  makeDisposable(WasmTensor, CoreObject);
  return createMultihead(raw, {
    simd: raw.simdBuild(),
    target: raw.simdTarget(),
    threads: 1,
    version,
    wasmBytes: wasm.bytes,
    why,
  });
}

async function createRaw(build: Build, wasm: CompiledWasm): Promise<RawModule> {
  try {
    const { default: factory } = await build.glue();
    const raw = await new Promise<RawModule>((resolve, reject) => {
      // The glue has no way to say that an instantiation failed, so it is waited for here.
      const instantiateWasm: Parameters<ModuleFactory>[0]['instantiateWasm'] = (
        imports,
        receive,
      ) => {
        WebAssembly.instantiate(wasm.module, imports)
          .then((instance) => receive(instance, wasm.module))
          .catch(reject);
        return {};
      };
      factory({ instantiateWasm }).then(resolve, reject);
    });
    if (typeof raw.allocate !== 'function') throw new TypeError('it does not export allocate()');
    return raw;
  } catch (error) {
    const what = error instanceof Error ? error.message : String(error);
    throw loadError(
      wasm.name,
      `it is not multihead ${version}'s module for this build (${what})`,
      error,
    );
  }
}

function abortedError(signal: AbortSignal): MultiheadError {
  const cause: unknown = signal.reason;
  return new MultiheadError('E_ABORTED', {
    argument: 'signal',
    expected: 'a signal that is not aborted',
    got: cause instanceof Error ? cause.message : describe(cause),
    message: 'load() was aborted',
    cause,
  });
}

async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  let onAbort = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(abortedError(signal));
    signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
