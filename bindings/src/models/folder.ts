// The files of a folder: given as Blobs or responses, or read from a path or an address.

import { folderSigns, mostJsonBytes } from '../generated/folder_files.js';
import { type FileSystem, filesOf, pathOf } from '../load/source.js';
import { abortable, abortedError } from '../runtime/abort.js';
import { MultiheadError, optionError } from '../runtime/errors.js';
import { describe } from '../runtime/tensor.js';
import { printable, utf8Decoder } from '../runtime/text.js';
import { formatError, lengthBytes } from '../safetensors/format.js';
import { kindOfFile } from '../safetensors/read.js';
import { type Bytes, sourceOf, unread } from '../safetensors/source.js';
import type { ModelSource } from '../types/models.js';

/** A file that can be read in pieces. */
export interface OpenFile {
  readonly bytes: Bytes;
  /** Can be called twice. */
  close(): Promise<void>;
}

/** A file that is absent, and the reason if it is another one than that the file does not exist. */
export interface Absent {
  readonly reason: MultiheadError | undefined;
}

export interface Folder {
  /** Where the files are, for errors. */
  readonly place: string;
  /** True if an open file holds a connection, and can be opened again. */
  readonly connects: boolean;
  /** What readText() has read. */
  readonly texts: Map<string, string>;
  /** The name of the GGUF file that is the model. */
  readonly gguf?: string | undefined;
  /** Opens a file. Throws for an aborted signal and a server in trouble. */
  open(name: string): Promise<OpenFile | Absent>;
  /** Names of the files and folders below a path that ends with a slash, or is empty; none if they cannot be listed. */
  list(below: string): Promise<readonly string[]>;
  /** Why there is no folder, if that can be told. */
  problem(): Promise<string | undefined>;
  /** Fetches and keeps files side by side. */
  fetchAll?(names: readonly string[]): Promise<void>;
  /** Ends what is still fetched. */
  end?(): void;
}

/** Members of a folder that is not listed, and of which nothing else is known. */
export const unlisted = (): Pick<Folder, 'connects' | 'texts' | 'list' | 'problem'> => ({
  ...{ connects: false, texts: new Map() },
  list: async () => [],
  problem: async () => undefined,
});

export const isAbsent = (file: OpenFile | Absent): file is Absent => 'reason' in file;

export const missing: Absent = { reason: undefined };

const isMissing = (error: unknown): boolean => ['ENOENT', 'ENOTDIR'].includes((error as { code?: string } | undefined)?.code ?? '');

/** An address without what follows its path, and that. Addresses of storage have a signature there. */
const split = (address: string): [folder: string, rest: string] => {
  const [, path, rest] = /^([^?#]*)(\?[^#]*)?/.exec(address) as unknown as [string, string, string?];
  return [path.endsWith('/') ? path : `${path}/`, rest ?? ''];
};

/** A folder on the disk: a path, or a file: URL. */
function diskFolder(files: FileSystem, path: string): Folder {
  const at = (name: string): string | URL => pathOf(path.endsWith('/') ? path + name : `${path}/${name}`);
  return {
    ...unlisted(),
    place: `in ${printable(path, 400)}`,
    list: (below) => files.readdir(at(below)).catch(() => []),
    async problem() {
      const found = await files.stat(pathOf(path)).catch(() => undefined);
      return found?.isFile() ? 'a file in place of the folder: give the folder that it is in' : undefined;
    },
    async open(name) {
      try {
        // Opening a pipe would wait for its writer.
        if (!(await files.stat(at(name))).isFile()) return { reason: unread(name, 'a folder, a pipe or a device') };
        const handle = await files.open(at(name));
        const { size } = await handle.stat();
        let closed: Promise<void> | undefined;
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
        return { bytes: { size, read }, close: () => (closed ??= handle.close()) };
      } catch (error) {
        return isMissing(error) ? missing : { reason: unread(name, error) };
      }
    },
  };
}

/** What errors call an HTML page. */
export const page = kindOfFile(new Uint8Array([60])) as string;

const pageError = (name: string): MultiheadError => formatError(name, 'the file', page);

/** A file that was given or fetched, unless the response says that there is none. */
export function opened(name: string, source: Blob | Response, signal: AbortSignal | undefined): OpenFile | Absent {
  if (source instanceof Response) {
    const { ok, status, statusText, headers, body } = source;
    const isPage = headers.get('content-type')?.startsWith('text/html') === true;
    if (!ok || status === 204 || isPage) {
      void body?.cancel().catch(() => {});
      const error = unread(name, `HTTP status ${status} ${statusText}`.trimEnd());
      // The server has the file, perhaps, at another time.
      if (status >= 500 || [408, 425, 429].includes(status)) throw error;
      return status === 404 ? missing : { reason: ok && isPage ? pageError(name) : error };
    }
  }
  const { stream, bytes } = sourceOf(source, signal, name);
  return { bytes, close: async () => stream?.cancel() };
}

/** A folder below an address. */
function fetchedFolder(address: string, signal: AbortSignal | undefined): Folder {
  const [folder, rest] = split(address);
  return {
    ...unlisted(),
    place: `below ${printable(folder, 400)}`,
    connects: true,
    async open(name) {
      const url = folder + name.split('/').map(encodeURIComponent).join('/') + rest;
      let response: Response;
      try {
        response = await fetch(url, signal === undefined ? {} : { signal });
      } catch (error) {
        if (signal?.aborted) throw abortedError(signal, 'openModel');
        return { reason: unread(printable(folder + name, 400), error) };
      }
      return opened(printable(folder + name, 400), response, signal);
    },
  };
}

/** The path of a file: browsers put the name of the folder in front. That of a response begins with a slash. */
function pathOfGiven(file: Blob | Response): string {
  if (file instanceof Response) return decodeURIComponent(new URL((file as Response).url || 'file:///').pathname);
  const { name, webkitRelativePath } = file as Blob & { name?: unknown; webkitRelativePath?: unknown };
  if (typeof webkitRelativePath === 'string' && webkitRelativePath !== '') return webkitRelativePath;
  return typeof name === 'string' ? name : '';
}

/** The files that the caller gives. The least deep config.json or modules.json is in the model's folder. */
function givenFolder(source: Iterable<unknown>, signal: AbortSignal | undefined): Folder {
  const files = new Map<string, Blob | Response>();
  for (const file of source) {
    const isFile = file instanceof Blob || file instanceof Response;
    if (!isFile) throw optionError('source', 'files as Blobs or Responses', describe(file));
    files.set(pathOfGiven(file), file);
  }
  const depth = (path: string): number => path.split('/').length;
  const byDepth = [...files.keys()].sort((a, b) => depth(a) - depth(b) || a.length - b.length);
  const top = byDepth.find((path) => /(^|\/)(config|modules)\.json$/.test(path));
  const root = top?.slice(0, top.lastIndexOf('/') + 1) ?? /^[^/]*\//.exec(byDepth[0] ?? '')?.[0] ?? '';
  /** True for files that may come from elsewhere, such as responses beside files of a form. */
  const isElsewhere = (path: string): boolean => (root === '' ? path.startsWith('/') : !path.startsWith(root));
  const find = (name: string): Blob | Response | undefined =>
    files.get(root + name) ?? files.get(byDepth.find((path) => isElsewhere(path) && path.endsWith(`/${name}`)) ?? '');
  const [gguf, ...others] = byDepth.filter((path) => path.endsWith('.gguf'));
  return {
    ...unlisted(),
    place: 'among the files',
    gguf: top === undefined && gguf !== undefined && others.length === 0 ? gguf.slice(root.length) : undefined,
    async list(below) {
      const names = byDepth.map((path) => (isElsewhere(path) ? path.slice(path.lastIndexOf('/') + 1) : path.slice(root.length)));
      const inside = names.filter((path) => path.startsWith(below)).map((path) => path.slice(below.length).split('/')[0] as string);
      return [...new Set(inside)];
    },
    async open(name) {
      const file = find(name);
      return file === undefined ? missing : opened(name, file, signal);
    },
  };
}

/** An address or a path of a file, divided before its name. What follows the path of an address stays with the folder. */
function divided(address: string, isPath: boolean): [folder: string, name: string] {
  const parts = isPath ? /^(.*?)([^/\\]*)()$/s : /^([^?#]*\/)([^/?#]*)(.*)$/s;
  const [, folder, name, rest] = parts.exec(address) as unknown as [string, string, string, string];
  return [(folder || './') + rest, isPath ? name : decodeURIComponent(name)];
}

/** True if the bytes begin as a GGUF file does. */
export const isGguf = (begin: Uint8Array): boolean => String.fromCharCode(...begin.subarray(0, 4)) === 'GGUF';

/** True for a file that is to be read as GGUF: by its name, or by its first bytes, since Ollama's files have no such names. */
async function isGgufOnDisk(files: FileSystem, path: string): Promise<boolean> {
  const found = await files.stat(pathOf(path)).catch(() => undefined);
  if (!found?.isFile()) return false;
  if (path.endsWith('.gguf')) return true;
  const handle = await files.open(pathOf(path));
  const begin = new Uint8Array(4);
  await handle.read(begin, 0, 4, 0).finally(() => handle.close());
  return isGguf(begin);
}

/** The folder of a source that is no name of the hub. Throws `E_OPTION` for another kind of source. */
export async function folderOf(source: ModelSource, signal: AbortSignal | undefined): Promise<Folder> {
  if (typeof source === 'string' || source instanceof URL) {
    const address = String(source);
    const files = filesOf(address);
    const isFile = files === undefined ? /\.gguf([?#]|$)/.test(address) : await isGgufOnDisk(files, address);
    const [place, gguf] = isFile ? divided(address, files !== undefined) : [address, undefined];
    return { ...(files === undefined ? fetchedFolder(place, signal) : diskFolder(files, place)), gguf };
  }
  if (source instanceof Blob || source instanceof Response) {
    const folder = givenFolder([source], signal);
    return { ...folder, gguf: 'the file', open: async (name) => opened(name, source, signal) };
  }
  if (typeof source === 'object' && source !== null && Symbol.iterator in source) return givenFolder(source, signal);
  throw optionError('source', 'files, a path, a name of the hub or an address', describe(source));
}

/** The error for a file that is needed and absent: what the folder has in its place. */
export async function missingFile(folder: Folder, name: string, { reason }: Absent): Promise<MultiheadError> {
  if (reason !== undefined) return reason;
  const slash = name.lastIndexOf('/') + 1;
  const names = await folder.list(name.slice(0, slash));
  let got = await folder.problem();
  if (names.filter((each) => each.endsWith('.safetensors')).length > 1) got ??= 'several files of weights without model.safetensors.index.json';
  for (const [sign, what] of folderSigns) {
    const found = names.find((each) => each === sign || (sign.startsWith('.') && each.endsWith(sign)));
    if (found !== undefined) got ??= `${printable(found)}, ${what}`;
  }
  return formatError(name, `a file of this name ${folder.place}`, got ?? 'none');
}

/**
 * Removes names "." from a path of a file below a folder. Returns undefined for a path that leaves the folder, or is none.
 * A name with a colon could be a drive of Windows.
 */
export function cleanPath(path: string): string | undefined {
  const names = path.split('/');
  if (path !== '' && names.some((name) => name === '' || name === '..' || /[\\:\0]/.test(name))) return undefined;
  return names.filter((name) => name !== '.').join('/');
}

/** Reads a whole file of at most `most` bytes. Throws `E_FORMAT` for a longer one. */
async function readWhole(name: string, { size, read }: Bytes, most: number): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const piece = size ?? 2 ** 20;
  for (let length = 0; length <= most;) {
    if (piece > most) break;
    const part = await read(length, piece);
    parts.push(part);
    length += part.length;
    if (part.length < piece || length === size) return parts.length === 1 ? part : new Uint8Array(await new Blob(parts).arrayBuffer());
  }
  throw formatError(name, `at most ${most} bytes`, 'more');
}

/**
 * The text of a JSON file, or of another one, or why it is absent: an HTML page, or a file that cannot be read, is absent. Throws
 * `E_FORMAT` for a file that is no text.
 */
export async function readText(
  folder: Folder,
  name: string,
  signal: AbortSignal | undefined,
  most = mostJsonBytes,
  isJson = true,
): Promise<string | Absent> {
  const file = await folder.open(name);
  if (isAbsent(file)) return file;
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    bytes = await abortable(readWhole(name, file.bytes, most), signal, 'openModel');
  } catch (error) {
    // A connection that broke is no reason to do without the file.
    if (file.bytes.size === undefined || !(error instanceof MultiheadError) || error.code !== 'E_LOAD') throw error;
    return { reason: error };
  } finally {
    await file.close();
  }
  const first = bytes.find((byte) => ![32, 9, 10, 13].includes(byte));
  if (first === 60 && isJson) return { reason: pageError(name) };
  const kind = first === 123 || !isJson ? undefined : kindOfFile(bytes.subarray(0, lengthBytes));
  try {
    if (kind === undefined) {
      const text = utf8Decoder({ fatal: true }).decode(bytes);
      folder.texts.set(name, text);
      return text;
    }
  } catch (error) {
    throw formatError(name, isJson ? 'JSON in UTF-8' : 'text in UTF-8', (error as Error).message);
  }
  throw formatError(name, 'JSON', kind);
}
