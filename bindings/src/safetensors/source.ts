// The bytes of a Blob or Response, read in pieces, and the header of a safetensors file in them.

import { abortable, abortedError } from '../runtime/abort.js';
import { MultiheadError, optionError } from '../runtime/errors.js';
import { onJavaScriptHeap } from '../runtime/memory.js';
import { describe } from '../runtime/tensor.js';
import { cutOff, formatError, lengthBytes } from './format.js';
import { headerLength, readHeader } from './read.js';

/** Reads bytes of a file. */
export interface Bytes {
  /** Size of the file; undefined if only its end tells. */
  readonly size: number | undefined;
  /** Reads `count` bytes at an offset. Returns fewer at the end of the file. */
  read(offset: number, count: number): Promise<Uint8Array<ArrayBuffer>>;
}

/**
 * Reads and checks the header of a file; `first` is the offset of the first tensor. Throws `E_FORMAT`.
 *
 * @param begin the first `lengthBytes` bytes, if they were read: a response is read once
 */
export async function openHeader(bytes: Bytes, begin?: Uint8Array) {
  const { size = Infinity } = bytes;
  const headerBytes = headerLength(begin ?? (await bytes.read(0, lengthBytes)), size);
  const header = await bytes.read(lengthBytes, headerBytes);
  if (header.length < headerBytes) throw formatError('safetensors header', `${headerBytes} bytes`, `${header.length}${cutOff}`);
  const first = lengthBytes + headerBytes;
  return { ...readHeader(header, size - first), first };
}

export const refused = (expected: string, got: string): MultiheadError => optionError('source', expected, got);

/** Throws `E_OPTION` for another kind of source, `E_LOAD` for a response with an HTTP error. `name`: of the file, for errors. */
export function sourceOf(source: unknown, signal: AbortSignal | undefined, name = 'source') {
  const stream = isResponse(source) ? streamOf(source, signal) : undefined;
  return { stream, bytes: guarded(stream ?? blobBytes(source), signal, name) };
}

const isResponse = (source: unknown): source is Response => typeof Response === 'function' && source instanceof Response;

function blobBytes(source: unknown): Bytes {
  if (typeof Blob !== 'function' || !(source instanceof Blob)) throw refused('a Blob or a Response', describe(source));
  return {
    size: source.size,
    read: async (offset, count) => new Uint8Array(await source.slice(offset, offset + count).arrayBuffer()),
  };
}

/** Reads a response from its begin to its end; bytes between two reads are skipped. */
function streamOf(response: Response, signal: AbortSignal | undefined): Bytes & { cancel(): Promise<void> } {
  const { ok, status, statusText, body, bodyUsed } = response;
  if (!ok) {
    body?.cancel().catch(() => {});
    throw unread('source', `HTTP status ${status} ${statusText}`.trimEnd());
  }
  if (bodyUsed || body?.locked !== false) throw refused('a Response with a body that was not read', 'one without');
  const reader = body.getReader();
  const stop = (): void => void cancel();
  const forget = (): void => signal?.removeEventListener('abort', stop);
  const cancel = async (): Promise<void> => {
    forget();
    await reader.cancel().catch(() => {});
  };
  signal?.addEventListener('abort', stop);
  let chunk: Uint8Array = new Uint8Array();
  let position = 0;
  /** Takes up to `most` bytes of the stream; none at its end. */
  const take = async (most: number): Promise<Uint8Array> => {
    while (chunk.length === 0) {
      const { value, done } = await reader.read();
      if (done) {
        forget();
        break;
      }
      chunk = value;
    }
    const part = chunk.subarray(0, most);
    chunk = chunk.subarray(part.length);
    position += part.length;
    return part;
  };
  return {
    size: undefined,
    cancel,
    async read(offset, count) {
      while (position < offset) if ((await take(offset - position)).length === 0) break;
      const bytes = onJavaScriptHeap(count, 'openSafetensors', () => new Uint8Array(count));
      let filled = 0;
      while (filled < count) {
        const part = await take(count - filled);
        if (part.length === 0) return bytes.subarray(0, filled);
        bytes.set(part, filled);
        filled += part.length;
      }
      return bytes;
    },
  };
}

/** @param reason the error that reading ended with, or a description */
export const unread = (argument: string, reason: unknown): MultiheadError =>
  new MultiheadError('E_LOAD', {
    argument,
    expected: 'a file that can be read',
    got: reason instanceof Error ? reason.message : String(reason),
    cause: typeof reason === 'string' ? undefined : reason,
  });

/** Turns failures into `E_LOAD`, and an aborted signal into `E_ABORTED`. */
function guarded({ size, read }: Bytes, signal: AbortSignal | undefined, name: string): Bytes {
  return {
    size,
    async read(offset, count) {
      if (signal?.aborted) throw abortedError(signal, 'openSafetensors');
      try {
        return await abortable(read(offset, count), signal, 'openSafetensors');
      } catch (error) {
        throw error instanceof MultiheadError ? error : unread(name, error);
      }
    },
  };
}
