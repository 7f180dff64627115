// Files that appear only when they change, and folders that appear only when they are complete.
import { existsSync, readFileSync, readdirSync } from 'node:fs';
import { chmod, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { isRunning } from './console.mjs';

/** Leaves an unchanged file alone: a new date on a toolchain file would make CMake configure everything anew. */
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

/** What `buildFolder` noted about a folder, if it is complete and of the same recipe; else null. */
export function completeFolder(folder, recipe) {
  if (!existsSync(stampIn(folder))) return null;
  const stamp = JSON.parse(readFileSync(stampIn(folder), 'utf8'));
  return stamp.recipe === recipe ? stamp.notes : null;
}

/**
 * Lets `fill` fill a new folder, which takes its name only when it is complete: an interrupted run leaves nothing that
 * looks finished.
 * @param {string} folder
 * @param {number} recipe changes when `fill` does, so that older folders are made anew
 * @param {object} notes kept beside the files
 * @param {(partial: string) => Promise<void>} fill
 */
export async function buildFolder(folder, recipe, notes, fill) {
  const [parent, name] = [dirname(folder), `${basename(folder)}.partial-`];
  await mkdir(parent, { recursive: true });
  const remove = (path) => rm(path, { recursive: true, force: true, maxRetries: 3 });
  const left = readdirSync(parent).filter((entry) => entry.startsWith(name));
  // A command that outlived its killed run may still write there: then its folder is removed next time.
  await Promise.allSettled(left.map((entry) => remove(join(parent, entry))));

  const partial = join(parent, `${name}${process.pid}`);
  await mkdir(partial);
  await fill(partial);
  await writeFile(stampIn(partial), `${JSON.stringify({ recipe, notes }, null, 2)}\n`);
  await remove(folder);
  await rename(partial, folder);
}

/** Lets one set-up at a time work in `folder`; a second one waits. */
export async function withLock(folder, say, work) {
  const path = join(folder, '.lock');
  await mkdir(folder, { recursive: true });
  for (let waited = false; ; waited = true) {
    try {
      await writeFile(path, String(process.pid), { flag: 'wx' });
      break;
    } catch (error) {
      if (error.code !== 'EEXIST') throw error;
    }
    if (await isAbandoned(path)) await rm(path, { force: true });
    else {
      if (!waited) say(`  another set-up is at work here: waiting for it to end (if there is none, delete ${path})`);
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }
  try {
    return await work();
  } finally {
    await rm(path, { force: true });
  }
}

async function isAbandoned(path) {
  const owner = Number(await readFile(path, 'utf8').catch(() => 0));
  return owner === process.pid || (owner > 0 && !isRunning(owner)); // 0: being written, or just removed
}
