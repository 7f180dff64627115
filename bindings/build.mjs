// Builds dist/: TypeScript, plus the two WebAssembly builds that CMake has made, with their glue. Builds in another
// folder that is moved at the end, so that a failed build leaves the old dist/ in place.
//
//     node build.mjs [folder]      default: dist

import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { rolldown } from 'rolldown';

import { orderFunctions } from './order_functions.mjs';
import { billOfMaterials } from './sbom.mjs';
import './tables.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const dist = resolve(process.argv[2] ?? join(here, 'dist'));
const made = `${dist}-made`;
const simds = ['simd128', 'relaxed'];
/** Name prefixes of the WebAssembly modules: all functions, or only multihead/core. */
const parts = ['', 'core-'];
const built = (build, extension) =>
  join(here, '..', 'build', 'wasm', 'bindings', build, `multihead.${extension}`);

function fail(...lines) {
  for (const line of lines) console.error(line);
  process.exit(1);
}

const missing = parts
  .flatMap((part) => simds.map((simd) => part + simd))
  .flatMap((build) => [built(build, 'mjs'), built(build, 'wasm')])
  .filter((path) => !existsSync(path));
if (missing.length > 0) {
  fail('The WebAssembly builds are missing; run `npm run build` at the root. Not found:', ...missing);
}

rmSync(made, { recursive: true, force: true });
mkdirSync(made, { recursive: true });

const ordered = (build) => orderFunctions(readFileSync(built(build, 'wasm')));
for (const part of parts) {
  // load() imports one glue and then chooses the build.
  const paths = simds.map((simd) => built(part + simd, 'mjs'));
  const [glue, other] = paths.map((path) => readFileSync(path, 'utf8'));
  if (glue !== other) {
    fail('The glue of the two WebAssembly builds differs; it must be the same:', ...paths);
  }
  // Removes an unused variable of the glue, for which Parcel would install and bundle a polyfill of `process`.
  const used = glue.replace(/var ENVIRONMENT_IS_NODE=[^;]*;(?!.*ENVIRONMENT_IS_NODE)/s, '');
  writeFileSync(join(made, `${part.replace('-', '_')}glue.js`), used);
  for (const simd of simds) {
    writeFileSync(join(made, `multihead-${part}${simd}.wasm`), ordered(part + simd));
  }
}
for (const part of parts) {
  const packed = gzipSync(readFileSync(join(made, `multihead-${part}simd128.wasm`)), { level: 9 }).toString('base64');
  writeFileSync(join(made, `${part.replace('-', '_')}inline_wasm.js`), `export default '${packed}';\n`);
}

const manifest = createRequire(import.meta.url).resolve('typescript/package.json');
const tsc = join(dirname(manifest), 'bin', 'tsc');
const { status } = spawnSync(process.execPath, [tsc, '-p', here, '--outDir', made], {
  stdio: 'inherit',
});
if (status !== 0) process.exit(status ?? 1);

const script = await bundle('pool_worker', 'iife');
writeFileSync(join(made, 'pool_worker_text.js'), `export default ${JSON.stringify(script)};\n`);
await bundle('inline', 'esm');
writeFileSync(join(made, 'sbom.cdx.json'), `${JSON.stringify(billOfMaterials(), null, 2)}\n`);

rmSync(dist, { recursive: true, force: true });
renameSync(made, dist);

/** Replaces a module by one file with all its imports, and returns its text. */
async function bundle(name, format) {
  const file = join(made, `${name}.js`);
  const bundle = await rolldown({ input: file, cwd: made, logLevel: 'warn' });
  const { output } = await bundle.generate({ dir: made, format, minify: true, sourcemap: true });
  await bundle.close();
  const [{ code, map }, ...rest] = output.filter(({ type }) => type === 'chunk');
  if (rest.length > 0) fail(`${name}.js must be one file; it has also`, ...rest.map(({ fileName }) => fileName));
  // Removes sources from the map that the file already contains as text; they would double its size.
  map.sourcesContent = map.sourcesContent.map((text, index) =>
    /(inline_wasm|pool_worker_text)\.js$/.test(map.sources[index]) ? null : text,
  );
  writeFileSync(file, code);
  writeFileSync(`${file}.map`, map.toString());
  return code.replace(/\/\/# sourceMappingURL=.*\s*$/, '');
}
