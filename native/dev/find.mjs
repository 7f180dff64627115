// Finds out what is installed on a machine: programs on the PATH, headers, versions.
import { accessSync, constants, existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { ask } from './console.mjs';

const suffixes = process.platform === 'win32' ? ['.exe', '.bat', '.cmd'] : [''];

function isProgram(path) {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Returns the path of the first of `names` that is on the PATH (or exists, if absolute), or null. */
export function findProgram(...names) {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  for (const name of names) {
    const paths = /[\\/]/.test(name) ? [name] : folders.map((folder) => join(folder, name));
    const found = paths.flatMap((path) => suffixes.map((suffix) => path + suffix)).find(isProgram);
    if (found) return found;
  }
  return null;
}

/** The first version number in a text, or null. */
export const versionIn = (text) => text?.match(/\d+(\.\d+)+/)?.[0] ?? null;

/** True if `version` is at least `minimum`. An unknown version counts as new enough. */
export function atLeast(version, minimum) {
  if (!version) return true;
  const [a, b] = [version, minimum].map((text) => text.split('.').map(Number));
  for (let i = 0; i < b.length; ++i) if ((a[i] ?? 0) !== b[i]) return (a[i] ?? 0) > b[i];
  return true;
}

/** Finds a program on the PATH and its version: { path, version }, or null. */
export async function programWithVersion(...names) {
  const path = findProgram(...names);
  return path && { path, version: versionIn(await ask([path, '--version'])) };
}

/** Folders below which libraries may be installed. */
function prefixes() {
  const named = (process.env.CMAKE_PREFIX_PATH ?? '').split(delimiter).filter(Boolean);
  return [...named, '/usr/local', '/usr', '/opt/homebrew', '/opt/local'].filter((path) => existsSync(path));
}

const libraryFolders = (prefix) => {
  const folders = ['lib', 'lib64', 'share'].map((name) => join(prefix, name)).filter((path) => existsSync(path));
  const subfolders = folders.flatMap((folder) => readdirSync(folder).map((name) => join(folder, name)));
  const byArchitecture = subfolders.filter((path) => /-linux-gnu[a-z0-9]*$/.test(path)); // Debian's multiarch folders
  return [...folders, ...byArchitecture];
};

/** True if a CMake package is installed. The folders of some packages, such as Boost's, end with a version. */
function hasCmakePackage(libraryFolder, name) {
  const folder = join(libraryFolder, 'cmake');
  return existsSync(folder) && readdirSync(folder).some((entry) => entry === name || entry.startsWith(`${name}-`));
}

/** A pattern that reads a version from the defines of a header. */
const defines = (names) => new RegExp(names.map((name) => `#define\\s+${name}\\s+(\\d+)[^]*?`).join(''));

/**
 * Finds a library by a header and, unless null, by its CMake package: { prefix, include, version }, or null.
 * @param {string} header
 * @param {string | null} cmakePackage
 * @param {[file: string, version: string[] | RegExp][]} versionAt files that may state the version, below the include
 *   or a library folder, each with the names of its defines or a pattern
 */
export function findLibrary(header, cmakePackage, versionAt) {
  for (const prefix of prefixes()) {
    const includes = ['include', 'include/eigen3'].map((name) => join(prefix, name));
    const include = includes.find((path) => existsSync(join(path, header)));
    if (!include) continue;
    const folders = libraryFolders(prefix);
    if (cmakePackage && !folders.some((folder) => hasCmakePackage(folder, cmakePackage))) continue;
    for (const [file, version] of versionAt) {
      const path = [include, ...folders].map((folder) => join(folder, file)).find((path) => existsSync(path));
      const match = path && readFileSync(path, 'utf8').match(Array.isArray(version) ? defines(version) : version);
      if (match) return { prefix, include, version: match.slice(1).join('.') };
    }
    return { prefix, include, version: null };
  }
  return null;
}
