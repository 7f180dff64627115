// The WebAssembly compiler: an installed Emscripten if it is new enough. Otherwise Debian 13's package, unpacked into
// the build folder, with the system's clang 19.
import { readdirSync } from 'node:fs';
import { chmod, copyFile, mkdir, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { ask } from './console.mjs';
import { unpack } from './debian.mjs';
import { buildFolder, completeFolder, writeIfChanged, writeProgram } from './files.mjs';
import { atLeast, findProgram, versionIn } from './find.mjs';

export const EMSCRIPTEN_MINIMUM = '3.1.60'; // older versions use opcodes of relaxed SIMD that browsers no longer accept
const LLVM = '19'; // the version that Debian 13's Emscripten needs; Debian 12 has it too
const RECIPE = 1; // version of the unpacked folder: after a change, the next run unpacks again

export const CLANG_PACKAGES = ['clang', 'lld', 'llvm'].map((name) => `${name}-${LLVM}`);
export const EMSCRIPTEN_PACKAGES = ['emscripten', 'binaryen', 'libc6', 'libstdc++6', 'libgcc-s1', 'node-acorn'];

// 1.6 GB of the package are prebuilt system libraries, one per combination of features. The project uses libraries
// without link-time optimization, exceptions and sanitizers, with and without threads.
const LEFT_OUT = [
  'lto lto-pic pic *-ww* *asan* *lsan* *ubsan* *sanitizer* *wasmfs* *-except* *sjlj*',
  'libc++.a libc++-mt.a libc++abi.a libc++abi-mt.a libc++abi-debug.a libc++abi-debug-mt.a',
  'libSDL* libGL*-emu* libGL*-ofb* libGL*-webgl2* libGL*-full_es3*',
].flatMap((line) => line.split(' ').map((name) => `cache/sysroot/lib/wasm32-emscripten/${name}`));
const NOT_NEEDED = ['test', 'docs', 'media', 'out', 'system/lib', 'ChangeLog.*'];

/** True if clang, wasm-ld and llvm-ar, which the unpacked Emscripten calls, are installed. */
export const hasClang = () => ['clang', 'wasm-ld', 'llvm-ar'].every((name) => findProgram(`${name}-${LLVM}`));

/** Finds an installed Emscripten: { source, root, path, version }, or null. */
export async function findEmscripten() {
  const emsdk = process.env.EMSDK && findProgram(join(process.env.EMSDK, 'upstream', 'emscripten', 'emcc'));
  const path = emsdk || findProgram('emcc');
  if (!path) return null;
  const version = versionIn(await ask([path, '--version']));
  if (!version) return null;
  if (emsdk) return { source: 'emsdk', root: dirname(emsdk), path, version };
  // A package manager's emcc may be a link or a script in another folder, so ask em-config for the root. Skip this if
  // the version is too old.
  const config = findProgram(join(dirname(path), 'em-config'));
  const root = config && atLeast(version, EMSCRIPTEN_MINIMUM) && (await ask([config, 'EMSCRIPTEN_ROOT']));
  return { source: 'path', root: root || dirname(path), path, version };
}

/** Returns the unpacked Emscripten in `folder`, in the form of `findEmscripten`; null if it is incomplete. */
export function unpackedEmscripten(folder) {
  const versions = completeFolder(folder, RECIPE);
  if (!versions) return null;
  return { source: 'debian13', root: folder, path: join(folder, 'emcc'), version: versionIn(versions.emscripten) };
}

/** Unpacks the needed parts of Debian 13's Emscripten, Binaryen and acorn (a JavaScript parser) into `folder`. */
export async function unpackEmscripten(packages, folder) {
  const versions = Object.fromEntries(EMSCRIPTEN_PACKAGES.map((name) => [name, packages[name].version]));
  const excluded = [...LEFT_OUT, ...NOT_NEEDED].map((name) => `--exclude=./usr/share/emscripten/${name}`);
  const strip = '--strip-components=4'; // ./usr/share/emscripten, ./usr/share/nodejs
  await buildFolder(folder, RECIPE, versions, (partial) =>
    Promise.all([
      unpack(packages.emscripten.file, partial, [strip, '--anchored', ...excluded, './usr/share/emscripten']),
      unpack(packages['node-acorn'].file, join(partial, 'node_modules'), [strip, './usr/share/nodejs/acorn']),
      unpackBinaryen(packages, join(partial, 'binaryen')),
    ]),
  );
}

/**
 * Debian 13's Binaryen needs a newer C library than Debian 12's, so its tools start with the libraries of Debian 13.
 */
async function unpackBinaryen(packages, folder) {
  const everything = `${folder}.deb`;
  for (const name of ['binaryen', 'libc6', 'libstdc++6', 'libgcc-s1']) {
    await unpack(packages[name].file, everything, ['--exclude=*/share/*', '--exclude=*/gconv', './usr']);
  }
  const [libraries, programs, bin] = ['lib', 'programs', 'bin'].map((name) => join(folder, name));
  await Promise.all([libraries, programs, bin].map((path) => mkdir(path, { recursive: true })));

  const system = join(everything, 'usr/lib');
  const architecture = readdirSync(system).find((name) => name.endsWith('-linux-gnu'));
  const built = join(system, architecture);
  const wanted = /^(ld-linux.*|lib(c|m|pthread|dl|rt)\.so.*|libstdc\+\+\.so\.6|libgcc_s\.so\.1|libbinaryen\.so)$/;
  const names = readdirSync(built).filter((name) => wanted.test(name));
  await Promise.all(names.map((name) => copyFile(join(built, name), join(libraries, name)))); // follows links
  const loader = names.find((name) => name.startsWith('ld-linux'));

  const tools = readdirSync(join(everything, 'usr/bin')).filter((name) => !/fuzz|shell/.test(name));
  for (const tool of tools) {
    await copyFile(join(everything, 'usr/bin', tool), join(programs, tool));
    const start = `exec "$here/lib/${loader}" --library-path "$here/lib" "$here/programs/${tool}" "$@"`;
    await writeProgram(join(bin, tool), `#!/bin/sh\nhere=\${0%/*}/..\n${start}\n`);
  }
  await chmod(join(libraries, loader), 0o755);
  await rm(everything, { recursive: true });
}

/**
 * Writes the files that depend on this machine. Replaces Emscripten's start scripts by scripts that need no environment
 * variables and ignore the variables of another Emscripten, so that Ninja can call them from any shell.
 */
export async function configureUnpacked(folder) {
  const python = findProgram('/usr/bin/python3', 'python3'); // the python3 of a version manager starts slowly
  const lines = [
    'import os',
    "here = os.path.dirname(os.path.abspath(os.environ['EM_CONFIG']))",
    `LLVM_ROOT = ${JSON.stringify(dirname(findProgram(`clang-${LLVM}`)))}`,
    `LLVM_ADD_VERSION = '${LLVM}'`,
    `CLANG_ADD_VERSION = '${LLVM}'`,
    "BINARYEN_ROOT = os.path.join(here, 'binaryen')",
    `NODE_JS = ${JSON.stringify(process.execPath)}`,
    'FROZEN_CACHE = True', // the system libraries are prebuilt
  ];
  await writeIfChanged(join(folder, '.emscripten'), `${lines.join('\n')}\n`);
  // Otherwise Node would find the project's package.json and treat Emscripten's scripts as ES modules.
  await writeIfChanged(join(folder, 'package.json'), '{ "private": true, "type": "commonjs" }\n');
  const tools = ['emcc', 'em++', 'emar', 'emranlib', 'em-config', 'tools/emnm'];
  for (const tool of tools) {
    const start = `EM_CONFIG="$here/.emscripten" exec "${python}" -E "$here/${tool}.py" "$@"`;
    await writeProgram(join(folder, basename(tool)), `#!/bin/sh\nhere=\${0%/*}\n${start}\n`);
  }
}

/** The CMake toolchain file of the WebAssembly presets. */
export function emscriptenToolchain({ root }) {
  const path = (text) => text.replaceAll('\\', '/');
  return [
    '# Written by the set-up (native/dev): the Emscripten that it found or unpacked, and the Node.js that runs tests.',
    'if(NOT DEFINED CMAKE_CROSSCOMPILING_EMULATOR)',
    `  set(CMAKE_CROSSCOMPILING_EMULATOR "${path(process.execPath)}")`,
    'endif()',
    `include("${path(root)}/cmake/Modules/Platform/Emscripten.cmake")`,
    '',
  ].join('\n');
}
