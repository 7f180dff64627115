// Gets the bytes of the .wasm, by fetch, from disk, or from the caller, and compiles them.

import { MultiheadError } from './errors.js';
import { describe } from './tensor.js';
import type { LoadOptions } from './types.js';

type Source = NonNullable<LoadOptions['wasm']>;

export interface CompiledWasm {
  readonly module: WebAssembly.Module;
  /** Size of the .wasm; 0 if the caller gave a compiled module. */
  readonly bytes: number;
  /** Name for error messages: the address, or a description. */
  readonly name: string;
}

interface NodeProcess {
  getBuiltinModule?(name: 'node:fs/promises'): {
    readFile(path: string | URL): Promise<Uint8Array<ArrayBuffer>>;
  };
}

/** Node's file system, or undefined elsewhere. Not imported, so that bundlers need not resolve it. */
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

/** Throws `E_LOAD` with the address and the reason. */
export async function compileWasm(
  source: Source,
  signal: AbortSignal | undefined,
): Promise<CompiledWasm> {
  if (isModule(source)) return { module: source, bytes: 0, name: 'the module given' };
  const { bytes, name } = await readBytes(source, signal);
  try {
    // Not compileStreaming(): it requires the MIME type application/wasm, which many servers do not
    // send, and it does not tell the size.
    return { module: await WebAssembly.compile(bytes), bytes: bytes.byteLength, name };
  } catch (error) {
    throw loadError(name, notWasm(bytes) ?? reason(error), error);
  }
}

/** The parameter is `unknown`, because TypeScript declares Module without members: any object fits. */
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
  // A scheme has at least two letters: "C:" is a Windows drive.
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

/** A reason if the bytes lack the WebAssembly magic number; undefined if they have it. */
function notWasm(source: BufferSource): string | undefined {
  const bytes = ArrayBuffer.isView(source)
    ? new Uint8Array(source.buffer, source.byteOffset, source.byteLength)
    : new Uint8Array(source);
  if (bytes[0] === 0 && bytes[1] === 0x61 && bytes[2] === 0x73 && bytes[3] === 0x6d)
    return undefined;
  const page = bytes[0] === 0x3c ? '; it starts with "<", like an HTML page' : '';
  return `this is not a WebAssembly file (${bytes.length} bytes${page})`;
}
