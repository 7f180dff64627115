// Highway 1.2, the SIMD library: the installed one if it is new enough, else Debian 13's, unpacked into build/.
import { existsSync } from 'node:fs';
import { mkdir, readlink, rm, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { unpack } from './debian.mjs';
import { buildFolder, completeFolder } from './files.mjs';
import { findLibrary } from './find.mjs';

const RECIPE = 1;
export const HIGHWAY_PACKAGES = ['libhwy-dev', 'libhwy1t64'];

/** Finds an installed Highway: { prefix, include, version }, or null. */
export function findHighway() {
  const version = ['HWY_MAJOR', 'HWY_MINOR', 'HWY_PATCH'];
  return findLibrary(
    'hwy/highway.h',
    'hwy',
    ['hwy/base.h', 'hwy/highway.h'].map((file) => [file, version]),
  );
}

/** Returns the unpacked Highway in `folder`, in the form of `findHighway`; null if it is incomplete. */
export function unpackedHighway(folder) {
  const versions = completeFolder(folder, RECIPE);
  const prefix = join(folder, 'usr');
  return versions && { prefix, include: join(prefix, 'include'), version: versions['libhwy-dev'].replace(/-.*/, '') };
}

/** Unpacks Debian 13's packages, which also work with the C and C++ libraries of Debian 12. */
export async function unpackHighway(packages, folder) {
  const versions = Object.fromEntries(HIGHWAY_PACKAGES.map((name) => [name, packages[name].version]));
  await buildFolder(folder, RECIPE, versions, async (partial) => {
    for (const name of HIGHWAY_PACKAGES) await unpack(packages[name].file, partial, ['--exclude=./usr/share', './usr']);
  });
}

/**
 * Makes `folder` contain only links to the header-only libraries that WebAssembly code includes. With /usr/include
 * itself, a cross-compiler would use the machine's C headers.
 * @param {Record<string, string | null>} headers the folders to link to, by the name in #include
 */
export async function linkHeaders(folder, headers) {
  await mkdir(folder, { recursive: true });
  for (const [name, target] of Object.entries(headers)) {
    const link = join(folder, name);
    const before = await readlink(link).catch(() => null);
    const wanted = target && existsSync(target) ? target : null;
    if (before === wanted) continue;
    await rm(link, { recursive: true, force: true });
    if (wanted) await symlink(wanted, link, 'junction'); // on Windows a junction needs no special rights
  }
}
