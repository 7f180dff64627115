// Writes files only if they change, and creates folders that are either complete or absent.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { chmod, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { isRunning } from './console.mjs';

/** Writes a file unless its contents are unchanged: a new date on a toolchain file would make CMake configure again. */
export async function writeIfChanged(path, text) {
  const before = await readFile(path, 'utf8').catch(() => null);
  if (before === text) return;
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text);
}

export async function writeProgram(path, text) {
  await writeIfChanged(path, text);
  await chmod(path, 0o755);
}

const stampIn = (folder) => join(folder, '.complete.json');

/**
 * Returns the notes that `buildFolder` stored for a folder; null if it is incomplete or was built from another recipe.
 */
export function completeFolder(folder, recipe) {
  if (!existsSync(stampIn(folder))) return null;
  const stamp = JSON.parse(readFileSync(stampIn(folder), 'utf8'));
  return stamp.recipe === recipe ? stamp.notes : null;
}

/**
 * Creates a folder that `fill` fills. The folder gets its name only when it is complete, so that an interrupted run
 * leaves nothing that looks finished.
 * @param {string} folder
 * @param {number | string} recipe version of `fill`; folders of another version are rebuilt
 * @param {object} notes stored with the files
 * @param {(partial: string) => Promise<void>} fill
 */
export async function buildFolder(folder, recipe, notes, fill) {
  const [parent, name] = [dirname(folder), `${basename(folder)}.partial-`];
  await mkdir(parent, { recursive: true });
  const remove = (path) => rm(path, { recursive: true, force: true, maxRetries: 3 });
  const left = readdirSync(parent).filter((entry) => entry.startsWith(name));
  // A command that outlived a killed run may still write into a folder. The next run then removes that folder.
  await Promise.allSettled(left.map((entry) => remove(join(parent, entry))));

  const partial = join(parent, `${name}${process.pid}`);
  await mkdir(partial);
  await fill(partial);
  await writeFile(stampIn(partial), `${JSON.stringify({ recipe, notes }, null, 2)}\n`);
  await remove(folder);
  await rename(partial, folder);
}

/** Locks of this process: its id in any other lock is that of a process that has ended. */
const ownLocks = new Set();

/** Runs one set-up at a time in `folder`; others wait. */
export async function withLock(folder, say, work) {
  const path = join(folder, '.lock');
  await mkdir(folder, { recursive: true });
  await takeLock(path, () => say(`  another set-up is running here: waiting for it to end (if there is none, delete ${path})`));
  try {
    return await work();
  } finally {
    await releaseLock(path);
  }
}

async function takeLock(path, tellWaiting) {
  for (let waited = false; ;) {
    try {
      await writeFile(path, String(process.pid), { flag: 'wx' });
      ownLocks.add(path);
      return;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
    if (await isAbandoned(path)) {
      // Another waiter may have found the same lock, have removed it, and hold its own by now. So one waiter at a time removes
      // it, and looks once more.
      const removing = `${path}-removing`;
      await takeLock(removing, () => {});
      if (await isAbandoned(path)) await rm(path, { force: true });
      await releaseLock(removing);
    } else {
      if (!waited) tellWaiting();
      waited = true;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }
}

async function releaseLock(path) {
  ownLocks.delete(path);
  await rm(path, { force: true });
}

async function isAbandoned(path) {
  const owner = Number(await readFile(path, 'utf8').catch(() => 0));
  if (owner === process.pid) return !ownLocks.has(path);
  return owner > 0 && !isRunning(owner); // 0: the file is being written, or was just removed
}
