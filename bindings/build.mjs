// Builds dist/: TypeScript, and beside it the two WebAssembly builds that CMake has made.
// It is built in another folder and then moved, so that a failed build leaves the old one in place.

import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import './tables.mjs';

const here = dirname(fileURLToPath(import.meta.url));
const made = join(here, '..', 'build', 'bindings-dist');

const files = ['multihead-simd128', 'multihead-relaxed'].flatMap((name) =>
  ['.mjs', '.wasm'].map((extension) => ({
    from: join(here, '..', 'build', 'wasm', 'bindings', name + extension),
    to: join(made, name + extension),
  })),
);
const missing = files.filter(({ from }) => !existsSync(from));
if (missing.length > 0) {
  console.error('The WebAssembly builds are missing; run `npm run build` at the root. Not found:');
  for (const { from } of missing) console.error(`  ${from}`);
  process.exit(1);
}

rmSync(made, { recursive: true, force: true });
mkdirSync(made, { recursive: true });
for (const { from, to } of files) copyFileSync(from, to);

const manifest = createRequire(import.meta.url).resolve('typescript/package.json');
const tsc = join(dirname(manifest), 'bin', 'tsc');
const { status } = spawnSync(process.execPath, [tsc, '-p', here, '--outDir', made], {
  stdio: 'inherit',
});
if (status !== 0) process.exit(status ?? 1);

const dist = join(here, 'dist');
rmSync(dist, { recursive: true, force: true });
renameSync(made, dist);
