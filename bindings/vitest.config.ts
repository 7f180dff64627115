import { defineConfig } from 'vitest/config';

// Node 20 and 21 have relaxed SIMD only behind a flag, which later versions may not know.
const major = Number(process.versions.node.split('.')[0]);
const relaxed = major < 22 ? ['--experimental-wasm-relaxed-simd'] : [];

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    pool: 'forks',
    maxWorkers: 2,
    execArgv: relaxed,
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // The package as it is published runs in Node itself, not rewritten by Vite.
    server: { deps: { external: [/\/bindings\/dist\//] } },
  },
});
