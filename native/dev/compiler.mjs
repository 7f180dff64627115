// Finds the native C++ compiler and tells CMake which one to use.
import { existsSync } from 'node:fs';
import { ask } from './console.mjs';
import { hasApt } from './debian.mjs';
import { atLeast, findProgram, versionIn } from './find.mjs';

/**
 * The preferred compiler: used if both are installed, and installed if neither is. Emscripten already brings clang 19,
 * and its kernels ran 5 % (long sequences) to 20 % (short sequences) faster than those from g++ 12.
 */
const PREFERRED = 'clang++';

const COMPILERS = {
  'g++': {
    minimum: '12',
    names: ['g++', 'g++-15', 'g++-14', 'g++-13', 'g++-12'],
    apt: [['g++']],
  },
  'clang++': {
    minimum: '16',
    names: ['clang++-19', 'clang++', 'clang++-20', 'clang++-18', 'clang++-17', 'clang++-16'],
    apt: [['clang-19'], ['libomp-19-dev'], ['libclang-rt-19-dev']], // separate packages: OpenMP, sanitizers
  },
};

export const compilerPackages = COMPILERS[PREFERRED].apt;

/** Identifies a compiler: { path, id, version }, or null. */
async function identify(path) {
  const said = path && (await ask([path, '--version']));
  if (!said) return null;
  const id = /clang/i.test(said) ? 'Clang' : 'GNU'; // macOS names its clang g++, too
  return { path, id, version: versionIn(said.replace(/\(.*?\)/, '')) };
}

/**
 * True unless clang is known to lack OpenMP. On Debian and Ubuntu, OpenMP is a separate package; elsewhere CMake finds
 * out.
 */
const hasOpenMp = ({ version }) => {
  const llvm = `/usr/lib/llvm-${parseInt(version, 10)}`;
  return !existsSync(llvm) || existsSync(`${llvm}/lib/libomp.so`);
};

/**
 * Finds OpenMP for the preferred compiler; null if it is missing. Checked only on systems where apt could install it.
 */
export const findOpenMpOfClang = async () =>
  !hasApt() || process.env.CXX || existsSync('/usr/lib/llvm-19/lib/libomp.so') ? { version: null } : null;

/** Chooses the compiler: CXX if set, else the preferred one, else the other: { path, id, version }, or null. */
export async function findCompiler() {
  if (process.env.CXX) return identify(findProgram(process.env.CXX.split(' ')[0]));
  const order = Object.keys(COMPILERS).sort((a, b) => (b === PREFERRED) - (a === PREFERRED));
  for (const kind of order) {
    const { minimum, names } = COMPILERS[kind];
    const found = await Promise.all(names.map((name) => identify(findProgram(name))));
    const usable = found.find((it) => it && atLeast(it.version, minimum) && (it.id === 'GNU' || hasOpenMp(it)));
    if (usable) return usable;
  }
  return null;
}

/** The CMake toolchain file of the native presets; the command line and CXX override its choices. */
export function nativeToolchain(compiler, highwayIsOurs) {
  let text = '# Written by the set-up (native/dev): the compiler and the Highway that it found or unpacked.\n';
  if (compiler && !process.env.CXX) {
    const path = compiler.path.replaceAll('\\', '/');
    text += `if(NOT DEFINED CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})\n  set(CMAKE_CXX_COMPILER "${path}")\nendif()\n`;
  }
  if (highwayIsOurs) text += 'list(APPEND CMAKE_PREFIX_PATH "${CMAKE_CURRENT_LIST_DIR}/highway/usr")\n';
  return text;
}
