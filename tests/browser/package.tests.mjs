// The npm package as it is published, without a bundler and under a strict policy: in a page, in a module worker and in
// a module service worker. `npm run try-packages` has the bundlers.

import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as sources from '../../native/dev/packages/sources.mjs';
import { startServer } from './harness.mjs';

const dist = fileURLToPath(new URL('../../bindings/dist', import.meta.url));

const kinds = {
  page: { 'main.js': sources.page() },
  'module worker': { 'main.js': sources.workerPage, 'worker.js': sources.worker() },
  'module service worker': { 'main.js': sources.serviceWorkerPage, 'service_worker.js': sources.serviceWorker() },
};

/** A site with the package and these files; `use` gets its server. */
async function withSite(files, use) {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-plain-'));
  try {
    await cp(dist, join(folder, 'dist'), { recursive: true });
    for (const [name, text] of Object.entries(files)) {
      await mkdir(join(folder, name, '..'), { recursive: true });
      await writeFile(join(folder, name), text);
    }
    const server = await startServer(folder);
    await use(server).finally(() => server.close());
  } finally {
    await rm(folder, { recursive: true });
  }
}

export const tests = ['index', 'inline'].flatMap((entry) =>
  Object.entries(kinds).map(([kind, files]) => ({
    name: `multihead${entry === 'inline' ? '/inline' : ''} runs in a ${kind} without a bundler`,
    async run({ browser }) {
      const site = { ...files, 'call.js': sources.call(`./dist/${entry}.js`), 'index.html': sources.html };
      await withSite(site, async ({ url, requested }) => {
        const context = await browser.createBrowserContext();
        try {
          const page = await context.newPage();
          await page.goto(url);
          const end = performance.now() + 20_000;
          let title = '';
          while (!/^(ok|failed)/.test(title) && performance.now() < end) {
            title = await page.title();
            await new Promise((resolve) => setTimeout(resolve, 20));
          }
          assert.match(title, entry === 'inline' ? /^ok simd128$/ : /^ok (relaxed|simd128)$/);
        } finally {
          await context.close();
        }
        const wasm = requested.filter((path) => path.endsWith('.wasm'));
        assert.equal(wasm.length, entry === 'inline' ? 0 : 1, `fetched ${wasm}`);
      });
    },
  })),
);
