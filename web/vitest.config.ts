import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    environment: 'node',
    // All files in the same processes: to start one for each file takes longer than its tests.
    isolate: false,
    unstubGlobals: true,
  },
});
