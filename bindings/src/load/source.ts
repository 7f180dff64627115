// Gets the bytes of the .wasm, by fetch, from disk, or from the caller, and compiles them.

import { MultiheadError } from '../runtime/errors.js';
import { plain, readFlat } from '../runtime/options.js';
import { describe, isA, unreadable } from '../runtime/tensor.js';
import { printable } from '../runtime/text.js';
import { isArrayBuffer } from '../runtime/typed_arrays.js';
import type { LoadOptions, Simd, WasmSource } from '../types/index.js';

type FindWasm = () => WasmSource | Promise<WasmSource>;

/** Source of each build's .wasm. Some entry points have only simd128. */
export interface WasmFiles {
  readonly relaxed?: FindWasm;
  readonly simd128: FindWasm;
  /** True if the caller of load() gave a file per build, so that errors name `wasm.relaxed`. */
  readonly perBuild?: boolean;
  /** Advice for error messages if the files are missing. */
  readonly advice?: string;
}

/** Names for error messages. */
interface WasmName {
  /** The address, or a description. */
  readonly name: string;
  /** The argument of load(): `wasm` or `wasm.relaxed`. */
  readonly argument: string;
  readonly advice: string | undefined;
}

export interface CompiledWasm extends WasmName {
  readonly module: WebAssembly.Module;
  /** Size of the .wasm; 0 if the caller gave a compiled module. */
  readonly bytes: number;
}

interface FileSystem {
  access(path: string | URL): Promise<void>;
  readFile(path: string | URL): Promise<Uint8Array<ArrayBuffer>>;
}

/** Node's file system; undefined elsewhere. Accessed without import, so that bundlers need not resolve it. */
function nodeFiles(): FileSystem | undefined {
  const { process } = globalThis as {
    process?: { getBuiltinModule?(name: 'node:fs/promises'): FileSystem };
  };
  return process?.getBuiltinModule?.('node:fs/promises');
}

/** The address of a file next to a module; undefined if the file does not exist or the module's address is unknown. */
export async function fileBeside(module: string | undefined, name: string): Promise<string | undefined> {
  const files = nodeFiles();
  if (files === undefined || module === undefined) return undefined;
  const address = `${module.slice(0, module.lastIndexOf('/'))}/${name}`;
  try {
    await files.access(pathOf(address));
    return address;
  } catch {
    return undefined;
  }
}

/** The files of both builds next to a module, or undefined. */
export async function filesBeside(module: string | undefined, name: string): Promise<WasmFiles | undefined> {
  const [relaxed, simd128] = await Promise.all(
    ['relaxed', 'simd128'].map((simd) => fileBeside(module, `${name}-${simd}.wasm`)),
  );
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

/**
 * Reads the files that load() was given. Throws `E_OPTION` for an invalid value, even for a build that is not chosen.
 */
export function readFiles(wasm: NonNullable<LoadOptions['wasm']>): WasmFiles {
  if (isSource(wasm, 'wasm')) return { relaxed: () => wasm, simd128: () => wasm };
  if (typeof wasm !== 'object' || wasm === null || Array.isArray(wasm)) {
    throw notASource(wasm, 'wasm', `${kinds}, WebAssembly.Module or { relaxed, simd128 }`);
  }
  const each = readFlat<Partial<Record<Simd, unknown>>>(wasm, { relaxed: plain, simd128: plain }, 'wasm');
  const find = (simd: Simd): FindWasm => {
    const source = each[simd];
    const argument = `wasm.${simd}`;
    if (isSource(source, argument)) return () => source;
    throw notASource(source, argument, `${kinds} or WebAssembly.Module`);
  };
  return { relaxed: find('relaxed'), simd128: find('simd128'), perBuild: true };
}

/** Throws `E_OPTION` for a proxy that throws. */
function isSource(value: unknown, argument: string): value is WasmSource {
  try {
    if (typeof value === 'string' || isA(value, URL)) return true;
    return isBytes(value) || isResponse(value) || isModule(value);
  } catch (cause) {
    throw unreadable(cause, argument);
  }
}

const notASource = (value: unknown, argument: string, expected: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument, expected: `a ${expected}`, got: describe(value) });

/** Returns boolean, not a type predicate: TypeScript declares Module without members, so any object would match. */
const isModule = (source: unknown): boolean =>
  typeof WebAssembly === 'object' && isA(source, WebAssembly.Module);

const isBytes = (source: unknown): source is BufferSource =>
  isArrayBuffer(source) || ArrayBuffer.isView(source);

const isResponse = (source: unknown): source is Response =>
  typeof Response === 'function' && isA(source, Response);

/** Throws `E_LOAD` with the address and the reason. */
export async function compileWasm(
  source: WasmSource,
  place: Omit<WasmName, 'name'>,
  signal: AbortSignal | undefined,
): Promise<CompiledWasm> {
  const given = (what: string): WasmName => ({ name: `the ${what} given`, ...place });
  if (isModule(source)) {
    return { module: source as WebAssembly.Module, bytes: 0, ...given('module') };
  }
  if (isBytes(source)) return compile(source, given('bytes'));
  if (isResponse(source)) {
    const named = source.url ? { name: source.url, ...place } : given('Response');
    return compile(await readResponse(source, named), named);
  }
  const named = { name: String(source), ...place };
  return compile(await readAddress(named, signal), named);
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
const schemeOf = (address: string): string | undefined =>
  /^([a-z][a-z0-9+.-]+):/i.exec(address)?.[1]?.toLowerCase();

/** Converts an address to an argument that node:fs accepts: a path or a file: URL. */
export const pathOf = (address: string): string | URL =>
  schemeOf(address) === 'file' ? new URL(address) : address;

async function readAddress(named: WasmName, signal: AbortSignal | undefined): Promise<BufferSource> {
  const { name } = named;
  const files = nodeFiles();
  const scheme = schemeOf(name);
  try {
    if (files !== undefined && (scheme === undefined || scheme === 'file')) {
      return await files.readFile(pathOf(name));
    }
    return await readResponse(await fetch(name, signal === undefined ? {} : { signal }), named);
  } catch (error) {
    throw error instanceof MultiheadError ? error : loadError(named, reason(error), error);
  }
}

async function readResponse(response: Response, named: WasmName): Promise<ArrayBuffer> {
  if (!response.ok) {
    throw loadError(named, `HTTP status ${response.status} ${response.statusText}`.trimEnd());
  }
  try {
    return await response.arrayBuffer();
  } catch (error) {
    throw loadError(named, reason(error), error);
  }
}

/** Returns the reason if the bytes lack the WebAssembly magic number; undefined if they have it. */
function notWasm(source: BufferSource): string | undefined {
  const bytes = ArrayBuffer.isView(source)
    ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength)
    : new Uint8Array(source);
  if (bytes[0] === 0 && bytes[1] === 0x61 && bytes[2] === 0x73 && bytes[3] === 0x6d)
    return undefined;
  const page = bytes[0] === 0x3c ? '; it starts with "<", like an HTML page' : '';
  return `this is not a WebAssembly file (${bytes.length} bytes${page})`;
}
