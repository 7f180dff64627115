// Builds everything, or the requested part: `npm run build [-- native|page] [--peers]`.
//
// With --peers, the speed section of the page also offers ONNX Runtime and TensorFlow.js, which are installed into
// build/peers.
//
// CMake and Ninja know which outputs are up to date. The TypeScript package and the page are rebuilt only when one of
// their source files has changed.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { UsageError, run, say, step } from './console.mjs';
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
    const said = await run(['cmake', '--build', '--preset', preset, ...parallel, ...part], { cwd: ROOT, onOutput });
    const commands = said.match(/^\[\d+\/\d+\]/gm)?.length ?? 0;
    tell(commands ? `${commands} commands` : 'up to date');
  });
}

/** Builds the two WebAssembly modules, and these targets of their tests. */
export async function buildWasm({ tests = [], jobs } = {}) {
  // Set both options to ON or OFF explicitly, because CMake remembers the last value.
  const options = ['TESTS', 'PROGRAMS'].map((what) => `-DMULTIHEAD_${what}=${tests.length ? 'ON' : 'OFF'}`);
  await buildPreset('wasm', { options, target: ['multihead_wasm', ...tests], jobs });
}

/** Builds the package, and the module that measures the machine's peak in WebAssembly. */
export async function buildForWasmBenchmarks() {
  const options = ['-DMULTIHEAD_TESTS=OFF', '-DMULTIHEAD_PROGRAMS=ON'];
  await buildPreset('wasm', { options, target: ['multihead_wasm', 'multihead-peak'] });
  await buildPackage();
}

/** Builds bindings/dist: the contents of the npm package. */
export function buildPackage() {
  const inputs = ['build/wasm/bindings', 'bindings/src', 'bindings/build.mjs', 'bindings/sbom.mjs', 'bindings/sbom.template.json', 'bindings/tables.mjs', 'bindings/wire.inc', 'src/engine', 'bindings/package.json', 'bindings/tsconfig.json', 'bindings/tsconfig.command.json'];
  return buildOnce('Build package', inputs, 'bindings/dist/index.js', 'multihead');
}

/** Builds build/web: the page as static files. */
export function buildPage() {
  const own = ['src', 'public', 'index.html', 'package.json', 'peers.ts', 'plugins.ts', 'serve.mjs', 'tsconfig.json', 'vite.config.ts'];
  // The speed section contains the benchmarks' inputs and, if installed, their peers. The page also contains the
  // guides, if built.
  const inputs = [...own.map((name) => `web/${name}`), 'bindings/dist', 'bindings/bench', 'build/peers/package.json', 'build/docs/index.html'];
  const addresses = ['MULTIHEAD_ADDRESS', 'MULTIHEAD_SOURCE'].map((name) => process.env[name] ?? '');
  return buildOnce('Build page', inputs, 'build/web/index.html', '@multihead/web', addresses.join(' ').trim());
}

/** Builds the page and everything that it contains, without any tests. */
export async function buildForPage() {
  await buildWasm();
  await buildPackage();
  await buildPage();
}

export async function buildAll() {
  await buildPreset('native');
  await buildWasm({ tests: ['all'] });
  await buildPackage();
  await buildPage();
}

/** Runs a workspace's build script, unless the output exists and the inputs and settings equal the last build's. */
function buildOnce(name, inputs, output, workspace, settings = '') {
  return step(name, async (tell) => {
    const stamp = join(ROOT, 'build', 'stamps', workspace.replace(/\W/g, '-'));
    const wanted = `${fingerprint([...inputs, 'package-lock.json'])}${settings && ` ${settings}`}`;
    const built = await readFile(stamp, 'utf8').catch(() => null);
    if (built === wanted && statSync(join(ROOT, output), { throwIfNoEntry: false })) return tell('up to date');
    await run([...npmProgram(), 'run', 'build', '-w', workspace], { cwd: ROOT });
    await writeIfChanged(stamp, wanted); // the old fingerprint: changes made during the build trigger the next one
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
