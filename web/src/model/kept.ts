// Keeps the files of the visitor's own model in this browser, on request: in the origin's private file system, which no
// server sees.

import { folder, keptFolder, storage } from './kept_folder.js';
import type { GivenFile, GivenFiles } from './messages.js';

const list = 'model.json';

/** The contents of `list`. File number i has the name `i`, because paths have folders. */
interface Kept {
  readonly name: string;
  readonly paths: readonly string[];
}

/** Runs an action under a lock: the browser would refuse one of two tabs that change the files at the same time. */
const alone = <T>(action: () => Promise<T>): Promise<T> => (navigator.locks as LockManager | undefined)?.request(folder, action) ?? action();

/** The files that are kept; null if there are none, or if the browser has no such storage. */
export async function keptFiles(): Promise<GivenFiles | null> {
  try {
    const kept = await keptFolder();
    const read = async (name: string) => (await kept.getFileHandle(name)).getFile();
    const { name, paths } = JSON.parse(await (await read(list)).text()) as Kept;
    const files = await Promise.all(paths.map(async (path, i): Promise<GivenFile> => ({ path, file: new File([await read(String(i))], path) })));
    return { name, files };
  } catch {
    return null;
  }
}

/** Replaces the kept files. If that fails, no file is kept. */
export const keep = (files: GivenFiles): Promise<void> => alone(() => replace(files));

export const forget = (): Promise<void> => alone(remove);

async function replace({ name, files }: GivenFiles): Promise<void> {
  await remove();
  try {
    const root = await storage();
    const kept = await root.getDirectoryHandle(folder, { create: true });
    const write = async (to: string, content: Blob) => {
      const handle = await kept.getFileHandle(to, { create: true });
      await content.stream().pipeTo(await handle.createWritable());
    };
    for (const [i, { file }] of files.entries()) await write(String(i), file);
    // Write the list last: without it, no file counts as kept.
    const kind: Kept = { name, paths: files.map(({ path }) => path) };
    await write(list, new Blob([JSON.stringify(kind)]));
  } catch (error) {
    await remove().catch(() => undefined);
    throw error;
  }
}

async function remove(): Promise<void> {
  const root = await storage();
  await root.removeEntry(folder, { recursive: true }).catch((error: unknown) => {
    if (!(error instanceof DOMException && error.name === 'NotFoundError')) throw error;
  });
}
