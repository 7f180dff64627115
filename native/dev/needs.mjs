// Everything that the project needs, in one table: the minimum version, how to find it on a machine, and the names of
// its packages.
import { join } from 'node:path';
import { compilerPackages, findCompiler, findOpenMpOfClang } from './compiler.mjs';
import { installsUnasked } from './debian.mjs';
import { EMSCRIPTEN_MINIMUM, findEmscripten } from './emscripten.mjs';
import { atLeast, findLibrary, findProgram, programWithVersion } from './find.mjs';
import { findHighway } from './highway.mjs';
import { findWebKit } from './webkit.mjs';
import { ARM64_COMPILER, ARM64_EMULATOR, emulatesArm64 } from './arm64.mjs';

const macApp = (name) => `/Applications/${name}.app/Contents/MacOS/${name}`;
const windowsApp = (...path) => join(process.env.ProgramFiles ?? 'C:\\Program Files', ...path);
const SHELL = 'chromium-headless-shell';
const cmakePackageVersion = /PACKAGE_VERSION "([\d.]+)"/;

/**
 * `purpose`: the smallest purpose that needs it (see INCLUDED). `apt`: the packages, each with alternative names;
 * missing if the set-up unpacks it. `elsewhere`: the names in other package managers. `optional`: the consequence of
 * not having it; missing if it is required.
 */
export const NEEDS = {
  cmake: {
    title: 'CMake',
    minimum: '3.25',
    purpose: 'start',
    find: () => programWithVersion('cmake'),
    apt: [['cmake']],
    elsewhere: { brew: 'cmake', dnf: 'cmake', pacman: 'cmake' },
  },
  ninja: {
    title: 'Ninja',
    minimum: '1.10',
    purpose: 'start',
    find: () => programWithVersion('ninja', 'ninja-build'),
    apt: [['ninja-build']],
    elsewhere: { brew: 'ninja', dnf: 'ninja-build', pacman: 'ninja' },
  },
  python: {
    title: 'Python', // Emscripten is written in Python
    minimum: '3.8',
    purpose: 'start',
    find: () => programWithVersion('python3', 'python'),
    apt: [['python3']],
    elsewhere: { brew: 'python', dnf: 'python3', pacman: 'python' },
  },
  emscripten: {
    title: 'Emscripten',
    minimum: EMSCRIPTEN_MINIMUM,
    purpose: 'start',
    find: findEmscripten,
    elsewhere: { brew: 'emscripten', dnf: 'emscripten', pacman: 'emscripten' },
  },
  highway: {
    title: 'Highway',
    minimum: '1.2',
    purpose: 'start',
    find: findHighway,
    elsewhere: { brew: 'highway', dnf: 'highway-devel', pacman: 'highway' },
  },
  cxx: {
    title: 'C++20: clang++ >= 16, or g++', // the minimum for g++ is given below
    minimum: '12',
    purpose: 'quick',
    find: findCompiler,
    apt: compilerPackages,
    elsewhere: { brew: 'llvm libomp', dnf: 'gcc-c++', pacman: 'gcc' },
  },
  // Installed even if g++ is: Emscripten needs clang anyway, but not its OpenMP and sanitizers.
  openmp: {
    title: 'OpenMP for clang++',
    minimum: '0',
    purpose: 'quick',
    optional: 'g++ is used, whose kernels are slower',
    find: findOpenMpOfClang,
    apt: compilerPackages,
    elsewhere: {},
  },
  eigen: {
    title: 'Eigen',
    minimum: '3.4',
    purpose: 'quick',
    find: () =>
      findLibrary('Eigen/Core', null, [
        ['Eigen/Version', ['EIGEN_MAJOR_VERSION', 'EIGEN_MINOR_VERSION']],
        ['Eigen/src/Core/util/Macros.h', ['EIGEN_WORLD_VERSION', 'EIGEN_MAJOR_VERSION', 'EIGEN_MINOR_VERSION']],
      ]),
    apt: [['libeigen3-dev']],
    elsewhere: { brew: 'eigen', dnf: 'eigen3-devel', pacman: 'eigen' },
  },
  googletest: {
    title: 'GoogleTest',
    minimum: '1.12',
    purpose: 'quick',
    find: () => findLibrary('gtest/gtest.h', 'GTest', [['cmake/GTest/GTestConfigVersion.cmake', cmakePackageVersion]]),
    apt: [['libgtest-dev'], ['libgmock-dev'], ['googletest']],
    elsewhere: { brew: 'googletest', dnf: 'gtest-devel gmock-devel', pacman: 'gtest' },
  },
  benchmark: {
    title: 'Google Benchmark',
    minimum: '1.7',
    purpose: 'test',
    find: () => findLibrary('benchmark/benchmark.h', 'benchmark', [['cmake/benchmark/benchmarkConfigVersion.cmake', cmakePackageVersion]]),
    apt: [['libbenchmark-dev']],
    elsewhere: { brew: 'google-benchmark', dnf: 'google-benchmark-devel', pacman: 'benchmark' },
  },
  json: {
    title: 'nlohmann_json',
    minimum: '3.9',
    purpose: 'quick',
    find: () => {
      const version = ['MAJOR', 'MINOR', 'PATCH'].map((part) => `NLOHMANN_JSON_VERSION_${part}`);
      const versionAt = ['nlohmann/json.hpp', 'nlohmann/detail/abi_macros.hpp'].map((file) => [file, version]);
      return findLibrary('nlohmann/json.hpp', null, versionAt);
    },
    apt: [['nlohmann-json3-dev']],
    elsewhere: { brew: 'nlohmann-json', dnf: 'json-devel', pacman: 'nlohmann-json' },
  },
  cli11: {
    title: 'CLI11',
    minimum: '2.1',
    purpose: 'test',
    find: () => findLibrary('CLI/CLI.hpp', null, [['CLI/Version.hpp', ['CLI11_VERSION_MAJOR', 'CLI11_VERSION_MINOR']]]),
    apt: [['libcli11-dev']],
    elsewhere: { brew: 'cli11', dnf: 'cli11-devel', pacman: 'cli11' },
  },
  boost: {
    title: 'Boost.Context',
    minimum: '1.74',
    purpose: 'test',
    optional: 'the tests of the CUDA kernels will be left out',
    find: () => findLibrary('boost/context/fiber.hpp', 'boost_context', [['boost/version.hpp', /BOOST_LIB_VERSION "(\d+)_(\d+)/]]),
    apt: [['libboost-context-dev']],
    elsewhere: { brew: 'boost', dnf: 'boost-devel', pacman: 'boost' },
  },
  pkgConfig: {
    title: 'pkg-config',
    minimum: '0',
    purpose: 'test',
    optional: 'its tests will be left out',
    find: () => programWithVersion('pkg-config'),
    apt: [['pkgconf', 'pkg-config']],
    elsewhere: { brew: 'pkgconf', dnf: 'pkgconf-pkg-config', pacman: 'pkgconf' },
  },
  chromium: {
    title: 'Chromium or Chrome',
    minimum: '114',
    purpose: 'test',
    optional: 'the tests in it will be left out',
    find: findChromium,
    apt: [['chromium', 'chromium-browser']],
    elsewhere: { brew: '--cask google-chrome', dnf: 'chromium', pacman: 'chromium' },
  },
  // Chromium without windows, for `npm test`: the tests of the page take a quarter less processor time in it. Chromium
  // itself serves as well. `npm test -- --all` runs the essential tests in Chromium, and the others in the shell if it
  // is installed.
  headlessShell: {
    title: 'Chromium (headless shell)',
    minimum: '114',
    purpose: 'quick alone',
    optional: 'the tests in it will be left out',
    find: findHeadlessShell,
    apt: [[SHELL, 'chromium', 'chromium-browser']],
    elsewhere: { brew: '--cask google-chrome', dnf: 'chromium', pacman: 'chromium' },
  },
  firefox: {
    title: 'Firefox',
    minimum: '128',
    purpose: 'test',
    optional: 'the tests in it will be left out',
    find: () => findBrowser('firefox-esr', 'firefox', macApp('firefox'), windowsApp('Mozilla Firefox', 'firefox.exe')),
    apt: [['firefox-esr', 'firefox']],
    elsewhere: { brew: '--cask firefox', dnf: 'firefox', pacman: 'firefox' },
  },
  mpi: {
    title: 'MPI',
    minimum: '0',
    purpose: 'mpi',
    optional: 'the tests of attention over several processes will be left out',
    find: () => {
      const [path, runner] = [findProgram('mpicxx'), findProgram('mpirun')]; // mpicxx comes with the headers
      return path && runner && { path, version: null };
    },
    apt: [['libopenmpi-dev'], ['openmpi-bin']],
    elsewhere: { brew: 'open-mpi', dnf: 'openmpi-devel', pacman: 'openmpi' },
  },
  arm64: {
    title: 'compiler and emulator for ARM64',
    minimum: '0',
    purpose: 'all',
    optional: 'the tests on an emulated ARM64 processor will be left out',
    find: async () => {
      if (!emulatesArm64) return { version: null }; // an ARM64 machine needs no emulator
      const [path, emulator] = [findProgram(ARM64_COMPILER), findProgram(ARM64_EMULATOR)];
      return path && emulator && { path, emulator, version: null };
    },
    apt: [['g++-aarch64-linux-gnu'], ['qemu-user']],
    elsewhere: {},
  },
  // With its driver, and a virtual screen.
  webkit: {
    title: 'WebKitGTK',
    minimum: '2.40',
    purpose: 'all',
    optional: 'the tests in WebKit, the engine of Safari, will be left out',
    find: findWebKit,
    apt: [['webkit2gtk-driver'], ['xvfb']],
    elsewhere: {},
  },
  doxygen: {
    title: 'Doxygen',
    minimum: '1.9',
    purpose: 'docs',
    find: () => programWithVersion('doxygen'),
    apt: [['doxygen']],
    elsewhere: { brew: 'doxygen', dnf: 'doxygen', pacman: 'doxygen' },
  },
};

/** Finds only the path: browsers start slowly, and some open a window when called with --version. */
async function findBrowser(...names) {
  const path = findProgram(...names);
  return path && { path, version: null };
}

function findChromium() {
  const names = ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'];
  const onWindows = windowsApp('Google', 'Chrome', 'Application', 'chrome.exe');
  return findBrowser(...names, macApp('Google Chrome'), macApp('Chromium'), onWindows);
}

/** Finds what CHROMIUM_PATH names, else the shell; else Chromium, unless the set-up can install the shell unasked. */
async function findHeadlessShell() {
  if (process.env.CHROMIUM_PATH) return { path: process.env.CHROMIUM_PATH, version: null };
  const shell = await findBrowser(SHELL);
  return shell ?? ((await installsUnasked(SHELL)) ? null : findChromium());
}

/** Looks for everything in the table; returns the results by the table's keys, including versions that are too old. */
export async function surveyMachine() {
  const found = await Promise.all(Object.entries(NEEDS).map(async ([key, need]) => [key, await need.find()]));
  return Object.fromEntries(found);
}

/** The values of NEEDS' `purpose` that each purpose of the set-up includes. */
export const INCLUDED = {
  start: ['start'],
  quick: ['start', 'quick', 'quick alone'],
  test: ['start', 'quick', 'test'],
  mpi: ['start', 'quick', 'test', 'mpi'],
  all: ['start', 'quick', 'test', 'mpi', 'all'],
  docs: ['docs'],
};

/** Returns the keys of everything that `purpose` needs and `machine` lacks. */
export function missingFor(purpose, machine) {
  const needed = Object.keys(NEEDS).filter((key) => INCLUDED[purpose].includes(NEEDS[key].purpose));
  return needed.filter((key) => !machine[key] || !atLeast(machine[key].version, NEEDS[key].minimum));
}

/** Returns a message that lists everything missing, and how this machine's package manager can install it. */
export function explainMissing(keys, machine) {
  const lines = keys.map((key) => {
    const { title, minimum } = NEEDS[key];
    const found = machine[key] ? `found ${machine[key].version}` : 'not found';
    return `  ${`${title} >= ${minimum}`.padEnd(40)} ${found}`;
  });
  const managers = { brew: 'brew install', dnf: 'sudo dnf install', pacman: 'sudo pacman -S' };
  const [manager, command] = Object.entries(managers).find(([name]) => findProgram(name)) ?? [];
  const packages = keys.map((key) => NEEDS[key].elsewhere[manager]);
  const [casks, plain] = [true, false].map((cask) => packages.filter((name) => name?.startsWith('--cask') === cask));
  const commands = [plain, ...casks.map((name) => [name])].filter((names) => names.length);
  const advice = manager ? `\n\nFor example with:\n${commands.map((names) => `  ${command} ${names.join(' ')}`).join('\n')}` : '';
  return {
    message: `This machine lacks what the project needs:\n${lines.join('\n')}${advice}`,
    advice: 'Install these (Emscripten also comes from https://emscripten.org/docs/getting_started/downloads.html), then run this again.',
  };
}
