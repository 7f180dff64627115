import { defineConfig, type Plugin } from 'vite';
import { contentSecurityPolicy } from './serve.mjs';

/** Only for the built page, because the development server needs inline styles. */
const policyInPage: Plugin = {
  name: 'content-security-policy',
  apply: 'build',
  transformIndexHtml: () => [
    {
      tag: 'meta',
      attrs: { 'http-equiv': 'Content-Security-Policy', content: contentSecurityPolicy },
      injectTo: 'head-prepend',
    },
  ],
};

export default defineConfig({
  base: './',
  plugins: [policyInPage],
  worker: { format: 'es' },
  build: {
    outDir: '../build/web',
    emptyOutDir: true,
    target: 'es2022',
    // Assets must stay files: the security policy refuses data: addresses.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
});
