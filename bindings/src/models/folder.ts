// The files of a folder: given as Blobs or responses, or read from a path or an address.

import { type FileSystem, filesOf, pathOf } from '../load/source.js';
import { abortable, abortedError } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import { describe, isA, unreadable } from '../runtime/tensor.js';
import { printable } from '../runtime/text.js';
import { formatError } from '../safetensors/format.js';
import { type Bytes, sourceOf, unread } from '../safetensors/source.js';
import type { ModelSource } from '../types/models.js';

/** A file that can be read in pieces. */
export interface OpenFile {
  readonly bytes: Bytes;
  close(): Promise<void>;
}

export interface Folder {
  /** Names of the files; undefined if only trying tells. */
  readonly names: readonly string[] | undefined;
  /** The text of a file; undefined if it does not exist. */
  text(name: string): Promise<string | undefined>;
  /** Opens a file; undefined if it does not exist. */
  open(name: string): Promise<OpenFile | undefined>;
}

const isMissing = (error: unknown): boolean => (error as { code?: unknown } | undefined)?.code === 'ENOENT';

const withSlash = (address: string): string => (address.endsWith('/') ? address : `${address}/`);

/** A folder on the disk: a path, or a file: URL. */
function diskFolder(files: FileSystem, path: string): Folder {
  const at = (name: string): string | URL => pathOf(withSlash(path) + name);
  const orMissing = async <T>(name: string, work: () => Promise<T>): Promise<T | undefined> => {
    try {
      return await work();
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw unread(name, error);
    }
  };
  return {
    names: undefined,
    text: (name) => orMissing(name, () => files.readFile(at(name), 'utf8')),
    open: (name) =>
      orMissing(name, async () => {
        const handle = await files.open(at(name));
        const { size } = await handle.stat();
        const read = async (offset: number, count: number): Promise<Uint8Array<ArrayBuffer>> => {
          const bytes = new Uint8Array(Math.min(count, Math.max(0, size - offset)));
          let filled = 0;
          while (filled < bytes.length) {
            const rest = bytes.length - filled;
            const { bytesRead } = await handle.read(bytes, filled, rest, offset + filled).catch((error: unknown) => {
              throw unread(name, error);
            });
            if (bytesRead === 0) break;
            filled += bytesRead;
          }
          return bytes.subarray(0, filled);
        };
        return { bytes: { size, read }, close: () => handle.close() };
      }),
  };
}

/** A file that was given or fetched. */
function opened(source: Blob | Response, signal: AbortSignal | undefined): OpenFile {
  const { stream, bytes } = sourceOf(source, signal);
  return { bytes, close: async () => stream?.cancel() };
}

/** A folder below an address. */
function fetchedFolder(address: string, signal: AbortSignal | undefined): Folder {
  const get = async (name: string): Promise<Response | undefined> => {
    const url = withSlash(address) + name;
    try {
      const response = await fetch(url, signal === undefined ? {} : { signal });
      if (response.status === 404) return undefined;
      if (!response.ok) throw new Error(`HTTP status ${response.status} ${response.statusText}`.trimEnd());
      return response;
    } catch (error) {
      throw signal?.aborted ? abortedError(signal, 'openModel') : unread(printable(url, 400), error);
    }
  };
  return {
    names: undefined,
    text: async (name) => (await get(name))?.text(),
    open: async (name) => {
      const response = await get(name);
      return response && opened(response, signal);
    },
  };
}

/** The path of a file inside the folder: without the name of the folder itself, which browsers put in front. */
function nameOf(file: Blob | Response): string {
  if (isA(file, Response)) {
    const { pathname } = new URL((file as Response).url || 'file:///');
    return decodeURIComponent(pathname).slice(1);
  }
  const { name, webkitRelativePath } = file as Blob & { name?: unknown; webkitRelativePath?: unknown };
  if (typeof webkitRelativePath === 'string' && webkitRelativePath !== '') return webkitRelativePath;
  return typeof name === 'string' ? name : '';
}

/** The files that the caller gives. A file is found by the end of its path. */
function givenFolder(source: Iterable<unknown>, signal: AbortSignal | undefined): Folder {
  const files = new Map<string, Blob | Response>();
  try {
    for (const file of source) {
      if (!isA(file, Blob) && !isA(file, Response)) {
        throw new MultiheadError('E_OPTION', { argument: 'source', expected: 'files as Blobs or Responses', got: describe(file) });
      }
      files.set(nameOf(file as Blob | Response), file as Blob | Response);
    }
  } catch (cause) {
    throw unreadable(cause, 'source');
  }
  const find = (name: string): Blob | Response | undefined => {
    const found = [...files].filter(([path]) => path === name || path.endsWith(`/${name}`));
    // The folder may contain others, with files of the same name: the shortest path is its own.
    return found.sort(([a], [b]) => a.length - b.length)[0]?.[1];
  };
  return {
    names: [...files.keys()].map((path) => path.slice(path.lastIndexOf('/') + 1)),
    text: async (name) => {
      const file = find(name);
      return file && abortable(file.text(), signal, 'openModel').catch((error: unknown) => {
        throw error instanceof MultiheadError ? error : unread(name, error);
      });
    },
    open: async (name) => {
      const file = find(name);
      return file && opened(file, signal);
    },
  };
}

/** Throws `E_OPTION` for another kind of source. */
export function folderOf(source: ModelSource, signal: AbortSignal | undefined): Folder {
  try {
    if (typeof source === 'string' || isA(source, URL)) {
      const address = String(source);
      const files = filesOf(address);
      return files === undefined ? fetchedFolder(address, signal) : diskFolder(files, address);
    }
    if (typeof source === 'object' && source !== null && Symbol.iterator in source) return givenFolder(source, signal);
  } catch (cause) {
    throw unreadable(cause, 'source');
  }
  throw new MultiheadError('E_OPTION', {
    argument: 'source',
    expected: 'files, a path or an address',
    got: describe(source),
  });
}

/** The text of a file that must exist. Throws `E_FORMAT`. */
export async function requiredText(folder: Folder, name: string): Promise<string> {
  const text = await folder.text(name);
  if (text === undefined) throw formatError(name, 'a file of this name in the folder', 'none');
  return text;
}
