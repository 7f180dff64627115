// Builds dist/: one file of JavaScript for each entry point, chunks that they share, declarations, and the WebAssembly builds
// that CMake has made. Builds in another folder that is moved at the end, so that a failed build leaves the old dist/ in place.
//
// The modules are readable: bundlers minify them, and Node prints the source line of an uncaught error. The files that are used as
// they are, multihead/inline and the scripts of workers, are minified.
//
//     node build.mjs [folder] [--page]      default: dist
//
// --page: only what the page contains, with the modules for relaxed SIMD; a text stands in for those of simd128. No
// declarations, which need TypeScript.

import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { rolldown } from 'rolldown';
import { parseAst } from 'rolldown/parseAst';

import { billOfMaterials } from './sbom.mjs';
import { partNames } from './tables.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const pageOnly = process.argv.includes('--page');
const [folder = join(here, 'dist')] = process.argv.slice(2).filter((argument) => argument !== '--page');
const dist = resolve(folder);
const made = `${dist}-made`;
const simds = pageOnly ? ['relaxed'] : ['simd128', 'relaxed'];
/** Name prefixes of the WebAssembly modules: all functions, only multihead/core, or multihead/models. */
const modules = pageOnly ? ['', 'models-'] : ['', 'core-', 'models-'];
/**
 * The entry points that share chunks. The workers' script contains everything: pages copy it, and Parcel does not load the
 * chunks that a page and its worker share.
 */
const entries = pageOnly
  ? ['index', 'pool', 'training', 'lab', 'models']
  : [
      'index',
      'index_node',
      'core',
      'core_node',
      'pool',
      'pool_node',
      'training',
      'lab',
      'models',
      'models_node',
      ...['index', 'core', 'pool', 'models'].map((name) => `${name}_workerd`),
    ];
/** What mh.gpu() loads in files of one module (multihead/inline, workers) and in the page, where nothing calls it. */
const noGpu = `import { gpuError } from './errors.js';
export const openGpu = () => Promise.reject(gpuError('gpu', 'the entry point "multihead", which has it', '"multihead/inline"'));`;
/** Names of the chunks, which also contain all that their modules import and that no group above contains. */
const groups = [
  { name: 'features', test: /src.load.features\.ts$/, priority: 5 },
  { name: 'unpack', test: /src.load.unpack\.ts$/, priority: 5 },
  { name: 'shared', test: /src.(api.operations|load.loader|runtime.abort)\.ts$/, priority: 4 },
  { name: 'safetensors', test: /src.safetensors.\w+\.ts$/, priority: 3 },
  { name: 'workers', test: /src.pool.shared.(port|team|errors|exchange)\.ts$/, priority: 3 },
  { name: 'step_trainer', test: /src.training.step_trainer\.ts$/, priority: 3 },
  { name: 'multihead', test: /src.(api.multihead|modules.gpt2_config)\.ts$/, priority: 2 },
  { name: 'experiment', test: /src.training.(experiment|head_statistics)\.ts$/, priority: 1 },
  { name: 'core_glue', test: /src.api.core\.ts$/ },
  { name: 'model_opener', test: /src.(models.(open|save|core.(abandoned|turns))|entry.models_exports)\.ts$/ },
  { name: 'pool_creator', test: /src.pool.creator\.ts$/ },
  { name: 'model_team', test: /src.models.workers.model_workers\.ts$/ },
];
/** Chunks that are not named after the module with which they begin. */
const chunkNames = { open: 'gpu_device', loader: 'model_gpu', generations: 'model_generation' };
const built = (build, extension) => join(here, '..', 'build', 'wasm', 'bindings', build, `multihead.${extension}`);

function fail(...lines) {
  for (const line of lines) console.error(line);
  process.exit(1);
}

const missing = modules
  .flatMap((name) => simds.map((simd) => name + simd))
  .flatMap((build) => [built(build, 'mjs'), built(build, 'wasm')])
  .concat(pageOnly ? [] : built('gpu', 'wasm'))
  .filter((path) => !existsSync(path));
if (missing.length > 0) {
  fail('The WebAssembly builds are missing; run `npm run build` at the root. Not found:', ...missing);
}

rmSync(made, { recursive: true, force: true });
mkdirSync(made, { recursive: true });

/** The modules of load/built.d.ts, as JavaScript. */
const generated = {};
for (const name of modules) {
  // load() imports one glue and then chooses the build.
  const paths = simds.map((simd) => built(name + simd, 'mjs'));
  const [glue, other] = paths.map((path) => readFileSync(path, 'utf8'));
  if (other !== undefined && glue !== other) {
    fail('The glue of the two WebAssembly builds differs; it must be the same:', ...paths);
  }
  // Removes what would fetch the module: load() gives it.
  const used = glue.replace(/if\(ENVIRONMENT_IS_WEB\|\|.*?else\{\}(?=var out)/s, '').replace(/wasmBinaryFile\?\?=.*?return\{\}/s, '');
  if (glue.length - used.length < 600) fail('The glue is not the one of which a part is removed:', paths[0]);
  // Lets bundlers leave the glue out if load() is not used.
  generated[`built:${name}glue`] = used.replace(/^(\s*var \w+ = )(?=\(\(\) => \{)/, '$1/* @__PURE__ */ ');
}
for (const simd of simds) {
  for (const name of modules) addWasm(name, simd, built(name + simd, 'wasm'));
  for (const part of partNames) addWasm(`${part}-`, simd, join(built(`models-${simd}`, 'wasm'), `../${part}.wasm`));
}

if (!pageOnly) generated['built:gpu-wasm'] = inBase64(readFileSync(built('gpu', 'wasm')));

/** A module with a file of a build as text. */
function inBase64(wasm) {
  return `export default '${gzipSync(wasm, { level: 9 }).toString('base64')}';\n`;
}

/** Puts a file of a build into the package. */
function addWasm(name, simd, path) {
  const wasm = readFileSync(path);
  writeFileSync(join(made, `multihead-${name}${simd}.wasm`), wasm);
  if (pageOnly) {
    writeFileSync(join(made, `multihead-${name}simd128.wasm`), `multihead-${name}simd128.wasm is built when a browser asks for it\n`);
  } else if (simd === 'simd128') {
    generated[`built:${name}inline-wasm`] = inBase64(wasm);
  }
}

if (!pageOnly) {
  writeDeclarations();
  // The command has no declarations, and alone uses the types of Node.
  compile('-p', join(here, 'tsconfig.command.json'));
}
for (const part of ['pool', 'models']) {
  const worker = await bundle([`${part}_worker`], { format: 'iife', minify: true });
  generated[`built:${part}-worker-text`] = `export default ${JSON.stringify(worker)};\n`;
}
await bundle(entries, { format: 'esm', groups });
if (!pageOnly) {
  writeFileSync(join(made, 'inline.js'), inLines(await bundle(['inline'], { format: 'esm', minify: true })));
  // By itself, so that it does not change how the entry points share chunks.
  await bundle(['command'], { format: 'esm', external: [/^node:/, './models_node.js', './benchmarks.js'] });
  await bundle(['benchmarks'], { format: 'esm', external: [/^node:/, './index_node.js'] });
  writeFileSync(join(made, 'sbom.cdx.json'), `${JSON.stringify(billOfMaterials(), null, 2)}\n`);
}

rmSync(dist, { recursive: true, force: true });
renameSync(made, dist);
// npm packs the license that lies beside package.json.
copyFileSync(join(here, '..', 'LICENSE'), join(here, 'LICENSE'));

/** Writes one file for each entry point, and the chunks that they share; returns the text of the first file. */
async function bundle(names, { format, groups, external = [], minify = false }) {
  const withoutGpu = groups === undefined || pageOnly;
  const supplied = {
    name: 'built',
    resolveId: (id) => (Object.hasOwn(generated, id) ? { id, moduleSideEffects: false } : null),
    load: (id) => generated[id] ?? (withoutGpu && /src.gpu.gpu\.ts$/.test(id) ? noGpu : undefined),
  };
  const input = Object.fromEntries(names.map((name) => [name, join(here, 'src', 'entry', `${name}.ts`)]));
  const bundle = await rolldown({
    input,
    cwd: here,
    logLevel: 'warn',
    external: [/^@huggingface\//, /\.wasm$/, ...external],
    plugins: [supplied],
    resolve: { extensionAlias: { '.js': ['.ts'] } },
    transform: { target: 'es2022' },
  });
  const { output } = await bundle.generate({
    dir: made,
    format,
    minify,
    // Pages without a bundler load the modules as they are: comments would be 11 kB more in Brotli for `multihead`.
    comments: { legal: true, annotation: true, jsdoc: false },
    chunkFileNames: ({ name }) => `${chunkNames[name] ?? name.replace('built_', '').replaceAll('-', '_')}.js`,
    codeSplitting: groups !== undefined && { groups },
  });
  await bundle.close();
  const chunks = output.filter(({ type }) => type === 'chunk');
  for (const { fileName, code } of chunks) writeFileSync(join(made, fileName), code);
  const files = chunks.filter(({ isEntry }) => isEntry).map(({ fileName }) => fileName);
  if (groups === undefined && chunks.length > 1) fail(`${files[0]} must be one file; it has also`, ...chunks.map(({ fileName }) => fileName));
  return readFileSync(join(made, files[0]), 'utf8');
}

/**
 * Breaks minified code before statements and members of classes, so that Node prints a short line for an uncaught error. The code
 * itself is the same as that of the worker inside of it, which lets servers compress both to little more than one.
 */
function inLines(code) {
  const starts = new Set();
  const visit = (node) => {
    if (typeof node !== 'object' || node === null) return;
    if (Array.isArray(node.body)) for (const { start } of node.body) starts.add(start);
    Object.values(node).forEach(visit);
  };
  visit(parseAst(code));
  let text = '';
  let from = 0;
  for (const start of [...starts].sort((a, b) => a - b)) {
    if (start - from < 400) continue;
    text += `${code.slice(from, start)}\n`;
    from = start;
  }
  return text + code.slice(from);
}

/** Runs TypeScript. */
function compile(...args) {
  const manifest = createRequire(import.meta.url).resolve('typescript/package.json');
  const tsc = join(dirname(manifest), 'bin', 'tsc');
  const { status } = spawnSync(process.execPath, [tsc, ...args], { stdio: 'inherit' });
  if (status !== 0) process.exit(status ?? 1);
}

/** Writes the declarations of the entry points, and of the modules that they name. */
function writeDeclarations() {
  const folder = join(made, 'declarations');
  compile('-p', here, '--outDir', folder);

  const reached = new Set();
  const visit = (file) => {
    if (reached.has(file)) return;
    reached.add(file);
    const text = readFileSync(file, 'utf8');
    for (const [, path] of text.matchAll(/(?:from|import\()\s*["'](\.[^"']+)\.js["']/g)) visit(join(dirname(file), `${path}.d.ts`));
  };
  for (const name of ['index', 'core', 'inline', 'pool', 'pool_worker', 'training', 'lab', 'models', 'models_worker'])
    visit(join(folder, 'entry', `${name}.d.ts`));
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    const file = join(entry.parentPath, entry.name);
    if (entry.isFile() && !reached.has(file)) rmSync(file);
  }
}
