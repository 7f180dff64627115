// A model by its name on the hub, loaded for names alone. Its files are fetched once for each commit, and kept in pieces: in the Cache API of a page, in a
// folder of the user's cache in Node. A file that broke off goes on after its last whole piece.

import { type FileSystem, nodeFiles } from '../load/source.js';
import { abortedError } from '../runtime/abort.js';
import { unread } from '../safetensors/source.js';
import { environment, hubName, type HubOptions } from './find_folder.js';
import { type Absent, type Folder, isAbsent, missing, opened, type OpenFile, unlisted } from './folder.js';

const commitHash = /^[0-9a-f]{40}$/;

/** Bytes of a piece. */
const keptBytes = 2 ** 23;

/** Keeps bytes by their names, which are addresses. */
interface Store {
  get(key: string): Promise<Blob | undefined>;
  put(key: string, bytes: BlobPart): Promise<void>;
}

/** What is kept of a file besides its pieces. */
interface Kept {
  readonly etag?: string | undefined;
  /** Number of whole pieces. */
  readonly pieces: number;
  /** Undefined until all is kept; -1 for a file that does not exist. */
  readonly size?: number | undefined;
}

function diskStore(files: FileSystem): Store {
  const base = environment('XDG_CACHE_HOME') || `${environment('HOME') || environment('USERPROFILE') || '.'}/.cache`;
  const at = (key: string): string => `${base}/multihead/${key.replace(/^\w+:\/+/, '').replace(/[^\w./%~-]/g, '_')}`;
  return {
    get: (key) =>
      files.readFile(at(key)).then(
        (bytes) => new Blob([bytes]),
        () => undefined,
      ),
    async put(key, bytes) {
      const path = at(key);
      await files.mkdir(path.slice(0, path.lastIndexOf('/')), { recursive: true });
      // Another process never reads a part of it.
      const made = `${path}.${Math.random().toString(36).slice(2)}`;
      await files.writeFile(made, new Uint8Array(await new Blob([bytes]).arrayBuffer()));
      await files.rename(made, path);
    },
  };
}

function pageStore(): Store {
  // Pages without HTTPS have no `caches`, and those of an opaque origin may not open one.
  const cache = (async () => caches.open('multihead'))().catch(() => undefined);
  return {
    get: async (key) => (await (await cache)?.match(key))?.blob(),
    put: async (key, bytes) => ((await cache) as Cache).put(key, new Response(new Blob([bytes]))),
  };
}

/** Keeps in memory what a store may not keep, or has no room for. */
function withMemory({ get, put }: Store): Store {
  const memory = new Map<string, Blob>();
  return {
    get: async (key) => memory.get(key) ?? get(key),
    put: (key, bytes) => put(key, bytes).catch(() => void memory.set(key, new Blob([bytes]))),
  };
}

const encoded = (path: string): string => path.split('/').map(encodeURIComponent).join('/');

/** The folder of a name. Nothing is fetched before a file is opened. */
export function hubFolder(source: string, revision: string, host: string, { local, signal, onFetch }: HubOptions): Folder {
  const [, name, gguf] = hubName.exec(source) as unknown as [string, string, string?];
  const address = `${host.replace(/\/+$/, '')}/${name}`;
  const files = nodeFiles();
  const store = withMemory(files === undefined ? pageStore() : diskStore(files));
  const stop = new AbortController();
  const onAbort = (): void => stop.abort(signal?.reason);
  signal?.addEventListener('abort', onAbort, { once: true });
  if (signal?.aborted) onAbort();

  async function request(url: string, init: RequestInit = {}): Promise<Response | Absent> {
    try {
      return await fetch(url, { ...init, signal: stop.signal });
    } catch (error) {
      if (signal?.aborted) throw abortedError(signal, 'openModel');
      // The reason is the cause in Node.
      const { message, cause } = error as Error & { cause?: { code?: string } };
      return { reason: unread(url, `no connection (${cause?.code ?? message}), and no kept file`) };
    }
  }

  /** The commit of the revision: without a network, or without an answer, the one of the last time. */
  async function findCommit(): Promise<string> {
    if (commitHash.test(revision)) return revision;
    const key = `${address}/refs/${encodeURIComponent(revision)}`;
    const kept = (await (await store.get(key))?.text()) ?? revision;
    if (local) return kept;
    // A small file, which the hub does not send from elsewhere: that answer would not name the commit.
    const small = gguf === undefined ? 'config.json' : '.gitattributes';
    const response = await request(`${address}/resolve/${encodeURIComponent(revision)}/${small}`, { method: 'HEAD' });
    if ('reason' in response || response.status >= 500) return kept;
    const found = response.headers.get('x-repo-commit') ?? '';
    if (!commitHash.test(found)) return revision;
    if (found !== kept) await store.put(key, found);
    return found;
  }
  let commit: Promise<string> | undefined;

  /** Fetches what is missing of a file. */
  async function download(file: string, url: string, key: string, before: Kept | undefined): Promise<Kept | Absent> {
    let pieces = before?.pieces ?? 0;
    let response = await request(url, pieces > 0 ? { headers: { range: `bytes=${pieces * keptBytes}-` } } : {});
    if ('reason' in response) return response;
    const isRest = response.headers.get('content-range')?.startsWith(`bytes ${pieces * keptBytes}-`) === true;
    if (pieces > 0 && !(response.status === 206 && isRest && response.headers.get('etag') === before?.etag)) {
      // The file has changed, or the server sends all of it.
      pieces = 0;
      if (response.status !== 200) {
        void response.body?.cancel();
        response = await request(url);
        if ('reason' in response) return response;
      }
    }
    const { headers } = response;
    const source = opened(url, response, signal);
    const put = async (kept: Kept): Promise<Kept> => (await store.put(key, JSON.stringify(kept)), kept);
    if (isAbsent(source)) {
      if (source.reason === undefined) await put({ pieces: 0, size: -1 });
      return source;
    }
    // The length of a compressed response is the compressed one.
    const length = headers.has('content-encoding') ? NaN : Number(headers.get('content-length') ?? NaN);
    const total = Number.isNaN(length) ? undefined : pieces * keptBytes + length;
    try {
      for (let from = 0; ; pieces += 1) {
        const bytes = await source.bytes.read(from, keptBytes);
        from += bytes.length;
        await store.put(key + pieces, bytes);
        const isEnd = bytes.length < keptBytes;
        const loaded = pieces * keptBytes + bytes.length;
        if (isEnd && total !== undefined && loaded !== total) throw unread(url, `the end after ${loaded} of ${total} bytes`);
        onFetch?.({ file, loaded, total });
        const kept = await put({ etag: headers.get('etag') ?? undefined, pieces: pieces + (isEnd ? 0 : 1), size: isEnd ? loaded : undefined });
        if (isEnd) return kept;
      }
    } finally {
      await source.close();
    }
  }

  const folder: Folder = {
    ...unlisted(),
    place: `of ${name} on the hub`,
    gguf,
    end() {
      signal?.removeEventListener('abort', onAbort);
      stop.abort();
    },
    async fetchAll(names) {
      await Promise.all(names.map((each) => folder.open(each)));
    },
    async open(file): Promise<OpenFile | Absent> {
      const at = await (commit ??= findCommit());
      const key = `${address}/${encodeURIComponent(at)}/${encoded(file)}~`;
      // Another program may have cut it.
      const record = async (): Promise<Kept> => JSON.parse((await (await store.get(key))?.text()) ?? '') as Kept;
      let kept: Kept | Absent | undefined = await record().catch(() => undefined);
      if (kept?.size === undefined) {
        const url = `${address}/resolve/${encodeURIComponent(at)}/${encoded(file)}`;
        if (local) return { reason: unread(url, 'none that is kept, and local: true forbids to fetch it') };
        kept = await download(file, url, key, kept);
        if ('reason' in kept) return kept;
      }
      const { size } = kept as { size: number };
      if (size < 0) return missing;
      let current = -1;
      let piece: Blob | undefined;
      const read = async (offset: number, count: number): Promise<Uint8Array<ArrayBuffer>> => {
        const end = Math.min(offset + count, size);
        const parts: Blob[] = [];
        for (let from = offset; from < end;) {
          const begin = Math.floor(from / keptBytes);
          if (begin !== current) piece = await store.get(key + (current = begin));
          const part = piece?.slice(from - begin * keptBytes, end - begin * keptBytes);
          if (part === undefined || part.size === 0) {
            await store.put(key, '');
            throw unread(file, 'a kept piece is gone; the next openModel() fetches the file again');
          }
          parts.push(part);
          from += part.size;
        }
        return new Uint8Array(await new Blob(parts).arrayBuffer());
      };
      return { bytes: { size, read }, close: async () => {} };
    },
  };
  return folder;
}
