// Delivery of the page: bytes and time, any host and path, offline use, and updates from one build to the next.

import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isIcon, offlineCopyReady, openPage, settled, site, snapshot, startServer, until } from './harness.mjs';
import { startPlainServer, startSlowLine } from './hosts.mjs';

/** Records the time of the first heat map with numbers, and all layout shifts from the first moment of the page on. */
const watchLoading = (page) =>
  page.evaluateOnNewDocument(() => {
    window.loading = { heatMap: null, shift: 0 };
    const look = () => {
      const canvas = document.querySelector('canvas');
      const isThere = canvas && canvas.width > 0 && canvas.getBoundingClientRect().height > 0;
      if (isThere && window.multiheadPage?.snapshot()) {
        // The map is painted with this frame at the latest.
        requestAnimationFrame(() => {
          window.loading.heatMap = performance.now();
        });
      } else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
    if (!PerformanceObserver.supportedEntryTypes.includes('layout-shift')) return;
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) window.loading.shift += entry.value;
    }).observe({ type: 'layout-shift', buffered: true });
  });

/**
 * The time of the first heat map in a new browser context: the best of up to five tries, because other programs may be
 * busy.
 */
async function firstHeatMap(browser, url, limit) {
  let best = { heatMap: Infinity, shift: 0 };
  for (let tries = 0; tries < 5 && best.heatMap > limit; tries += 1) {
    const { page, close } = await openPage(browser, url, { prepare: watchLoading });
    await quiet(200);
    const seen = await page.evaluate(() => window.loading);
    if (seen.heatMap < best.heatMap) best = { ...seen, shift: Math.max(best.shift, seen.shift) };
    await close();
  }
  assert.ok(best.heatMap <= limit, `${best.heatMap} ms`);
  return best;
}

const quiet = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** A copy of the site that can become another build: its main script has another name and other contents. */
async function copyOfSite() {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-site-'));
  await cp(site, folder, { recursive: true });
  const assets = await readdir(join(folder, 'assets'));
  const main = assets.find((name) => /^index-.*\.js$/.test(name));
  const next = main.replace(/-.*\.js/, '-another1.js');
  return {
    folder,
    main,
    next,
    async deployNext() {
      const from = join(folder, 'assets', main);
      await writeFile(from, `window.build = 'next';\n${await readFile(from, 'utf8')}`);
      // Scripts that import the main script change, too, and therefore get other names.
      const scripts = assets.filter((name) => /^(index|below|sentence_file)-.*\.js$/.test(name));
      const renamed = (text) =>
        scripts.reduce((so, name) => so.replaceAll(name, name.replace(/-.*\.js/, '-another1.js')), text);
      for (const name of ['index.html', 'service_worker.js', ...scripts.map((script) => `assets/${script}`)]) {
        const file = join(folder, name);
        const text = renamed(await readFile(file, 'utf8'));
        await writeFile(file, text.replace(/"version":"/, '"version":"next'));
        if (renamed(name) !== name) await rename(file, join(folder, renamed(name)));
      }
    },
    remove: () => rm(folder, { recursive: true }),
  };
}

export const tests = [
  {
    name: 'at most 250 kB cross the wire for the whole page, no file twice',
    async run({ browser }) {
      const server = await startServer();
      const withoutCopy = (page) =>
        page.evaluateOnNewDocument(() => {
          if (!globalThis.ServiceWorkerContainer) return; // an empty page before this one
          ServiceWorkerContainer.prototype.register = () => new Promise(() => {});
        });
      const { close } = await openPage(browser, server.url, { prepare: withoutCopy });
      const sent = server.bytesSent();
      const paths = server.requested.filter((path) => !isIcon(path));
      assert.ok(sent <= 250_000, `${sent} bytes: ${paths.join(' ')}`);
      assert.ok(
        paths.some((path) => path.endsWith('.wasm')),
        'the wasm is among them',
      );
      assert.deepEqual([...new Set(paths)], paths, 'each path once');
      await close();
      await server.close();
      return `${(sent / 1000).toFixed(1)} kB`;
    },
  },
  {
    name: 'the offline copy fetches nothing again that the page has fetched',
    async run({ browser }) {
      const server = await startServer();
      const { page, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      const assets = server.requested.filter((path) => path.startsWith('/assets/'));
      assert.deepEqual([...new Set(assets)].sort(), [...assets].sort());
      const sent = server.bytesSent();
      await close();
      await server.close();
      return `${(sent / 1000).toFixed(1)} kB with the page`;
    },
  },
  {
    name: 'the first heat map within 1.5 s, and nothing on the screen moves much while the page loads',
    async run({ browser, kind, url }) {
      const { heatMap, shift } = await firstHeatMap(browser, url, 1500);
      assert.ok(shift <= 0.1, `layout shift ${shift}`);
      const moved = kind === 'chromium' ? `, layout shift ${shift.toFixed(3)}` : '';
      return `${Math.round(heatMap)} ms${moved}`;
    },
  },
  {
    name: 'nothing on a phone moves much while the page loads',
    async run({ browser, kind, url }) {
      const { page, close } = await openPage(browser, url, { prepare: watchLoading, width: 360, height: 740 });
      await quiet(200);
      const { shift } = await page.evaluate(() => window.loading);
      assert.ok(shift <= 0.1, `layout shift ${shift}`);
      await close();
      return kind === 'chromium' ? `layout shift ${shift.toFixed(3)}` : '';
    },
  },
  {
    name: 'the first heat map within 2.5 s at 1.6 Mbit/s with 150 ms delay',
    async run({ browser }) {
      const server = await startServer();
      const line = await startSlowLine(server.port, { bitsPerSecond: 1.6e6, delay: 150 });
      const { heatMap } = await firstHeatMap(browser, line.url, 2500);
      assert.ok(heatMap > 800, `${heatMap} ms: the line is not slow`);
      await line.close();
      await server.close();
      return `${Math.round(heatMap)} ms`;
    },
  },
  {
    name: 'any server can host the page, below any path and without special headers',
    async run({ browser }) {
      const server = await startPlainServer('/a/b/');
      const { page, close } = await openPage(browser, server.url);
      assert.equal(await page.evaluate(() => window.crossOriginIsolated), false);
      assert.equal((await snapshot(page)).tokens.length > 0, true);
      await offlineCopyReady(page);
      const outside = server.requested.filter((path) => !path.startsWith('/a/b/'));
      assert.deepEqual(outside, []);
      await server.close();
      await page.reload();
      assert.equal((await snapshot(page)).tokens.length > 0, true);
      await close();
    },
  },
  {
    name: 'the page works offline after its first load, reload included',
    async run({ browser }) {
      const server = await startServer();
      const { page, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      const before = await snapshot(page);
      await server.close();
      await page.reload();
      const after = await snapshot(page);
      assert.deepEqual(after.trace.output.data, before.trace.output.data);
      assert.equal(await page.evaluate(() => window.crossOriginIsolated), true, 'the headers are kept, too');
      await page.goto(`${server.url}index.html#text=still+here`);
      assert.deepEqual((await snapshot(page)).tokens, ['still', 'here']);
      await close({ expected: /ERR_CONNECTION_REFUSED|Failed to load resource/ });
    },
  },
  {
    name: 'an update never mixes two builds',
    async run({ browser }) {
      const copy = await copyOfSite();
      const server = await startServer(copy.folder);
      const { page, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      await copy.deployNext();
      server.requested.length = 0;
      await page.reload();
      await settled(page);
      assert.equal(await page.evaluate(() => window.build), 'next', 'with a network the new build is shown');
      assert.equal(server.requested.includes(`/assets/${copy.main}`), false);
      assert.equal(await page.evaluate(() => document.querySelectorAll('#use-it').length), 1, 'and only once');
      // The copy of the new build replaces the old copy only when it is complete.
      const kept = async () =>
        JSON.parse(
          await page.evaluate(async () => {
            const names = await caches.keys();
            const files = async (name) => (await (await caches.open(name)).keys()).map(({ url }) => url);
            return JSON.stringify(await Promise.all(names.map(files)));
          }),
        );
      const isComplete = (urls) => urls.some((url) => url.endsWith('/')) && urls.some((url) => url.endsWith('.wasm'));
      for (let tries = 0; (await kept()).filter(isComplete).length < 2; tries += 1) {
        assert.ok(tries < 100, 'the copy of the new build is not complete within 10 s');
        await quiet(100);
      }
      const [old, next] = await kept();
      assert.deepEqual(
        [old, next].map((urls) => [copy.main, copy.next].filter((name) => urls.some((url) => url.endsWith(name)))),
        [[copy.main], [copy.next]],
      );
      await until(page, async () => (await navigator.serviceWorker.getRegistration()).installing === null);
      await server.close();
      await page.reload();
      await settled(page);
      assert.equal(await page.evaluate(() => window.build), 'next', 'without a network, too');
      await close({ expected: /ERR_CONNECTION_REFUSED|Failed to load resource/ });
      await copy.remove();
    },
  },
];
