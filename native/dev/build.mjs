// Builds everything, or the requested part: `npm run build [-- native|page] [--peers]`.
//
// With --peers, the speed section of the page also offers ONNX Runtime and TensorFlow.js, which are installed into
// build/peers.
//
// CMake and Ninja know which outputs are up to date. The TypeScript package and the page are rebuilt only when one of
// their source files has changed.
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs';
import { copyFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { SetupError, UsageError, run, say, step } from './console.mjs';
import { writeIfChanged } from './files.mjs';
import { npmProgram, runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/**
 * Configures and builds one preset of CMakePresets.json, with up to `jobs` commands at a time (default: Ninja's
 * choice).
 */
export function buildPreset(preset, { options = [], target, jobs } = {}) {
  return step(`Build ${preset}`, async (tell, progress) => {
    await run(['cmake', '--preset', preset, ...options], { cwd: ROOT });
    const part = target ? ['--target', ...[target].flat()] : [];
    const parallel = jobs ? ['--parallel', String(jobs)] : [];
    const onOutput = (text) => [...text.matchAll(/^\[(\d+\/\d+)\]/gm)].slice(-1).forEach(([, done]) => progress(done));
    const build = () => run(['cmake', '--build', '--preset', preset, ...parallel, ...part], { cwd: ROOT, onOutput });
    const said = await build().catch((error) => {
      // Headers of a Debian package keep the dates of its making, so Ninja does not see that an upgrade has replaced them.
      if (!/has been modified since the precompiled header/.test(error.output ?? '')) throw error;
      const folder = join(ROOT, 'build', preset);
      for (const name of readdirSync(folder, { recursive: true })) if (/\.[pg]ch$/.test(name)) rmSync(join(folder, name));
      return build();
    });
    failOnWarnings(said);
    const commands = said.match(/^\[\d+\/\d+\]/gm)?.length ?? 0;
    tell(commands ? `${commands} commands` : 'up to date');
  });
}

/** Throws in CI if a compiler warned. CMAKE_COMPILE_WARNING_AS_ERROR would be a flag, and everything compiled again. */
export function failOnWarnings(said, inCi = Boolean(process.env.CI)) {
  const [warning] = /^.*\bwarning: .*\[-W.*$/m.exec(said) ?? [];
  if (inCi && warning) throw new SetupError(`A warning is an error in CI: ${warning}`);
}

/** Builds these targets of the WebAssembly modules, and of their tests. */
export async function buildWasm({ modules = ['multihead_wasm'], tests = [], jobs } = {}) {
  // Set both options to ON or OFF explicitly, because CMake remembers the last value.
  const options = ['TESTS', 'PROGRAMS'].map((what) => `-DMULTIHEAD_${what}=${tests.length ? 'ON' : 'OFF'}`);
  await buildPreset('wasm', { options, target: [...modules, ...tests], jobs });
}

/** Builds bindings/dist: the contents of the npm package. */
export const buildPackage = () => buildOnce('Build package', PACKAGE_INPUTS, 'bindings/dist/index.js', 'multihead');
const PACKAGE_INPUTS = [
  'build/wasm/bindings',
  'bindings/src',
  'bindings/bench',
  'bindings/build.mjs',
  'bindings/sbom.mjs',
  'bindings/sbom.template.json',
  'bindings/tables.mjs',
  'bindings/wire.inc',
  'src/engine',
  'src/models',
  'src/nn',
  'src/webgpu',
  'bindings/models.cc',
  'bindings/package.json',
  'bindings/tsconfig.json',
  'bindings/tsconfig.command.json',
];

/** Builds build/web: the page as static files. `how`: the last argument of buildOnce(). */
export function buildPage(how = {}) {
  const own = [
    'src',
    'public',
    'index.html',
    'package.json',
    'peers.ts',
    'encoded.mjs',
    'plugins.ts',
    'serve.mjs',
    'tsconfig.json',
    'vite.config.ts',
  ];
  // The speed section contains the benchmarks' inputs and, if installed, their peers. The page also contains the
  // guides, if built.
  const inputs = [...own.map((name) => `web/${name}`), 'bindings/dist', 'bindings/bench', 'build/peers/package.json', 'build/docs/index.html'];
  const addresses = ['MULTIHEAD_ADDRESS', 'MULTIHEAD_SOURCE'].map((name) => process.env[name] ?? '');
  return buildOnce('Build page', inputs, 'build/web/index.html', '@multihead/web', { settings: addresses.join(' ').trim(), ...how });
}

/** Builds the page and everything that it contains, without any tests. */
export async function buildForPage() {
  await buildWasm();
  await buildPackage();
  await buildPage();
}

/**
 * Builds the page with what most browsers take, the modules for relaxed SIMD. Those for simd128 are built when a browser asks
 * for one, unless the whole package was built before.
 * @returns {Promise<(path: string) => Promise<void> | undefined>} a function of a request's path: the build for which the server
 *   waits before it answers
 */
export async function buildPageFirst() {
  await buildWasm({ modules: ['multihead_wasm_relaxed', 'multihead_wasm_models-relaxed'] });
  if (isBuilt('multihead', 'bindings/dist/index.js', stampOf(PACKAGE_INPUTS))) {
    await buildPage();
    return () => undefined;
  }
  await buildOnce('Build package', PACKAGE_INPUTS, 'bindings/dist/index.js', 'multihead', { script: 'build:page' });
  await buildPage({ script: 'build:first' });
  const built = new Map();
  let last = Promise.resolve();
  return (path) => {
    const [found, part] = /^\/assets\/multihead-(?:(\w+)-)?simd128-[^/]*\.wasm$/.exec(path) ?? [];
    if (found && !built.has(part)) {
      // One after the other: all are built in the same folder.
      last = last.catch(() => undefined).then(() => buildRequested(part, join(ROOT, 'build', 'web', path)));
      built.set(part, last);
    }
    return built.get(part);
  };
}

/** Builds a module for simd128, or the module whose part it is, in place of the file that stands for it in the page. */
async function buildRequested(part, file) {
  say(`A browser without relaxed SIMD asks for ${part ?? 'its build'}.`);
  const build = part === undefined ? 'simd128' : 'models-simd128';
  await buildWasm({ modules: [`multihead_wasm_${build}`] });
  const name = part === undefined || part === 'models' ? 'multihead' : part;
  await copyFile(join(ROOT, 'build', 'wasm', 'bindings', build, `${name}.wasm`), file);
}

export async function buildAll() {
  await buildPreset('native');
  await buildWasm({ tests: ['all'] });
  await buildPackage();
  await buildPage();
}

const stampFile = (workspace) => join(ROOT, 'build', 'stamps', workspace.replace(/\W/g, '-'));
/** Describes the inputs and settings of a build. */
const stampOf = (inputs, ...settings) => [fingerprint([...inputs, 'package-lock.json']), ...settings.filter(Boolean)].join(' ');
/** True if a workspace's last build had this stamp and its output exists. */
const isBuilt = (workspace, output, stamp) =>
  existsSync(join(ROOT, output)) && existsSync(stampFile(workspace)) && readFileSync(stampFile(workspace), 'utf8') === stamp;

/** Runs a script of a workspace's package.json, unless its output is current. */
function buildOnce(name, inputs, output, workspace, { settings = '', script = 'build' } = {}) {
  return step(name, async (tell) => {
    const stamp = stampOf(inputs, settings, script !== 'build' && script);
    if (isBuilt(workspace, output, stamp)) return tell('up to date');
    await run([...npmProgram(), 'run', script, '-w', workspace], { cwd: ROOT });
    await writeIfChanged(stampFile(workspace), stamp); // of the inputs before: changes made during the build trigger the next one
    tell(output.slice(0, output.lastIndexOf('/')));
  });
}

/**
 * Returns a hash over the contents of files and, recursively, folders of the checkout, without node_modules and without
 * the paths that are listed with a `!` before them.
 */
export function fingerprint(paths) {
  const hash = createHash('sha256');
  const left = new Set(paths.filter((path) => path.startsWith('!')).map((path) => join(ROOT, path.slice(1))));
  const add = (path) => {
    if (left.has(path)) return;
    const entry = statSync(path, { throwIfNoEntry: false });
    if (!entry) return;
    if (!entry.isDirectory()) return hash.update(`${relative(ROOT, path)}\0`).update(readFileSync(path));
    for (const name of readdirSync(path).sort()) {
      // Skip files of CMake next to the modules, and files that the package's build generates.
      if (!['CMakeFiles', 'cmake_install.cmake', 'node_modules', 'generated'].includes(name)) add(join(path, name));
    }
  };
  for (const path of paths) if (!path.startsWith('!')) add(join(ROOT, path));
  return hash.digest('hex');
}

runAsProgram(import.meta.url, async (...words) => {
  const [what = 'all', ...more] = words.filter((word) => word !== '--peers');
  const parts = {
    all: ['test', buildAll],
    native: ['test', () => buildPreset('native')],
    page: ['start', buildForPage],
  };
  if (!Object.hasOwn(parts, what) || more.length > 0) {
    throw new UsageError(`Build what? Expected ${Object.keys(parts).join(', ')}, and --peers or not, got ${words.join(' ')}`);
  }
  const [purpose, build] = parts[what];
  await setup({ purpose });
  // Imported here, because it imports this file.
  if (words.includes('--peers')) await (await import('./bench/peers.mjs')).installPeers();
  await build();
  say('Built.');
});
