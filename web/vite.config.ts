import { defineConfig } from 'vite';
import { earlyRequests, offlineCopy, policyInPage, publicAddresses } from './plugins.js';

export default defineConfig({
  base: './',
  plugins: [
    policyInPage,
    publicAddresses(process.env['MULTIHEAD_ADDRESS'], process.env['MULTIHEAD_SOURCE']),
    earlyRequests,
    offlineCopy,
  ],
  worker: { format: 'es' },
  build: {
    outDir: '../build/web',
    emptyOutDir: true,
    target: 'es2022',
    // Assets must stay files: the security policy refuses data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    rolldownOptions: {
      input: { index: 'index.html', boot: 'src/boot.ts', service_worker: 'src/service_worker.ts' },
      output: {
        // A service worker governs its own folder and what is below, and its name never changes.
        entryFileNames: ({ name }) => (name === 'service_worker' ? 'service_worker.js' : 'assets/[name]-[hash].js'),
      },
    },
  },
});
