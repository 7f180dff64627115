// openSafetensors(): reads the header of a Blob or Response, and then one tensor at a time. The memory never holds more
// than one tensor of the file, unless the caller keeps them.

import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import { onJavaScriptHeap } from '../runtime/memory.js';
import { plain, readFlat } from '../runtime/options.js';
import { describe, isA, unreadable } from '../runtime/tensor.js';
import type {
  OpenSafetensors,
  OpenSafetensorsOptions,
  SafetensorsEntry,
  SafetensorsReader,
  SafetensorsTensor,
} from '../types/safetensors.js';
import { emptyRecord, formatError, lengthBytes } from './format.js';
import { type Entry, headerLength, inFileOrder, readHeader, tensorOf } from './read.js';

/** Reads bytes of a file. */
interface Bytes {
  /** Size of the file; undefined if only its end tells. */
  readonly size: number | undefined;
  /** Reads `count` bytes at an offset. Returns fewer at the end of the file. */
  read(offset: number, count: number): Promise<Uint8Array<ArrayBuffer>>;
}

/** See {@link OpenSafetensors}. */
export const openSafetensors: OpenSafetensors = (source, options) => open(source, options);

async function open(source: unknown, given: OpenSafetensorsOptions = {}): Promise<SafetensorsReader> {
  const { signal } = readFlat(given, { signal: plain }, 'openSafetensors');
  checkSignal(signal);
  const { stream, bytes } = sourceOf(source, signal);

  const { size = Infinity } = bytes;
  const headerBytes = headerLength(await bytes.read(0, lengthBytes), size);
  const header = await bytes.read(lengthBytes, headerBytes);
  if (header.length < headerBytes) throw formatError('safetensors header', `${headerBytes} bytes`, `${header.length}`);
  const first = lengthBytes + headerBytes;
  const { entries, metadata } = readHeader(header, size - first);
  const inOrder = inFileOrder(entries);

  const read = async (entry: Entry): Promise<SafetensorsTensor> => {
    const wanted = entry.end - entry.begin;
    const data = await bytes.read(first + entry.begin, wanted);
    if (data.length < wanted) throw formatError(entry.name, `${wanted} bytes`, `${data.length}, the end of the file`);
    return tensorOf(entry, data);
  };
  const byName = new Map(entries.map((entry) => [entry.name, entry]));
  let begun = false;
  async function* iterate(): AsyncGenerator<[name: string, tensor: SafetensorsTensor], void, undefined> {
    if (begun && stream !== undefined) throw refused('a response that was not read, which is possible once', 'one that was');
    begun = true;
    try {
      for (const entry of inOrder) yield [entry.name, await read(entry)];
      const end = inOrder.at(-1)?.end ?? 0;
      const rest = await bytes.read(first + end, 1);
      if (rest.length > 0) throw formatError('safetensors data', `${end} bytes`, 'more');
    } finally {
      await stream?.cancel();
    }
  }
  const described = emptyRecord<SafetensorsEntry>();
  for (const { name, dtype, shape } of entries) described[name] = Object.freeze({ dtype, shape: Object.freeze([...shape]) });
  return Object.freeze({
    entries: Object.freeze(described),
    metadata,
    async read(name: string) {
      const entry = byName.get(name);
      if (stream !== undefined) throw refused('a Blob, whose tensors can be read in any order', 'a Response');
      if (entry !== undefined) return read(entry);
      throw new MultiheadError('E_OPTION', { argument: 'name', expected: 'the name of a tensor of the file', got: describe(name) });
    },
    [Symbol.asyncIterator]: iterate,
  });
}

const refused = (expected: string, got: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument: 'source', expected, got });

/** Throws `E_OPTION` for another kind of source, `E_LOAD` for a response with an HTTP error. */
function sourceOf(source: unknown, signal: AbortSignal | undefined) {
  try {
    const stream = isResponse(source) ? streamOf(source, signal) : undefined;
    return { stream, bytes: guarded(stream ?? blobBytes(source), signal) };
  } catch (cause) {
    throw unreadable(cause, 'source');
  }
}

const isResponse = (source: unknown): source is Response => typeof Response === 'function' && isA(source, Response);

function blobBytes(source: unknown): Bytes {
  if (typeof Blob !== 'function' || !isA(source, Blob)) throw refused('a Blob or a Response', describe(source));
  return {
    size: source.size,
    read: async (offset, count) => new Uint8Array(await source.slice(offset, offset + count).arrayBuffer()),
  };
}

/** Reads a response from its begin to its end. */
function streamOf(response: Response, signal: AbortSignal | undefined): Bytes & { cancel(): Promise<void> } {
  const { ok, status, statusText, body, bodyUsed } = response;
  if (!ok) throw unread(`HTTP status ${status} ${statusText}`.trimEnd());
  if (bodyUsed || body?.locked !== false) throw refused('a Response with a body that was not read', 'one without');
  const reader = body.getReader();
  const cancel = async (): Promise<void> => reader.cancel().catch(() => {});
  signal?.addEventListener('abort', () => void cancel(), { once: true });
  let chunk: Uint8Array = new Uint8Array();
  return {
    size: undefined,
    cancel,
    async read(_, count) {
      const bytes = onJavaScriptHeap(count, 'openSafetensors', () => new Uint8Array(count));
      let filled = 0;
      while (filled < count) {
        if (chunk.length === 0) {
          const { value, done } = await reader.read();
          if (done) return bytes.subarray(0, filled);
          chunk = value;
        }
        const part = chunk.subarray(0, count - filled);
        bytes.set(part, filled);
        filled += part.length;
        chunk = chunk.subarray(part.length);
      }
      return bytes;
    },
  };
}

const unread = (got: string, cause?: unknown): MultiheadError =>
  new MultiheadError('E_LOAD', { argument: 'source', expected: 'a file that can be read', got, cause });

/** Turns failures into `E_LOAD`, and an aborted signal into `E_ABORTED`. */
function guarded({ size, read }: Bytes, signal: AbortSignal | undefined): Bytes {
  return {
    size,
    async read(offset, count) {
      if (signal?.aborted) throw abortedError(signal, 'openSafetensors');
      try {
        return await abortable(read(offset, count), signal, 'openSafetensors');
      } catch (error) {
        if (error instanceof MultiheadError) throw error;
        throw unread(error instanceof Error ? error.message : String(error), error);
      }
    },
  };
}
