// The npm package as it is published, without a bundler and under a strict policy: in a page, in a module worker and in
// a module service worker. `npm run try-packages` has the bundlers.

import assert from 'node:assert/strict';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { rolldown } from 'rolldown';
import { blobWorkers, servePlainly } from '../../native/dev/packages/project.mjs';
import * as sources from '../../native/dev/packages/sources.mjs';
import { eventually, lostWorkers, patientPage, startServer } from './harness.mjs';

const dist = fileURLToPath(new URL('../../bindings/dist', import.meta.url));

const kinds = {
  page: { 'main.js': sources.page() },
  'module worker': { 'main.js': sources.workerPage, 'worker.js': sources.worker() },
  'module service worker': { 'main.js': sources.serviceWorkerPage, 'service_worker.js': sources.serviceWorker() },
};

/**
 * Serves a site of the package and these files, and passes the server to `use`. `policy` replaces the server's policy.
 */
async function withSite(files, policy, use) {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-plain-'));
  try {
    await cp(dist, join(folder, 'dist'), { recursive: true });
    for (const [name, text] of Object.entries(files)) {
      await mkdir(join(folder, name, '..'), { recursive: true });
      await writeFile(join(folder, name), text);
    }
    const server = await startServer(folder);
    servePlainly(server, policy);
    await use(server).finally(() => server.close());
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** The title in which the page reports the result of its calls, and the .wasm files that it fetched. */
async function resultIn(browser, { kind, modules, policy }) {
  const file = (module) => `./dist/${module.split('/')[1] ?? 'index'}.js`;
  const files = { load: modules.load.map(file), createPool: file(modules.createPool) };
  const site = { ...kinds[kind], 'call.js': sources.call(files), 'index.html': sources.html };
  let title = '';
  let wasm = [];
  await withSite(site, policy, async ({ url, requested }) => {
    title = await titleOf(browser, url);
    wasm = requested.filter((path) => path.endsWith('.wasm'));
  });
  return { title, wasm };
}

/** The title in which a page reports the result of its calls. */
async function titleOf(browser, url) {
  const context = await browser.createBrowserContext();
  try {
    const page = await patientPage(context);
    await page.goto(url);
    let title = '';
    await eventually(async () => /^(ok|failed)/.test((title = await page.title())), 'the page reports its result');
    return title;
  } finally {
    await context.close();
  }
}

/** Bundles the calls of multihead/inline into a classic script, because a page on a file: address can load no module. */
async function asClassicScript(folder) {
  const site = { 'call.js': sources.call({ load: ['./dist/inline.js'], createPool: './dist/inline.js' }), 'main.js': sources.page() };
  for (const [name, text] of Object.entries(site)) await writeFile(join(folder, name), text);
  await cp(join(dist, 'inline.js'), join(folder, 'dist', 'inline.js'));
  const bundle = await rolldown({ input: join(folder, 'main.js'), logLevel: 'silent' });
  await bundle.write({ file: join(folder, 'classic.js'), format: 'iife', minify: true });
  await bundle.close();
  const page = join(folder, 'index.html');
  await writeFile(page, '<!doctype html><meta charset="utf-8"><title>waiting</title><script defer src="classic.js"></script>');
  return pathToFileURL(page).href;
}

export const tests = [
  ...Object.keys(kinds).flatMap((kind) => [
    {
      name: `multihead, multihead/core and multihead/pool run in a ${kind} without a bundler`,
      browserBug: lostWorkers,
      essential: true,
      async run({ browser }) {
        const { title, wasm } = await resultIn(browser, { kind, modules: sources.FILES });
        assert.match(title, /^ok (relaxed|simd128)$/);
        assert.equal(wasm.length, 2, `fetched ${wasm}`);
      },
    },
    {
      name: `multihead/inline runs in a ${kind} without a bundler`,
      browserBug: lostWorkers,
      essential: kind === 'page',
      async run({ browser }) {
        const { title, wasm } = await resultIn(browser, { kind, modules: sources.INLINE, policy: blobWorkers });
        assert.equal(title, 'ok simd128');
        assert.deepEqual(wasm, []);
      },
    },
  ]),
  {
    name: 'multihead/inline, bundled into one classic script, runs with workers on a page that is opened as a file',
    browserBug: lostWorkers,
    async run({ browser }) {
      const folder = await mkdtemp(join(tmpdir(), 'multihead-file-'));
      try {
        assert.equal(await titleOf(browser, await asClassicScript(folder)), 'ok simd128');
      } finally {
        await rm(folder, { recursive: true });
      }
    },
  },
  {
    name: 'the pool of multihead/inline runs on the calling thread, and says why, where a policy forbids blob: workers',
    async run({ browser }) {
      const { title } = await resultIn(browser, { kind: 'page', modules: sources.INLINE });
      assert.match(title, /^failed: createPool.* calls run on the calling thread: .*worker-src blob:/);
    },
  },
];
