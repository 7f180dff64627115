// Builds everything, or the part that is asked for: `npm run build`, or `node native/dev/build.mjs native|page`.
//
// CMake and Ninja know by themselves what is up to date; the TypeScript package and the page are built again only when
// a file that they are made of has changed.
import { createHash } from 'node:crypto';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { UsageError, run, say, step } from './console.mjs';
import { writeIfChanged } from './files.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** Configures and builds one preset of CMakePresets.json, with this many commands at a time (default: Ninja's own choice). */
export function buildPreset(preset, { options = [], target, jobs } = {}) {
  return step(`Build ${preset}`, async (tell) => {
    await run(['cmake', '--preset', preset, ...options], { cwd: ROOT });
    const part = target ? ['--target', ...[target].flat()] : [];
    const parallel = jobs ? ['--parallel', String(jobs)] : [];
    const said = await run(['cmake', '--build', '--preset', preset, ...parallel, ...part], { cwd: ROOT });
    const commands = said.match(/^\[\d+\/\d+\]/gm)?.length ?? 0;
    tell(commands ? `${commands} commands` : 'up to date');
  });
}

/** The two WebAssembly modules, and these targets of their tests. */
export async function buildWasm({ tests = [], jobs } = {}) {
  // Stated both ways, since CMake remembers the last.
  const options = ['TESTS', 'PROGRAMS'].map((what) => `-DMULTIHEAD_${what}=${tests.length ? 'ON' : 'OFF'}`);
  await buildPreset('wasm', { options, target: ['multihead_wasm', ...tests], jobs });
}

/** The package, and the modules that measure what WebAssembly reaches at most. */
export async function buildForWasmBenchmarks() {
  const options = ['-DMULTIHEAD_TESTS=OFF', '-DMULTIHEAD_PROGRAMS=ON'];
  await buildPreset('wasm', { options, target: ['multihead_wasm', 'multihead-peak'] });
  await buildPackage();
}

/** bindings/dist: what the npm package holds. */
export function buildPackage() {
  const inputs = ['build/wasm/bindings', 'bindings/src', 'bindings/build.mjs', 'bindings/order_functions.mjs', 'bindings/sbom.mjs', 'bindings/tables.mjs', 'bindings/wire.inc', 'src/engine', 'bindings/package.json', 'bindings/tsconfig.json'];
  return buildOnce('Build package', inputs, 'bindings/dist/index.js', 'multihead');
}

/** build/web: the page as static files. */
export function buildPage() {
  const own = ['src', 'public', 'index.html', 'package.json', 'peers.ts', 'plugins.ts', 'serve.mjs', 'tsconfig.json', 'vite.config.ts'];
  // The speed section has the benchmarks' inputs and, where they are installed, their peers; the guides likewise.
  const inputs = [...own.map((name) => `web/${name}`), 'bindings/dist', 'bindings/bench', 'build/peers/package.json', 'build/docs/index.html'];
  const addresses = ['MULTIHEAD_ADDRESS', 'MULTIHEAD_SOURCE'].map((name) => process.env[name] ?? '');
  return buildOnce('Build page', inputs, 'build/web/index.html', '@multihead/web', addresses.join(' ').trim());
}

/** The page and what it is made of, without any tests. */
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

/** Runs a workspace's build script, unless its inputs and settings are those of the last build and its output is there. */
function buildOnce(name, inputs, output, workspace, settings = '') {
  return step(name, async (tell) => {
    const stamp = join(ROOT, 'build', 'stamps', workspace.replace(/\W/g, '-'));
    const wanted = `${fingerprint([...inputs, 'package-lock.json'])}${settings && ` ${settings}`}`;
    const built = await readFile(stamp, 'utf8').catch(() => null);
    if (built === wanted && statSync(join(ROOT, output), { throwIfNoEntry: false })) return tell('up to date');
    await run([...npmProgram(), 'run', 'build', '-w', workspace], { cwd: ROOT });
    await writeIfChanged(stamp, wanted); // as it was before: what changed meanwhile is built next time
    tell(output.slice(0, output.lastIndexOf('/')));
  });
}

/** A hash over the contents of files and, recursively, folders of the checkout; node_modules are left out. */
export function fingerprint(paths) {
  const hash = createHash('sha256');
  const add = (path) => {
    const entry = statSync(path, { throwIfNoEntry: false });
    if (!entry) return;
    if (!entry.isDirectory()) return hash.update(`${relative(ROOT, path)}\0`).update(readFileSync(path));
    for (const name of readdirSync(path).sort()) {
      // CMake's own bookkeeping lies beside the modules, and the package's build makes the others.
      if (!['CMakeFiles', 'cmake_install.cmake', 'node_modules', 'module_tables.ts', 'tables.ts', 'wire.ts'].includes(name)) add(join(path, name));
    }
  };
  for (const path of paths) add(join(ROOT, path));
  return hash.digest('hex');
}

/** The npm that started us, or the one on the PATH. */
export function npmProgram() {
  return process.env.npm_execpath?.endsWith('.js') ? [process.execPath, process.env.npm_execpath] : ['npm'];
}

runAsProgram(import.meta.url, async (what = 'all') => {
  const parts = {
    all: ['test', buildAll],
    native: ['test', () => buildPreset('native')],
    page: ['start', buildForPage],
  };
  if (!parts[what]) throw new UsageError(`Build what? Expected ${Object.keys(parts).join(', ')}, got ${what}`);
  const [purpose, build] = parts[what];
  await setup({ purpose });
  await build();
  say('Built.');
});
