// Gets the bytes of the .wasm, by fetch, from disk, or from the caller, and compiles them.

import { MultiheadError, optionError } from '../runtime/errors.js';
import { checkChoice, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import { nodeModule, printable } from '../runtime/text.js';
import { isArrayBuffer } from '../runtime/typed_arrays.js';
import type { LoadOptions, Simd, WasmSource, WasmUrl } from '../types/index.js';
import type { PartName } from '../generated/parts.js';
import { preferredBuild } from './features.js';
import type { Progress } from './progress.js';

export type FindWasm = () => WasmSource | Promise<WasmSource>;
/** Returns undefined for parts that are to be found elsewhere. */
export type FindPart = (part: PartName, simd: Simd) => WasmSource | undefined | Promise<WasmSource | undefined>;

/** Source of each build's .wasm. Some entry points have only simd128. */
export interface WasmFiles {
  readonly relaxed?: FindWasm;
  readonly simd128: FindWasm;
  /** multihead/models: the sources of its parts. */
  readonly part?: FindPart;
  /** True if the caller of load() gave a file per build, so that errors name `wasm.relaxed`. */
  readonly perBuild?: boolean;
  /** True if the caller of load() gave one file, which may be of either build. */
  readonly single?: boolean;
  /** Advice for error messages if the files are missing. */
  readonly advice?: string;
}

/** Names for error messages. */
interface WasmName {
  /** The address, or a description. */
  readonly name: string;
  /** The argument of load() or openModel(): `wasm`, `wasm.relaxed`, or `parts.analyses` and so on. */
  readonly argument: string;
  readonly advice: string | undefined;
}

export interface CompiledWasm extends WasmName {
  readonly module: WebAssembly.Module;
  /** Size of the .wasm; 0 if the caller gave a compiled module. */
  readonly bytes: number;
}

interface FileHandle {
  stat(): Promise<FileStatus>;
  read(buffer: Uint8Array, offset: number, length: number, position: number): Promise<{ readonly bytesRead: number }>;
  close(): Promise<void>;
}

interface FileStatus {
  readonly size: number;
  isFile(): boolean;
}

/** The part of Node's file system that is used. */
export interface FileSystem {
  access(path: string | URL): Promise<void>;
  open(path: string | URL): Promise<FileHandle>;
  stat(path: string | URL): Promise<FileStatus>;
  readdir(path: string | URL): Promise<string[]>;
  mkdir(path: string, options: { recursive: true }): Promise<unknown>;
  rename(from: string, to: string): Promise<void>;
  writeFile(path: string, bytes: Uint8Array): Promise<void>;
  readFile(path: string | URL): Promise<Uint8Array<ArrayBuffer>>;
  readFile(path: string | URL, encoding: 'utf8'): Promise<string>;
}

/** Node's file system; undefined elsewhere. */
export const nodeFiles = (): FileSystem | undefined => nodeModule('node:fs/promises');

/** The address that a file next to a module has; undefined if the module's address is unknown. */
export const addressBeside = (module: string | undefined, name: string): string | undefined =>
  module && `${module.slice(0, module.lastIndexOf('/'))}/${name}`;

/** Makes the wasmUrl() of an entry point. */
export const urlFinder =
  (find: (simd: Simd) => string | undefined): WasmUrl =>
  (simd = preferredBuild().simd) => {
    checkChoice(simd, ['relaxed', 'simd128'], 'simd');
    try {
      return find(simd);
    } catch {
      return undefined; // a bundle whose own address is unknown
    }
  };

/** The address of a file next to a module; undefined if the file does not exist or the module's address is unknown. */
export async function fileBeside(module: string | undefined, name: string): Promise<string | undefined> {
  const files = nodeFiles();
  const address = addressBeside(module, name);
  if (files === undefined || address === undefined) return undefined;
  try {
    await files.access(pathOf(address));
    return address;
  } catch {
    return undefined;
  }
}

/** The files of both builds next to a module, or undefined. */
export async function filesBeside(module: string | undefined, name: string): Promise<WasmFiles | undefined> {
  const [relaxed, simd128] = await Promise.all(['relaxed', 'simd128'].map((simd) => fileBeside(module, `${name}-${simd}.wasm`)));
  if (relaxed === undefined || simd128 === undefined) return undefined;
  return { relaxed: () => relaxed, simd128: () => simd128 };
}

export function loadError(wasm: WasmName, got: string, cause?: unknown): MultiheadError {
  const { argument, advice } = wasm;
  const name = printable(wasm.name, 400); // a data: address may be as long as the file
  return new MultiheadError('E_LOAD', {
    argument,
    expected: `the multihead .wasm file at ${name}`,
    got,
    message: `cannot load ${name}: ${got}${advice === undefined ? '' : `. ${advice}`}`,
    cause,
  });
}

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));

const kinds = 'string, URL, Response, BufferSource';
export const sourceKinds = `${kinds} or WebAssembly.Module`;

/**
 * Reads the files that load() was given. Throws `E_OPTION` for an invalid value, even for a build that is not chosen.
 */
export function readFiles(wasm: NonNullable<LoadOptions['wasm']>): WasmFiles {
  if (isSource(wasm)) return { relaxed: () => wasm, simd128: () => wasm, single: true };
  if (typeof wasm !== 'object' || wasm === null || Array.isArray(wasm)) {
    throw notASource(wasm, 'wasm', `${kinds}, WebAssembly.Module or { relaxed, simd128 }`);
  }
  const each = readOptions<Partial<Record<Simd, unknown>>>(wasm, { relaxed: plain, simd128: plain }, 'wasm');
  const find = (simd: Simd): FindWasm => {
    const source = each[simd];
    if (isSource(source)) return () => source;
    throw notASource(source, `wasm.${simd}`, sourceKinds);
  };
  return { relaxed: find('relaxed'), simd128: find('simd128'), perBuild: true };
}

export const isSource = (value: unknown): value is WasmSource =>
  typeof value === 'string' || value instanceof URL || isBytes(value) || isResponse(value) || isModule(value);

export const notASource = (value: unknown, argument: string, expected: string): MultiheadError =>
  optionError(argument, `a ${expected}`, describe(value));

/** Returns boolean, not a type predicate: TypeScript declares Module without members, so any object would match. */
const isModule = (source: unknown): boolean => typeof WebAssembly === 'object' && source instanceof WebAssembly.Module;

const isBytes = (source: unknown): source is BufferSource => isArrayBuffer(source) || ArrayBuffer.isView(source);

const isResponse = (source: unknown): source is Response => typeof Response === 'function' && source instanceof Response;

/** Hashes of one algorithm, separated by spaces, like the `integrity` of fetch(). */
const hashes = /^\s*sha(256|384|512)-\S+(\s+sha\1-\S+)*\s*$/;

/** Throws `E_OPTION`. */
export function checkHashes(integrity: unknown): void {
  if (integrity === undefined || (typeof integrity === 'string' && hashes.test(integrity))) return;
  throw optionError('integrity', 'hashes of one algorithm, such as "sha384-…"', describe(integrity));
}

/** Throws `E_LOAD`. Does not use the check of fetch(), which exists for fetched files alone and would report no progress. */
async function checkIntegrity(bytes: BufferSource, integrity: string, named: WasmName): Promise<void> {
  const bits = hashes.exec(integrity)?.[1];
  let found: string;
  try {
    // Pages have crypto.subtle under HTTPS and on localhost.
    const digest = await crypto.subtle.digest(`SHA-${bits}`, bytes);
    found = `sha${bits}-${btoa(String.fromCharCode(...new Uint8Array(digest)))}`;
  } catch (error) {
    throw loadError(named, `integrity: ${reason(error)}`, error);
  }
  if (!integrity.split(/\s+/).includes(found)) throw loadError(named, `its hash is ${found}, which integrity lacks`);
}

/** Finds the file of a build. Throws `E_LOAD` where the code has no address beside which the file could be. */
export async function located(
  find: FindWasm,
  place: Omit<WasmName, 'name'>,
  advice = 'Give load() the file or the compiled module as wasm; see "Where it runs" in the README',
): Promise<WasmSource> {
  try {
    return await find();
  } catch (error) {
    if (error instanceof MultiheadError) throw error;
    throw loadError({ ...place, name: 'the .wasm file', advice }, `the address of this code is unknown (${reason(error)})`, error);
  }
}

export interface Reading {
  readonly signal: AbortSignal | undefined;
  readonly integrity: string | undefined;
  readonly progress: Progress;
}

/** Throws `E_LOAD` with the address and the reason. */
export async function compileWasm(
  source: WasmSource,
  place: Omit<WasmName, 'name'>,
  { signal, integrity, progress }: Reading,
): Promise<CompiledWasm> {
  const given = (what: string): WasmName => ({ name: `the ${what} given`, ...place });
  if (isModule(source)) {
    if (integrity === undefined) return { module: source as WebAssembly.Module, bytes: 0, ...given('module') };
    throw optionError('integrity', 'none for a WebAssembly.Module', describe(integrity));
  }
  const { bytes, named } = await readBytes();
  progress.report(bytes.byteLength, bytes.byteLength);
  if (integrity !== undefined) await checkIntegrity(bytes, integrity, named);
  return compile(bytes, named);

  async function readBytes(): Promise<{ bytes: BufferSource; named: WasmName }> {
    if (isBytes(source)) return { bytes: source, named: given('bytes') };
    if (isResponse(source)) {
      const named = source.url ? { name: source.url, ...place } : given('Response');
      return { bytes: await readResponse(source, named, progress, signal), named };
    }
    const named = { name: String(source), ...place };
    return { bytes: await readAddress(named, signal, progress), named };
  }
}

async function compile(bytes: BufferSource, named: WasmName): Promise<CompiledWasm> {
  try {
    // Avoids compileStreaming(): it requires the MIME type application/wasm, which many servers do not send, and it
    // does not report the size.
    return { module: await WebAssembly.compile(bytes), bytes: bytes.byteLength, ...named };
  } catch (error) {
    throw loadError(named, notWasm(bytes) ?? reason(error), error);
  }
}

/** A scheme has at least two letters: "C:" is a Windows drive. */
const schemeOf = (address: string): string | undefined => /^([a-z][a-z0-9+.-]+):/i.exec(address)?.[1]?.toLowerCase();

/** Node's file system if the address is one of its files: a path, or a file: URL; else undefined. */
export const filesOf = (address: string): FileSystem | undefined => (['file', undefined].includes(schemeOf(address)) ? nodeFiles() : undefined);

/** Converts an address to an argument that node:fs accepts: a path or a file: URL. */
export const pathOf = (address: string): string | URL => (schemeOf(address) === 'file' ? new URL(address) : address);

async function readAddress(named: WasmName, signal: AbortSignal | undefined, progress: Progress): Promise<BufferSource> {
  const { name } = named;
  try {
    const files = filesOf(name);
    if (files !== undefined) return await files.readFile(pathOf(name));
    return await readResponse(await fetch(name, signal === undefined ? {} : { signal }), named, progress);
  } catch (error) {
    throw error instanceof MultiheadError ? error : loadError(named, reason(error), error);
  }
}

/** Ends the transfer of a response that nothing reads. */
export function cancel(source: unknown): void {
  if (isResponse(source)) source.body?.cancel?.().catch(() => {});
}

async function readResponse(response: Response, named: WasmName, progress: Progress, signal?: AbortSignal): Promise<ArrayBuffer> {
  if (!response.ok) {
    cancel(response);
    throw loadError(named, `HTTP status ${response.status} ${response.statusText}`.trimEnd());
  }
  try {
    const { body, headers } = response;
    // Some replacements of fetch() have another kind of stream.
    if (typeof body?.getReader !== 'function') return await response.arrayBuffer();
    // The length of a compressed response is the compressed one.
    const length = headers.has('content-encoding') ? 0 : Number(headers.get('content-length'));
    const chunks: Uint8Array<ArrayBuffer>[] = [];
    let loaded = 0;
    const reader = body.getReader();
    const onAbort = (): void => void reader.cancel().catch(() => {});
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        chunks.push(next.value);
        loaded += next.value.length;
        progress.report(loaded, length >= loaded ? length : undefined);
      }
    } finally {
      signal?.removeEventListener('abort', onAbort);
    }
    return await new Blob(chunks).arrayBuffer();
  } catch (error) {
    throw loadError(named, reason(error), error);
  }
}

/** Returns the reason if the bytes lack the WebAssembly magic number; undefined if they have it. */
function notWasm(source: BufferSource): string | undefined {
  const bytes = ArrayBuffer.isView(source) ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength) : new Uint8Array(source);
  if (bytes[0] === 0 && bytes[1] === 0x61 && bytes[2] === 0x73 && bytes[3] === 0x6d) return undefined;
  const page = bytes[0] === 0x3c ? '; it starts with "<", like an HTML page' : '';
  return `this is not a WebAssembly file (${bytes.length} bytes${page})`;
}
