// Where the bytes of the .wasm come from: fetched, read from the disk, or given.

import { MultiheadError } from './errors.js';
import { describe } from './tensor.js';
import type { LoadOptions } from './types.js';

type Source = NonNullable<LoadOptions['wasm']>;

/** Compiled code, and what error messages call it. */
export interface CompiledWasm {
  readonly module: WebAssembly.Module;
  /** 0 when it came compiled. */
  readonly bytes: number;
  readonly name: string;
}

interface NodeProcess {
  getBuiltinModule?(name: 'node:fs/promises'): {
    readFile(path: string | URL): Promise<Uint8Array<ArrayBuffer>>;
  };
}

/** Node's file system, or undefined. Not an import, so that no bundler has to resolve it. */
function nodeFiles() {
  const { process } = globalThis as { process?: NodeProcess };
  return process?.getBuiltinModule?.('node:fs/promises');
}

export function loadError(name: string, got: string, cause?: unknown): MultiheadError {
  return new MultiheadError('E_LOAD', {
    argument: 'wasm',
    expected: `the multihead .wasm file at ${name}`,
    got,
    message: `cannot load ${name}: ${got}`,
    cause,
  });
}

const reason = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** Throws `E_LOAD` naming the address and what was wrong with it. */
export async function compileWasm(
  source: Source,
  signal: AbortSignal | undefined,
): Promise<CompiledWasm> {
  if (isModule(source)) return { module: source, bytes: 0, name: 'the module given' };
  const { bytes, name } = await readBytes(source, signal);
  try {
    // Not compileStreaming(): it wants the type application/wasm, which many servers do not send,
    // and the size would not be known.
    return { module: await WebAssembly.compile(bytes), bytes: bytes.byteLength, name };
  } catch (error) {
    throw loadError(name, notWasm(bytes) ?? reason(error), error);
  }
}

/** Takes unknown: to TypeScript, every object has the (empty) shape of a Module. */
const isModule = (source: unknown): source is WebAssembly.Module =>
  source instanceof WebAssembly.Module;

async function readBytes(
  source: unknown,
  signal: AbortSignal | undefined,
): Promise<{ bytes: BufferSource; name: string }> {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) {
    return { bytes: source as BufferSource, name: 'the bytes given' };
  }
  if (typeof Response === 'function' && source instanceof Response) return readResponse(source);
  if (typeof source !== 'string' && !(source instanceof URL)) {
    throw new MultiheadError('E_OPTION', {
      argument: 'wasm',
      expected: 'a string, URL, Response, BufferSource or WebAssembly.Module',
      got: describe(source),
    });
  }

  const name = String(source);
  const files = nodeFiles();
  // Two letters and more: "C:" is a drive.
  const scheme = /^([a-z][a-z0-9+.-]+):/i.exec(name)?.[1]?.toLowerCase();
  try {
    if (files !== undefined && (scheme === undefined || scheme === 'file')) {
      const path = scheme === undefined ? name : new URL(name);
      return { bytes: await files.readFile(path), name };
    }
    return await readResponse(await fetch(name, signal === undefined ? {} : { signal }), name);
  } catch (error) {
    throw error instanceof MultiheadError ? error : loadError(name, reason(error), error);
  }
}

async function readResponse(
  response: Response,
  name = response.url || 'the Response given',
): Promise<{ bytes: BufferSource; name: string }> {
  if (!response.ok) {
    throw loadError(name, `HTTP status ${response.status} ${response.statusText}`.trimEnd());
  }
  try {
    return { bytes: await response.arrayBuffer(), name };
  } catch (error) {
    throw loadError(name, reason(error), error);
  }
}

/** A sentence for what is not WebAssembly at all. */
function notWasm(source: BufferSource): string | undefined {
  const bytes = ArrayBuffer.isView(source)
    ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength)
    : new Uint8Array(source);
  if (bytes[0] === 0 && bytes[1] === 0x61 && bytes[2] === 0x73 && bytes[3] === 0x6d)
    return undefined;
  const page = bytes[0] === 0x3c ? '; it starts with "<", as a page of HTML does' : '';
  return `this is not a WebAssembly file (${bytes.length} bytes${page})`;
}
