// Requests to other origins, the size of the transfer, and the page's behavior if something is missing.

import assert from 'node:assert/strict';
import { readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { isIcon, offlineCopyReady, openPage, snapshot, startBrokenServer, startServer, toggle, until, withWorkerPrelude } from './harness.mjs';
import { startPlainServer } from './hosts.mjs';
import { reference } from './reference.mjs';

/** Waits for the failure message, and checks that the console shows no other errors. */
async function failureOn(browser, server, options = {}) {
  const { page, close } = await openPage(browser, server.url, { ready: false, ...options });
  await page.waitForSelector('#failure:not([hidden])');
  const text = await page.$eval('#failure', (element) => element.textContent);
  assert.match(text, /could not start/);
  assert.equal(await page.$eval('#sentence', (field) => field.checkVisibility()), true, 'the rest of the page stands');
  await close({ expected: /404|Failed to load resource|Loading Worker|MIME type/ });
  return text;
}

const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent.replace(/\s+/g, ' ').trim());

/** Replaces the sentence without waiting for its numbers. */
const setSentenceOnly = (page, text) =>
  page.$eval(
    '#sentence',
    (field, value) => {
      field.value = value;
      field.dispatchEvent(new Event('input'));
    },
    text,
  );

export const tests = [
  {
    name: 'no requests to other origins, and none at all after loading',
    async run({ browser }) {
      const server = await startServer();
      const { page, origins, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      const loaded = server.requested.length;
      await page.click('.preset:not([hidden])');
      await toggle(page, '#causal');
      await page.click('#step-x');
      await snapshot(page);
      const later = server.requested.slice(loaded).filter((path) => !isIcon(path));
      assert.deepEqual(later, [], 'requests after loading');
      const origin = new URL(server.url).origin;
      assert.deepEqual([...origins], [origin]);
      const seen = await page.evaluate(() => performance.getEntriesByType('resource').map(({ name }) => new URL(name).origin));
      assert.deepEqual([...new Set(seen)], [origin]);
      assert.equal(await page.evaluate(() => window.crossOriginIsolated), true);
      await close();
      await server.close();
    },
  },
  {
    name: 'the page works after the server stops',
    async run({ browser }) {
      const server = await startServer();
      const { page, close } = await openPage(browser, server.url);
      await server.close();
      await page.click('.preset:nth-child(2)');
      assert.equal((await snapshot(page)).tokens.at(-1), 'Miss');
      await page.click('#source-rules');
      await toggle(page, '[value=average]');
      assert.equal((await snapshot(page)).tokens.length, 8);
      await close({ expected: /fetching the script/ }); // an error of the service worker, if it was not there yet
    },
  },
  {
    name: 'a missing .wasm gives a plain message',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.endsWith('.wasm')) await rm(join(folder, 'assets', name));
      });
      const text = await failureOn(browser, server);
      assert.match(text, /missing on the server/);
      await server.close();
    },
  },
  {
    name: 'a missing worker gives a plain message',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.startsWith('attention_worker')) await rm(join(folder, 'assets', name));
      });
      assert.match(await failureOn(browser, server), /no numbers to show\. A file of this page did not arrive\./);
      await server.close();
    },
  },
  {
    name: 'a browser without SIMD gets a plain message',
    async run({ browser }) {
      const server = await withWorkerPrelude('WebAssembly.validate = () => false;');
      assert.match(await failureOn(browser, server), /lacks WebAssembly SIMD/);
      await server.close();
    },
  },
  {
    name: 'a browser without relaxed SIMD runs the other build, and the chip says so',
    async run({ browser }) {
      // Reject the relaxed-SIMD probe. It contains opcode 0x105, in LEB128 0x85 0x02.
      const server = await withWorkerPrelude(`{
        const real = WebAssembly.validate;
        WebAssembly.validate = (bytes) => !(bytes.includes(0x85) && bytes.includes(0xfd)) && real(bytes);
      }`);
      const { page, close } = await openPage(browser, `${server.url}#source=rules`);
      const { backend, trace, weights, heads } = await snapshot(page);
      assert.equal(backend.simd, 'simd128');
      assert.match(await textOf(page, '#status'), /SIMD128/);
      const expected = reference({
        x: trace.x.data,
        n: 8,
        embedDim: 64,
        heads: heads.length,
        headDim: 16,
        causal: false,
        weights,
      });
      expected.output.forEach((value, i) => assert.ok(Math.abs(value - trace.output.data[i]) < 1e-5));
      await close();
      await server.close();
    },
  },
  {
    name: 'a browser without WebAssembly gets a plain message',
    async run({ browser }) {
      const server = await withWorkerPrelude('delete globalThis.WebAssembly;');
      const text = await failureOn(browser, server, {
        prepare: (page) => page.evaluateOnNewDocument(() => delete globalThis.WebAssembly),
      });
      assert.match(text, /no WebAssembly, or it is switched off/);
      await server.close();
    },
  },
  {
    name: 'a worker that hangs gives a plain message',
    async run({ browser }) {
      const server = await withWorkerPrelude('await new Promise(() => {});');
      const { page, close } = await openPage(browser, server.url, { ready: false });
      await page.waitForSelector('#failure:not([hidden])');
      assert.match(await textOf(page, '#failure'), /has not answered yet.*may still be loading/);
      await close();
      await server.close();
    },
  },
  {
    name: 'a worker that is ended is started again, and nothing typed is lost',
    async run({ browser }) {
      const server = await withWorkerPrelude(
        `addEventListener('message', (event) => {
          if (!event.data.values[0]?.tokens.includes('die')) return;
          event.stopImmediatePropagation();
          setTimeout(close, 100);
        });`,
      );
      const { page, close } = await openPage(browser, server.url);
      await page.evaluate(() => {
        window.said = [];
        const failure = document.querySelector('#failure');
        new MutationObserver(() => window.said.push(failure.textContent)).observe(failure, { childList: true, subtree: true });
      });
      await setSentenceOnly(page, 'die');
      await until(page, () => document.querySelector('#failure').textContent.includes('does not answer'));
      assert.match(await page.evaluate(() => window.said[0]), /stopped answering.*started again/);
      assert.equal(await page.$eval('#sentence', (field) => field.value), 'die');
      await setSentenceOnly(page, 'live on');
      assert.deepEqual((await snapshot(page)).tokens, ['live', 'on']);
      assert.equal(await page.$eval('#failure', (element) => element.hidden), true);
      await close();
      await server.close();
    },
  },
  {
    name: 'a missing main script gives a plain message after at most 5 s, with and without the style',
    async run({ browser }) {
      for (const gone of [/^index-.*\.js$/, /./]) {
        const server = await startBrokenServer(async (folder, assets) => {
          for (const name of assets) if (gone.test(name)) await rm(join(folder, 'assets', name));
        });
        const { page, close } = await openPage(browser, server.url, { ready: false });
        const hiddenFor = await page.$eval('.boot-late', (late) => parseFloat(getComputedStyle(late).animationDuration));
        assert.ok(hiddenFor <= 5, `the style hides the message for ${hiddenFor} s`);
        await until(page, () => document.querySelector('.boot-late').checkVisibility({ visibilityProperty: true }));
        assert.match(await textOf(page, '.boot-late'), /script has not started/);
        await close({ expected: /404|Failed to load|error loading|MIME/i });
        await server.close();
      }
    },
  },
  {
    name: 'if only the sections below are missing, the sentence works and the page says so',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.startsWith('below-')) await rm(join(folder, 'assets', name));
      });
      const { page, close } = await openPage(browser, server.url, { ready: false });
      await page.waitForSelector('#failure:not([hidden])');
      assert.match(await textOf(page, '#failure'), /rest of the page could not be loaded/);
      assert.equal(await page.evaluate(() => window.multiheadPage.snapshot() !== null), true);
      await close({ expected: /404|Failed to load resource|MIME type|module/ });
      await server.close();
    },
  },
  {
    name: 'without JavaScript the page says that it needs it',
    async run({ browser }) {
      const { url, close: closeServer } = await startPlainServer('/'); // npm start's lets no page show it in a frame
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      // A sandboxed frame runs no scripts in any browser; switching them off in the settings would need another
      // browser.
      const text = await page.evaluate(
        (address) =>
          new Promise((done) => {
            const frame = document.createElement('iframe');
            frame.setAttribute('sandbox', 'allow-same-origin');
            frame.onload = () => done(frame.contentDocument.body.innerText);
            frame.src = address;
            document.body.prepend(frame);
          }),
        url,
      );
      assert.match(text, /needs JavaScript/);
      assert.doesNotMatch(text, /Loading|has not started/);
      await close({ expected: /frame is sandboxed/ });
      await closeServer();
    },
  },
  {
    name: 'the page survives storage that is full or forbidden, and nothing typed is lost',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder) => {
        const file = join(folder, 'service_worker.js');
        const full = "Cache.prototype.addAll = Cache.prototype.put = async () => { throw new DOMException('full', 'QuotaExceededError'); };";
        await writeFile(file, `${full}\n${await readFile(file, 'utf8')}`);
      });
      const { page, close } = await openPage(browser, server.url, {
        prepare: (fresh) =>
          fresh.evaluateOnNewDocument(() => {
            Storage.prototype.setItem = Storage.prototype.getItem = () => {
              throw new DOMException('full', 'QuotaExceededError');
            };
          }),
      });
      const isDark = () => page.evaluate(() => document.documentElement.dataset.theme);
      await page.click('.icon-button');
      assert.match(await isDark(), /dark|light/);
      await setSentenceOnly(page, 'still here');
      assert.deepEqual((await snapshot(page)).tokens, ['still', 'here']);
      await (await page.$$('.preset'))[2].click();
      assert.notDeepEqual((await snapshot(page)).tokens, ['still', 'here']);
      await page.click('.preset.is-own');
      assert.deepEqual((await snapshot(page)).tokens, ['still', 'here'], 'nothing typed is lost to an example');
      await setSentenceOnly(page, 'typed at the last moment');
      await page.reload();
      assert.deepEqual((await snapshot(page)).tokens, ['typed', 'at', 'the', 'last', 'moment'], 'nor to a reload');
      await close();
      await server.close();
    },
  },
  {
    name: 'the status chip shows backend, reason, the median of warm runs, and size',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const { backend } = await snapshot(page);
      await page.click('#status summary');
      await until(page, () => /\d ms for 8 tokens.*median of warm runs/.test(document.querySelector('#status').textContent));
      const text = await textOf(page, '#status');
      assert.ok(text.includes(backend.simd === 'relaxed' ? 'the fastest kind of SIMD' : backend.why));
      assert.match(text, new RegExp(`${(backend.wasmBytes / 1000).toFixed(0)} kB`));
      await close();
      return `${backend.simd}, ${/[\d.<]+ ms/.exec(text)} a pass`;
    },
  },
  {
    name: 'the skip link goes past the header, and the address keeps the state',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`, { fresh: true });
      await page.keyboard.press('Tab');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'skip-link');
      await page.keyboard.press('Enter');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'page');
      await page.keyboard.press('Tab');
      assert.equal(await page.evaluate(() => document.querySelector('#page').contains(document.activeElement)), true);
      assert.match(await page.evaluate(() => location.hash), /^#causal=1/);
      await close();
    },
  },
  {
    name: 'the head of the page: preview with picture, theme colors, icons; the header fits 320 px',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { width: 320, height: 640 });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} px too wide`);
      const head = JSON.parse(
        await page.evaluate(() => {
          const metas = [...document.querySelectorAll('meta[property], meta[name]')];
          const named = metas.map((meta) => [meta.getAttribute('property') ?? meta.name, meta.content]);
          const links = [...document.querySelectorAll('link[rel]')].map(({ rel, href }) => [rel, href]);
          return JSON.stringify({ ...Object.fromEntries(named), ...Object.fromEntries(links) });
        }),
      );
      for (const name of ['og:title', 'og:description', 'og:image:alt', 'description']) assert.ok(head[name], name);
      for (const address of [head['og:image'], head['apple-touch-icon'], head.icon]) {
        const response = await fetch(new URL(address, url));
        assert.deepEqual([response.status, address.split('.').at(-1).slice(0, 3)], [200, /svg/.test(address) ? 'svg' : 'png']);
      }
      // The browser's own bars have the color of the page, also when the visitor chooses the other theme.
      const colors = () =>
        page.evaluate(() => {
          const bar = [...document.querySelectorAll('meta[name=theme-color]')].find(({ media }) => matchMedia(media).matches);
          const swatch = document.body.appendChild(document.createElement('i'));
          swatch.style.color = bar.content;
          return getComputedStyle(swatch).color === getComputedStyle(document.body).backgroundColor;
        });
      assert.equal(await colors(), true);
      await page.click('.icon-button');
      assert.equal(await colors(), true);
      await close();
    },
  },
  {
    name: 'a hundred edits leak no memory',
    thorough: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      // The memory below is the worker's. Scroll to a place without maps, so that nothing is drawn meanwhile.
      await page.evaluate(() => document.querySelector('#use-it').scrollIntoView());
      const before = (await snapshot(page)).memory;
      for (let i = 0; i < 100; i += 1) {
        await page.evaluate(async (round) => {
          const field = document.querySelector('#sentence');
          field.value = Array.from({ length: 1 + (round % 16) }, (_, j) => `t${j}`).join(' ');
          field.dispatchEvent(new Event('input'));
          if (round % 10 === 0) document.querySelector('[value=average]').click();
          while (window.multiheadPage.snapshot().tokens.join(' ') !== field.value) {
            await new Promise((resolve) => setTimeout(resolve, 2));
          }
        }, i);
      }
      const after = (await snapshot(page)).memory;
      assert.deepEqual([after.live, after.bytes], [before.live, before.bytes]);
      await close();
      return `${after.live} tensors, ${after.bytes} bytes, heap ${after.heap} bytes`;
    },
  },
  {
    name: 'after many quick changes the page shows the last one',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      await page.evaluate(() => {
        const field = document.querySelector('#sentence');
        for (let i = 1; i <= 60; i += 1) {
          field.value = Array.from({ length: i }, (_, j) => `t${j}`).join(' ');
          field.dispatchEvent(new Event('input'));
        }
      });
      const { tokens } = await snapshot(page);
      assert.equal(tokens.length, 60);
      assert.equal(await page.$$eval('.token', (list) => list.length), 60);
      await close();
    },
  },
];
