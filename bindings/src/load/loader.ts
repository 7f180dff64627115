// load(): chooses the build, compiles and instantiates it. Calls without options share one instance.

import { version, wireVersion } from '../generated/tables.js';
import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { CoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import { type GuardedModule, guardModule } from '../runtime/guard.js';
import { checkCallback, type Names, plain, readOptions } from '../runtime/options.js';
import type { CreateGlue, ModuleOverrides, RawModule } from '../runtime/raw.js';
import { makeDisposable } from '../runtime/symbol_dispose.js';
import { describe, WasmTensor } from '../runtime/tensor.js';
import { quoted, utf8Decoder } from '../runtime/text.js';
import type { Backend, LoadOptions, Simd, WasmSource } from '../types/index.js';
import { chooseSimd } from './features.js';
import { Progress } from './progress.js';
import {
  cancel,
  checkHashes,
  type CompiledWasm,
  compileWasm,
  type FindAnalyses,
  type FindWasm,
  loadError,
  located,
  readFiles,
  type Reading,
  type WasmFiles,
} from './source.js';

type Exchange = NonNullable<ModuleOverrides['exchange']>;
type ReadParameter = NonNullable<ModuleOverrides['readParameter']>;

/** Connects the core to other members of a team; `link` is set during calls of a team. */
export interface TeamSocket {
  link: { readonly exchange: Exchange } | undefined;
}

/** The options of load(), which createPool() passes on. */
export const loadNames = {
  wasm: plain,
  simd: plain,
  integrity: plain,
  onProgress: plain,
  signal: plain,
} satisfies Names<LoadOptions>;

/** The compiled module and the socket of each instance, for multihead/pool. */
export const moduleOf = new WeakMap<object, WebAssembly.Module>();
export const socketOf = new WeakMap<object, TeamSocket>();

/** The backend without `target`, which only the core knows. */
export type LoadedBackend = Omit<Backend, 'target'>;

/** The part of the package that an entry point loads: everything, or a part with its own WebAssembly builds. */
export interface Contents<Api extends object> {
  /** Name of the part in the builds. */
  readonly part?: 'core' | 'models';
  readonly createGlue: CreateGlue;
  /** @param loadAnalyses see {@link WasmFiles.analyses} */
  readonly createApi: (raw: GuardedModule, backend: LoadedBackend, loadAnalyses: () => Promise<void>) => Api;
  /** Called by the core while a module loads its parameters. */
  readonly readParameter?: ReadParameter;
}

/**
 * Makes the load() of one entry point. Nothing runs before its first call.
 *
 * @param findFiles returns the .wasm files that load() uses if its caller gives none
 * @returns load(), with the source of the analyses as second argument if it is not one of these files
 */
export function createLoader<Api extends object>(
  findFiles: () => WasmFiles | Promise<WasmFiles>,
  contents: Contents<Api>,
): (options?: LoadOptions, findAnalyses?: FindAnalyses) => Promise<Api> {
  const besideOthers: FindAnalyses = async (simd) => (await findFiles()).analyses?.(simd) as WasmSource;
  /** The instance that calls without options share; undefined after a failed load and after E_FATAL. */
  let shared: { readonly loading: Promise<Api>; readonly progress: Progress } | undefined;

  function loadShared() {
    const progress = new Progress();
    const forget = (): void => {
      if (shared === made) shared = undefined;
    };
    const reading = { signal: undefined, integrity: undefined, progress };
    const made = { loading: instantiate(contents, findFiles, besideOthers, 'auto', reading, forget), progress };
    made.loading.catch(forget);
    return made;
  }

  return async function load(given: LoadOptions = {}, findAnalyses?: FindAnalyses): Promise<Api> {
    const options = readOptions(given, loadNames, 'load');
    const { wasm, simd = 'auto', integrity, signal, onProgress } = options;
    checkSignal(signal);
    if (simd !== 'auto' && simd !== 'relaxed' && simd !== 'simd128') {
      throw optionError('simd', '"auto", "relaxed" or "simd128"', describe(simd));
    }
    checkCallback(onProgress, 'onProgress');
    checkHashes(integrity);
    const own = wasm === undefined ? undefined : readFiles(wasm);
    if (signal?.aborted) throw abortedError(signal, 'load');
    if (own !== undefined || simd !== 'auto' || integrity !== undefined || findAnalyses !== undefined) {
      const find = own === undefined ? findFiles : () => own;
      const progress = new Progress();
      const loading = instantiate(contents, find, findAnalyses ?? besideOthers, simd, { signal, integrity, progress });
      return progress.watch(abortable(loading, signal, 'load'), onProgress);
    }
    const { loading, progress } = (shared ??= loadShared());
    return progress.watch(abortable(loading, signal, 'load'), onProgress);
  };
}

async function instantiate<Api extends object>(
  { part, createGlue, createApi, readParameter }: Contents<Api>,
  findFiles: () => WasmFiles | Promise<WasmFiles>,
  findAnalyses: FindAnalyses,
  wanted: Simd | 'auto',
  reading: Reading,
  onDeath = (): void => {},
): Promise<Api> {
  const files = await findFiles();
  const chosen = chooseSimd(wanted, files.relaxed !== undefined);
  const find = files[chosen.simd] ?? files.simd128;
  const place = { argument: files.perBuild === true ? `wasm.${chosen.simd}` : 'wasm', advice: files.advice };
  const source = await located(find, place);
  if (files.perBuild === true) {
    const other = await files[chosen.simd === 'relaxed' ? 'simd128' : 'relaxed']?.();
    if (other !== source) cancel(other);
  }
  const wasm = await compileWasm(source, place, reading);
  const builds: readonly Simd[] = wanted === 'auto' && files.single === true ? ['relaxed', 'simd128'] : [chosen.simd];
  const simd = checkIdentity(builds, part, wasm);
  const why = simd === chosen.simd ? chosen.why : 'the file that was given is of this build';
  const socket: TeamSocket = { link: undefined };
  const { raw, link } = await createRaw(createGlue, wasm, { exchange: (...args) => socket.link?.exchange(...args) ?? 0, readParameter });
  let analyses: Promise<void> | undefined;
  const loadAnalyses = (): Promise<void> => {
    analyses ??= linkAnalyses(() => findAnalyses(simd), simd, link, reading.integrity);
    analyses.catch(() => (analyses = undefined));
    return analyses;
  };
  makeDisposable(WasmTensor, CoreObject);
  const backend = { simd, version, wasmBytes: wasm.bytes, why };
  const multihead = createApi(guardModule(raw, onDeath), backend, loadAnalyses);
  moduleOf.set(multihead, wasm.module);
  socketOf.set(multihead, socket);
  return multihead;
}

/**
 * Returns which of the `builds` the module is. Throws `E_LOAD` unless its custom section "multihead", which embind.cpp writes,
 * names this version, wire version and one of them. This check prevents running code of a wrong module.
 */
function checkIdentity(builds: readonly Simd[], part: string | undefined, wasm: CompiledWasm): Simd {
  const [section] = WebAssembly.Module.customSections(wasm.module, 'multihead');
  const found = section === undefined ? undefined : utf8Decoder().decode(section);
  const named = (simd: Simd): string => `${version} wire ${wireVersion} ${part === undefined ? simd : `${part}-${simd}`}`;
  const simd = builds.find((each) => named(each) === found);
  if (simd !== undefined) return simd;
  const got = found === undefined ? 'it does not say that it is multihead' : `it is ${quoted(found)}`;
  throw loadError(wasm, `it is not multihead ${version}'s module for this build (${got})`);
}

/** Takes the functions of a second module into an instance. */
type Link = (module: WebAssembly.Module) => Promise<unknown>;

async function createRaw(
  create: Contents<object>['createGlue'],
  wasm: CompiledWasm,
  callbacks: Pick<ModuleOverrides, 'exchange' | 'readParameter'>,
): Promise<{ raw: RawModule; link: Link }> {
  let link: Link = () => Promise.resolve();
  try {
    const raw = await new Promise<RawModule>((resolve, reject) => {
      // The glue does not report a failed instantiation, so its errors are caught here.
      const instantiateWasm: ModuleOverrides['instantiateWasm'] = (imports, receive) => {
        WebAssembly.instantiate(wasm.module, imports)
          .then((instance) => {
            link = (module) => WebAssembly.instantiate(module, { ...imports, primary: instance.exports });
            receive(instance, wasm.module);
          })
          .catch(reject);
        return {};
      };
      create({ instantiateWasm, ...callbacks }).then(resolve, reject);
    });
    return { raw, link };
  } catch (error) {
    const what = error instanceof Error ? error.message : String(error);
    throw loadError(wasm, `it is not multihead ${version}'s module for this build (${what})`, error);
  }
}

/** Throws `E_LOAD`. */
async function linkAnalyses(find: FindWasm, simd: Simd, link: Link, integrity: string | undefined): Promise<void> {
  const advice = 'Give openModel() its address as analysesWasm; see "Where it runs" in the README';
  const place = { argument: 'analysesWasm', advice };
  const wasm = await compileWasm(await located(find, place, advice), place, { signal: undefined, integrity, progress: new Progress() });
  checkIdentity([simd], 'analyses', wasm);
  try {
    await link(wasm.module);
  } catch (error) {
    throw loadError(wasm, error instanceof Error ? error.message : String(error), error);
  }
}
