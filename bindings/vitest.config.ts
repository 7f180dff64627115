import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';

// Node 20 and 21 have relaxed SIMD only behind a flag, which later versions may not know.
const major = Number(process.versions.node.split('.')[0]);
const relaxed = major < 22 ? ['--experimental-wasm-relaxed-simd'] : [];

const fromRoot = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  // The modules of src/load/built.d.ts, for tests of the sources.
  resolve: {
    alias: [
      { find: 'built:glue', replacement: fromRoot('../build/wasm/bindings/simd128/multihead.mjs') },
      { find: 'built:core-glue', replacement: fromRoot('../build/wasm/bindings/core-simd128/multihead.mjs') },
      { find: 'built:models-glue', replacement: fromRoot('../build/wasm/bindings/models-simd128/multihead.mjs') },
    ],
  },
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 2,
    execArgv: relaxed,
    // Beside builds and browsers a test takes five times as long as alone, where the longest takes 14 s.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // The package as it is published runs in Node itself, not rewritten by Vite.
    server: { deps: { external: [/\/bindings\/dist\//] } },
  },
});
