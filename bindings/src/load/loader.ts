// load(): chooses the build, compiles and instantiates it. Calls without options share one instance.

import { type PartName, partNeeds } from '../generated/parts.js';
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
import { cancel, checkHashes, type CompiledWasm, compileWasm, type FindPart, type FindWasm } from './source.js';
import { loadError, located, readFiles, type Reading, type WasmFiles } from './source.js';

/** Connects the core to other members of a team; `link` is set during calls of a team. */
export interface TeamSocket {
  link: { readonly exchange: NonNullable<ModuleOverrides['exchange']> } | undefined;
}

/** The options of load(), which createPool() passes on. */
export const loadNames = { wasm: plain, simd: plain, integrity: plain, onProgress: plain, signal: plain } satisfies Names<LoadOptions>;

/** The compiled module and the socket of each instance, for multihead/pool. */
export const moduleOf = new WeakMap<object, WebAssembly.Module>();
export const socketOf = new WeakMap<object, TeamSocket>();

/** The backend without `target`, which only the core knows. */
export type LoadedBackend = Omit<Backend, 'target'>;

/** The parts of an instance; see parts.json. */
export interface Parts {
  /** Compiles a part, once. Throws `E_LOAD`. */
  compile(part: PartName): Promise<WebAssembly.Module>;
  /** Links a part to the instance, once. Throws `E_LOAD`. */
  load(part: PartName): Promise<void>;
  /** What parts import. */
  readonly imports: WebAssembly.Imports;
}

/** What an entry point loads: everything, or what has WebAssembly builds of its own. */
export interface Contents<Api extends object> {
  /** Its name in the builds. */
  readonly part?: 'core' | 'models';
  readonly createGlue: CreateGlue;
  readonly createApi: (raw: GuardedModule, backend: LoadedBackend, parts: Parts) => Api;
  /** Called by the core while a module loads its parameters. */
  readonly readParameter?: NonNullable<ModuleOverrides['readParameter']>;
}

/** Remembers the promises that `make` gives, except those that are rejected. */
export function remembered<K, V>(make: (key: K) => Promise<V>): (key: K) => Promise<V> {
  const made = new Map<K, Promise<V>>();
  return (key) => {
    const promise = made.get(key) ?? make(key);
    made.set(key, promise);
    promise.catch(() => made.delete(key));
    return promise;
  };
}

/**
 * Makes the load() of one entry point. Nothing runs before its first call.
 *
 * @param findFiles returns the .wasm files that load() uses if its caller gives none
 * @returns load(), with a function that finds parts as second argument if they are not among these files
 */
export function createLoader<Api extends object>(
  findFiles: () => WasmFiles | Promise<WasmFiles>,
  contents: Contents<Api>,
): (options?: LoadOptions, findPart?: FindPart) => Promise<Api> {
  const besideOthers = async (part: PartName, simd: Simd) => (await findFiles()).part?.(part, simd) as WasmSource;
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

  return async function load(given: LoadOptions = {}, findPart?: FindPart): Promise<Api> {
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
    if (own !== undefined || simd !== 'auto' || integrity !== undefined || findPart !== undefined) {
      const find = own === undefined ? findFiles : () => own;
      const progress = new Progress();
      const findAny = async (part: PartName, of: Simd) => (await findPart?.(part, of)) ?? besideOthers(part, of);
      const loading = instantiate(contents, find, findAny, simd, { signal, integrity, progress });
      return progress.watch(abortable(loading, signal, 'load'), onProgress);
    }
    const { loading, progress } = (shared ??= loadShared());
    return progress.watch(abortable(loading, signal, 'load'), onProgress);
  };
}

async function instantiate<Api extends object>(
  { part, createGlue, createApi, readParameter }: Contents<Api>,
  findFiles: () => WasmFiles | Promise<WasmFiles>,
  findPart: (part: PartName, simd: Simd) => Promise<WasmSource>,
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
  const { raw, imports } = await createRaw(createGlue, wasm, { exchange: (...args) => socket.link?.exchange(...args) ?? 0, readParameter });
  const readPart = remembered((name: PartName) => compilePart(name, () => findPart(name, simd), simd, reading.integrity));
  const parts: Parts = {
    compile: async (name) => (await readPart(name)).module,
    load: remembered(async (name: PartName) => {
      const needed = partNeeds[name];
      const [wasm] = await Promise.all([readPart(name), needed && parts.load(needed)]);
      await linked(wasm, (module) => WebAssembly.instantiate(module, imports));
    }),
    imports,
  };
  makeDisposable(WasmTensor, CoreObject);
  const backend = { simd, version, wasmBytes: wasm.bytes, why };
  const multihead = createApi(guardModule(raw, onDeath), backend, parts);
  moduleOf.set(multihead, wasm.module);
  socketOf.set(multihead, socket);
  return multihead;
}

/**
 * Returns which of the `builds` the module is. Throws `E_LOAD` unless its custom section "multihead", which identity.cc writes,
 * names this version, wire version and one of them. This check prevents running code of a wrong module.
 */
function checkIdentity(builds: readonly Simd[], part: string | undefined, wasm: CompiledWasm): Simd {
  const [section] = WebAssembly.Module.customSections(wasm.module, 'multihead');
  const found = section === undefined ? undefined : utf8Decoder().decode(section);
  const named = (simd: Simd): string => `${version} wire ${wireVersion} ${part === undefined ? simd : `${part}-${simd}`}`;
  const simd = builds.find((each) => named(each) === found);
  if (simd !== undefined) return simd;
  throw notThisBuild(wasm, found === undefined ? 'it does not say that it is multihead' : `it is ${quoted(found)}`);
}

const notThisBuild = (wasm: CompiledWasm, got: string, cause?: unknown): Error =>
  loadError(wasm, `it is not multihead ${version}'s module for this build (${got})`, cause);

/** Gives the functions of the core, and what its parts import. */
async function createRaw(
  create: CreateGlue,
  wasm: CompiledWasm,
  callbacks: Pick<ModuleOverrides, 'exchange' | 'readParameter'>,
): Promise<{ raw: RawModule; imports: WebAssembly.Imports }> {
  let imports: WebAssembly.Imports = {};
  const start = (module: WebAssembly.Module): Promise<RawModule> =>
    new Promise((resolve, reject) => {
      // The glue does not report a failed instantiation, so its errors are caught here.
      const instantiateWasm: ModuleOverrides['instantiateWasm'] = (given, receive) => {
        WebAssembly.instantiate(module, given)
          .then((instance) => {
            imports = { ...given, '': instance.exports };
            receive(instance, module);
          })
          .catch(reject);
        return {};
      };
      create({ instantiateWasm, ...callbacks }).then(resolve, reject);
    });
  return { raw: await linked(wasm, start), imports };
}

/** Throws `E_LOAD` if the module cannot be instantiated. */
async function linked<T>(wasm: CompiledWasm, start: (module: WebAssembly.Module) => Promise<T>): Promise<T> {
  try {
    return await start(wasm.module);
  } catch (error) {
    throw notThisBuild(wasm, error instanceof Error ? error.message : String(error), error);
  }
}

/** Throws `E_LOAD`. */
async function compilePart(part: PartName, find: FindWasm, simd: Simd, integrity: string | undefined): Promise<CompiledWasm> {
  const advice = `Give openModel() its address as parts.${part}; see "Where it runs" in the README`;
  const place = { argument: `parts.${part}`, advice };
  const wasm = await compileWasm(await located(find, place, advice), place, { signal: undefined, integrity, progress: new Progress() });
  checkIdentity([simd], part, wasm);
  return wasm;
}
