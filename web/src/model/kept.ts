// Keeps the files of the visitor's own model in this browser, on request: in the origin's private file system, which no
// server sees.

import { folder, keptFolder, storage } from './kept_folder.js';
import type { GivenFiles } from './messages.js';

const list = 'names.json';
const roles = ['model', 'vocabulary', 'merges'] as const;
type Role = (typeof roles)[number];
type Names = Partial<Readonly<Record<Role, string>>>;

/** Runs an action under a lock: the browser would refuse one of two tabs that change the files at the same time. */
const alone = <T>(action: () => Promise<T>): Promise<T> =>
  (navigator.locks as LockManager | undefined)?.request(folder, action) ?? action();

/** The files that are kept; null if there are none, or if the browser has no such storage. */
export async function keptFiles(): Promise<GivenFiles | null> {
  try {
    const kept = await keptFolder();
    const read = async (name: string) => (await kept.getFileHandle(name)).getFile();
    const names = JSON.parse(await (await read(list)).text()) as Names;
    const fileOf = async (role: Role) => {
      const name = names[role];
      return name === undefined ? undefined : new File([await read(role)], name);
    };
    const model = await fileOf('model');
    return model ? { model, vocabulary: await fileOf('vocabulary'), merges: await fileOf('merges') } : null;
  } catch {
    return null;
  }
}

/** Replaces the kept files. If that fails, no file is kept. */
export const keep = (files: GivenFiles): Promise<void> => alone(() => replace(files));

export const forget = (): Promise<void> => alone(remove);

async function replace(files: GivenFiles): Promise<void> {
  await remove();
  try {
    const root = await storage();
    const kept = await root.getDirectoryHandle(folder, { create: true });
    const write = async (name: string, content: Blob) => {
      const handle = await kept.getFileHandle(name, { create: true });
      await content.stream().pipeTo(await handle.createWritable());
    };
    const names: Record<string, string> = {};
    for (const role of roles) {
      const file = files[role];
      if (!file) continue;
      names[role] = file.name;
      await write(role, file);
    }
    // Write the list last: without it, no file counts as kept.
    await write(list, new Blob([JSON.stringify(names)]));
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
