// load(): chooses the build, compiles and instantiates it. Calls without options share one instance.

import { abortedError, checkSignal } from './abort.js';
import { CoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import { chooseSimd } from './features.js';
import { guardModule } from './guard.js';
import { createMultihead } from './multihead.js';
import { readFlat } from './options.js';
import type { ModuleFactory, ModuleOverrides, RawModule } from './raw.js';
import { compileWasm, loadError, type CompiledWasm } from './source.js';
import { makeDisposable } from './symbol_dispose.js';
import { wireVersion } from './tables.js';
import { describe, WasmTensor } from './tensor.js';
import type { LoadOptions, Multihead, Simd } from './types.js';
import { version } from './version.js';

interface Build {
  glue(): Promise<{ default: ModuleFactory }>;
  wasm(): URL;
}

/** Written out per build, because bundlers recognise only import() and new URL() of literal paths. */
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

type Exchange = NonNullable<ModuleOverrides['exchange']>;

/** How the core reaches other members of a team; `link` is set during calls of a team. */
export interface TeamSocket {
  link: { readonly exchange: Exchange } | undefined;
}

/** The compiled module and the socket of each instance, for multihead/pool. */
export const moduleOf = new WeakMap<Multihead, WebAssembly.Module>();
export const socketOf = new WeakMap<Multihead, TeamSocket>();

/** The instance that calls without options share; undefined after a failed load and after E_FATAL. */
let shared: Promise<Multihead> | undefined;

/**
 * Loads the WebAssembly module.
 *
 * Without `wasm` and `simd`, every call returns the same instance; with one of them, each call makes
 * a new instance with its own memory. After a failed load, and after an `E_FATAL`, the next call loads
 * again and returns a new instance.
 *
 * @throws {MultiheadError} `E_LOAD` with the address and the reason, `E_ABORTED`, `E_OPTION`
 */
export async function load(given: LoadOptions = {}): Promise<Multihead> {
  const options = readFlat(given, ['wasm', 'simd', 'signal'], 'load');
  const { wasm, simd = 'auto', signal } = options;
  checkSignal(signal);
  if (simd !== 'auto' && simd !== 'relaxed' && simd !== 'simd128') {
    throw new MultiheadError('E_OPTION', {
      argument: 'simd',
      expected: '"auto", "relaxed" or "simd128"',
      got: describe(simd),
    });
  }
  if (signal?.aborted) throw abortedError(signal, 'load');
  if (wasm !== undefined || simd !== 'auto')
    return abortable(instantiate(wasm, simd, signal), signal);

  shared ??= loadShared();
  return abortable(shared, signal);
}

function loadShared(): Promise<Multihead> {
  const forget = (): void => {
    if (shared === loading) shared = undefined;
  };
  const loading: Promise<Multihead> = instantiate(undefined, 'auto', undefined, forget);
  loading.catch(forget);
  return loading;
}

async function instantiate(
  source: LoadOptions['wasm'],
  wanted: Simd | 'auto',
  signal: AbortSignal | undefined,
  onDeath = (): void => {},
): Promise<Multihead> {
  const { simd, why } = chooseSimd(wanted);
  const build = builds[simd];
  const wasm = await compileWasm(source ?? build.wasm(), signal);
  checkIdentity(simd, wasm);
  const socket: TeamSocket = { link: undefined };
  const raw = await createRaw(build, wasm, socket);
  makeDisposable(WasmTensor, CoreObject);
  const multihead = createMultihead(guardModule(raw, onDeath), {
    simd,
    threads: 1,
    version,
    wasmBytes: wasm.bytes,
    why,
  });
  moduleOf.set(multihead, wasm.module);
  socketOf.set(multihead, socket);
  return multihead;
}

/**
 * Throws `E_LOAD` unless the module's custom section "multihead", which embind.cpp writes, names this
 * version, wire version and build. So no code of a wrong module runs.
 */
function checkIdentity(simd: Simd, { module, name }: CompiledWasm): void {
  const wanted = `${version} wire ${wireVersion} ${simd}`;
  const [section] = WebAssembly.Module.customSections(module, 'multihead');
  const found = section === undefined ? undefined : new TextDecoder().decode(section);
  if (found === wanted) return;
  const got = found === undefined ? 'it does not say that it is multihead' : `it is "${found}"`;
  throw loadError(name, `it is not multihead ${version}'s module for this build (${got})`);
}

async function createRaw(build: Build, wasm: CompiledWasm, socket: TeamSocket): Promise<RawModule> {
  try {
    const { default: factory } = await build.glue();
    const raw = await new Promise<RawModule>((resolve, reject) => {
      // The glue does not report a failed instantiation, so its errors are caught here.
      const instantiateWasm: Parameters<ModuleFactory>[0]['instantiateWasm'] = (
        imports,
        receive,
      ) => {
        WebAssembly.instantiate(wasm.module, imports)
          .then((instance) => receive(instance, wasm.module))
          .catch(reject);
        return {};
      };
      const exchange: Exchange = (...args) => socket.link?.exchange(...args) ?? 0;
      factory({ instantiateWasm, exchange }).then(resolve, reject);
    });
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

async function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  let onAbort = (): void => {};
  const aborted = new Promise<never>((_, reject) => {
    onAbort = () => reject(abortedError(signal, 'load'));
    signal.addEventListener('abort', onAbort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', onAbort);
  }
}
