// Sets a machine up for the project: `node native/dev/setup.mjs [start|quick|test|mpi|all|docs]`. With `cuda`, gets a CUDA
// compiler if none is installed; nothing else needs it.
//
// Uses installed programs that are new enough. On Debian and Ubuntu, apt installs the rest, except Emscripten and
// Highway: these are too old there, and are unpacked into build/toolchain. On other systems it prints what to install.
// An interrupted run continues where it stopped; with nothing to do, a run takes a second or two.
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile, rm, stat, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { arm64Toolchain } from './arm64.mjs';
import { nativeToolchain } from './compiler.mjs';
import { CUDA_COMPONENTS, CUDA_PACKAGES, findCuda, unpackCuda } from './cuda.mjs';
import { SetupError, run, say, step, stopCommands } from './console.mjs';
import { KEYRING_PACKAGE, administrator, downloadFromDebian13, hasApt, hasDebianKeyring, installSystemPackages } from './debian.mjs';
import {
  CLANG_PACKAGES,
  EMSCRIPTEN_PACKAGES,
  configureUnpacked,
  emscriptenToolchain,
  hasClang,
  unpackEmscripten,
  unpackedEmscripten,
} from './emscripten.mjs';
import { withLock, writeIfChanged } from './files.mjs';
import { atLeast } from './find.mjs';
import { HIGHWAY_PACKAGES, linkHeaders, unpackHighway, unpackedHighway } from './highway.mjs';
import { INCLUDED, NEEDS, explainMissing, missingFor, surveyMachine } from './needs.mjs';
import { npmProgram, runAsProgram } from './program.mjs';

const NODE_MINIMUM = '20.19';
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const at = (...path) => join(ROOT, 'build', 'toolchain', ...path);
const THERE = 'already there';
/** The folder with the npm packages of `npm run docs`, which nothing else needs. */
const DOCS_TOOLS = join(ROOT, 'native', 'dev', 'docs');

const PURPOSES = Object.keys(INCLUDED);

/**
 * @param {{ purpose?: 'start' | 'quick' | 'test' | 'all' | 'mpi' | 'docs' }} [options] `start`: everything to build
 *   the WebAssembly package and serve the page. `quick`: also what `npm test` needs: the native compiler, the test
 *   libraries and Chromium's headless shell. `test`: besides what `start` and the native tests need, the libraries of
 *   the native programs, Chromium itself and Firefox.
 *   `mpi`: also MPI, for attention over several processes. `all`: everything that `npm test -- --all` uses, including
 *   MPI, an emulated ARM64 processor and WebKit. `docs`: only the tools of `npm run docs`.
 * @returns {Promise<object>} the contents of build/toolchain/manifest.json; for `docs`, the programs found
 */
export async function setup({ purpose = 'all' } = {}) {
  if (!PURPOSES.includes(purpose)) {
    throw new SetupError(`expected one of ${PURPOSES.join(', ')}, got ${purpose}`);
  }
  const begun = performance.now();
  say(`Setting up for: ${purpose}`);
  const manifest = await withLock(at(), say, () => setUp(purpose));
  say(`Ready after ${((performance.now() - begun) / 1000).toFixed(1)} s`);
  return manifest;
}

async function setUp(purpose) {
  await step('Node.js', (tell) => {
    tell(process.versions.node);
    if (atLeast(process.versions.node, NODE_MINIMUM)) return;
    throw new SetupError(`Node.js ${process.versions.node} is too old`, `Install Node.js ${NODE_MINIMUM} or newer.`);
  });
  let machine = await step('This machine', (tell) => survey(tell, purpose));
  const missing = missingFor(purpose, machine);
  if (!hasApt()) requireAll(missing, machine, purpose);
  const wishes = hasApt() ? packagesFor(missing, machine) : [];
  const asAdministrator = wishes.length ? await administrator(wishes) : null; // first: may ask for a password

  // The three downloads are independent, so they run in parallel.
  const system = step('System packages', async (tell) => {
    if (!wishes.length) return tell(THERE);
    // For example without a network.
    const canDoWithout = machine.chromium && missing.every((key) => key === 'headlessShell');
    const installed = await installSystemPackages(wishes, asAdministrator).catch((error) => {
      if (!canDoWithout) throw error;
    });
    tell(installed ? list(installed) : 'not installed, Chromium is used');
  });
  const modules = step('npm packages', (tell) => installNodeModules(tell, purpose === 'docs' ? DOCS_TOOLS : ROOT));
  const unpacked = unpackMissing(missing, hasDebianKeyring() ? null : system); // system: has the keys
  await allOrFirstFailure([system, unpacked, modules]);

  if (missing.length) machine = await survey(() => {}, purpose);
  machine.headlessShell ??= machine.chromium;
  const lacking = missingFor(purpose, machine);
  requireAll(lacking, machine, purpose);
  for (const key of lacking) say(`  note: no ${NEEDS[key].title} found, so ${NEEDS[key].optional}`);
  return purpose === 'docs' ? machine : step('Configuration', (tell) => configure(machine, tell));
}

/** Surveys the machine. The unpacked Emscripten and Highway replace missing or too old ones. */
async function survey(tell, purpose) {
  const machine = await surveyMachine();
  const tooOld = new Set(missingFor(purpose, machine));
  if (tooOld.has('emscripten')) machine.emscripten = unpackedEmscripten(at('emscripten')) ?? machine.emscripten;
  if (tooOld.has('highway')) machine.highway = unpackedHighway(at('highway')) ?? machine.highway;
  const missing = missingFor(purpose, machine);
  tell(missing.length ? `lacks ${list(missing.map((key) => NEEDS[key].title))}` : 'has everything');
  return machine;
}

const list = (names) => (names.length > 4 ? `${names.slice(0, 3).join(', ')} and ${names.length - 3} more` : names.join(', '));

/** Returns the system packages that provide the missing needs. */
function packagesFor(missing, machine) {
  const wishes = missing.flatMap((key) => (NEEDS[key].apt ?? []).map((names) => ({ names, optional: Boolean(NEEDS[key].optional) })));
  const unpacksEmscripten = missing.includes('emscripten') || machine.emscripten?.source === 'debian13';
  const also = [
    ...(unpacksEmscripten && !hasClang() ? CLANG_PACKAGES : []),
    ...(missing.some((key) => !NEEDS[key].apt) && !hasDebianKeyring() ? [KEYRING_PACKAGE] : []),
  ];
  return [...wishes, ...also.map((name) => ({ names: [name] }))];
}

function requireAll(missing, machine, purpose) {
  const required = missing.filter((key) => !NEEDS[key].optional || (NEEDS[key].purpose === purpose && purpose === 'mpi'));
  if (!required.length) return;
  const { message, advice } = explainMissing(missing, machine);
  throw new SetupError(message, advice);
}

/** Waits for all tasks. The first failure stops the commands of the other tasks, and is thrown. */
async function allOrFirstFailure(tasks) {
  let failure = null;
  const stopOthers = (error) => {
    failure = failure ?? error; // not ??=, so that an old Node.js can parse this and print its message
    stopCommands();
  };
  await Promise.all(tasks.map((task) => task.catch(stopOthers)));
  if (failure) throw failure;
}

/** Downloads and unpacks Emscripten and Highway if they are missing. */
async function unpackMissing(missing, after) {
  const emscripten = missing.includes('emscripten');
  const highway = missing.includes('highway');
  await after;
  const folder = at('download');
  const names = [...(highway ? HIGHWAY_PACKAGES : []), ...(emscripten ? EMSCRIPTEN_PACKAGES : [])];
  const packages = await step('Downloads', (tell) => {
    tell(names.length ? `${names.length} packages of Debian 13` : THERE);
    return names.length ? downloadFromDebian13(names, folder) : null;
  });
  const unpack = (wanted, name, work) =>
    step(name, async (tell) => {
      if (!wanted) return tell(THERE);
      await work();
      tell(`unpacked into build/toolchain/${name.toLowerCase()}`);
    });
  await Promise.all([
    unpack(highway, 'Highway', () => unpackHighway(packages, at('highway'))),
    unpack(emscripten, 'Emscripten', () => unpackEmscripten(packages, at('emscripten'))),
  ]);
  await rm(folder, { recursive: true, force: true });
}

const timeOf = (path) =>
  stat(path).then(
    (it) => it.mtimeMs,
    () => 0,
  );

/** Runs npm in a folder unless its installed packages match package-lock.json. */
async function installNodeModules(tell, folder) {
  const name = folder === ROOT ? 'npm' : basename(folder);
  const lock = join(folder, 'package-lock.json');
  const hasLock = existsSync(lock);
  if (!existsSync(join(folder, 'package.json'))) return tell('no package.json yet');
  const wanted = createHash('sha256')
    .update(await readFile(hasLock ? lock : join(folder, 'package.json')))
    .digest('hex');
  const stamp = at(`${name}.stamp`);
  const installed = await readFile(stamp, 'utf8').catch(() => null);
  const [lockTime, treeTime] = await Promise.all([lock, join(folder, 'node_modules', '.package-lock.json')].map(timeOf));
  const byHand = hasLock && treeTime >= lockTime - 5000; // npm install writes both files within seconds
  if (treeTime && (installed === wanted || byHand)) {
    await writeIfChanged(stamp, wanted);
    return tell(THERE);
  }
  await rm(stamp, { force: true });
  const verb = hasLock ? 'ci' : 'install';
  const advice = 'Is there a network connection to the npm registry? Run this again: it continues where it stopped.';
  await run([...npmProgram(), verb, '--no-audit', '--no-fund', '--loglevel=error'], {
    cwd: folder,
    advice,
    pidFile: at(`${name}.pid`),
  });
  await writeFile(stamp, wanted);
  tell(`npm ${verb}`);
}

/** Writes the files that tell CMake and the other scripts which programs and libraries to use. */
async function configure(machine, tell) {
  const { emscripten, highway, eigen, json } = machine;
  if (emscripten.source === 'debian13') await configureUnpacked(at('emscripten'));
  const highwayIsOurs = highway.prefix === at('highway', 'usr');
  await writeIfChanged(at('emscripten.cmake'), emscriptenToolchain(emscripten));
  await writeIfChanged(at('native.cmake'), nativeToolchain(machine.cxx, highwayIsOurs));
  if (machine.arm64?.emulator) await writeIfChanged(at('arm64.cmake'), arm64Toolchain(machine.cxx));
  await linkHeaders(at('headers'), {
    hwy: join(highway.include, 'hwy'),
    Eigen: eigen && join(eigen.include, 'Eigen'),
    nlohmann: json && join(json.include, 'nlohmann'),
  });
  const googletestSource = '/usr/src/googletest'; // where Debian and Ubuntu install it
  const { source, version, root, path: emcc } = emscripten;
  const { cmake, ninja, python, cxx, googletest, benchmark } = machine;
  const manifest = {
    node: { path: process.execPath, version: process.versions.node },
    emscripten: { source, version, emcc, root },
    highway,
    cmake,
    ninja,
    python,
    cxx,
    eigen,
    googletest,
    benchmark,
    json,
    arm64: machine.arm64,
    googletestSource: existsSync(join(googletestSource, 'googletest', 'src')) ? googletestSource : null,
    chromium: machine.chromium?.path ?? null,
    headlessShell: machine.headlessShell?.path ?? null,
    firefox: machine.firefox?.path ?? null,
    webkit: machine.webkit?.path ?? null,
  };
  await writeIfChanged(at('manifest.json'), `${JSON.stringify(manifest, null, 2)}\n`);
  tell(`Emscripten ${version}, Highway ${highway.version}${cxx ? `, ${cxx.id} ${cxx.version}` : ''}`);
  return manifest;
}

/** Sets up a CUDA compiler: an installed one, else Debian 13's, unpacked into build/toolchain/cuda. */
async function setUpCuda() {
  await withLock(at(), say, () =>
    step('CUDA', async (tell) => {
      const found = await findCuda(at('cuda'));
      if (found) return tell(`${found.version} at ${found.path}`);
      if (!hasApt()) throw new SetupError('No nvcc was found', "Install NVIDIA's CUDA toolkit 12.4 or newer.");
      const folder = at('download');
      await unpackCuda(await downloadFromDebian13(CUDA_PACKAGES, folder, CUDA_COMPONENTS), at('cuda'));
      await rm(folder, { recursive: true, force: true });
      tell(`${(await findCuda(at('cuda')))?.version} unpacked into build/toolchain/cuda`);
    }),
  );
}

runAsProgram(import.meta.url, async (...given) => {
  if (given.length === 1 && given[0] === 'cuda') return setUpCuda();
  if (given.length > 1) throw new SetupError(`Usage: node native/dev/setup.mjs [${PURPOSES.join('|')}|cuda]`);
  await setup({ purpose: given[0] });
});
