import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';
import { complete, earlyRequests, offlineCopy, publicAddresses, securityPolicy } from './plugins.js';
import { aliasesOfPeers, foundPeers } from './peers.js';

const built = (path: string): string => fileURLToPath(new URL(`../build/${path}`, import.meta.url));
const peers = foundPeers(built('peers/node_modules/'));
const guides = existsSync(built('docs/index.html')) ? built('docs') : undefined;

export default defineConfig({
  base: './',
  plugins: [
    securityPolicy,
    publicAddresses(process.env['MULTIHEAD_ADDRESS'], process.env['MULTIHEAD_SOURCE']),
    earlyRequests,
    offlineCopy,
    complete(guides, built('web')),
  ],
  worker: {
    format: 'es',
    rolldownOptions: {
      // The page has no chats.
      external: ['@huggingface/jinja'],
      output: {
        // The package has a chunk of its own. Otherwise later chunks import the worker's first script, and WebKit runs that again.
        codeSplitting: { groups: [{ name: 'models', test: /model_opener\.js$/ }] },
        // The only package of others in the page.
        postBanner: ({ name }) => (name === 'tokenizers' ? '/*! @huggingface/tokenizers, Apache License 2.0 */' : ''),
      },
    },
  },
  define: {
    __HAS_PEERS__: JSON.stringify(peers !== undefined),
    __HAS_DOCS__: JSON.stringify(guides !== undefined),
  },
  resolve: { alias: aliasesOfPeers(peers) },
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
        // Keeps the first script and its imports in one file. By default, Rolldown splits off what a later script shares.
        codeSplitting: { groups: [{ name: 'index', test: /\/web\/(index\.html|src\/main\.ts)$/ }] },
        // The service worker keeps its name, and stays in the top folder: it controls its own folder and the folders
        // below.
        entryFileNames: ({ name }) => (name === 'service_worker' ? 'service_worker.js' : 'assets/[name]-[hash].js'),
      },
    },
  },
});
