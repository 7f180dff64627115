// Requests to other origins, the size of the transfer, and what a visitor sees if something is missing.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import {
  isIcon,
  offlineCopyReady,
  openPage,
  snapshot,
  startBrokenServer,
  startServer,
  toggle,
  withWorkerPrelude,
} from './harness.mjs';
import { reference } from './reference.mjs';

/** Waits for the failure message, and checks that the console shows no other errors. */
async function failureOn(browser, server) {
  const { page, close } = await openPage(browser, server.url, { ready: false });
  await page.waitForSelector('#failure:not([hidden])', { timeout: 10_000 });
  const text = await page.$eval('#failure', (element) => element.textContent);
  assert.match(text, /could not start/);
  assert.equal(
    await page.$eval('#sentence', (field) => field.checkVisibility()),
    true,
    'the rest of the page stands',
  );
  await close({ expected: /404|Failed to load resource|Loading Worker/ });
  return text;
}

export const tests = [
  {
    name: 'no requests to other origins, and none at all after loading',
    async run({ browser }) {
      const server = await startServer();
      const { page, origins, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      const loaded = server.requested.length;
      await page.click('.preset');
      await toggle(page, '#causal');
      await page.click('#step-x');
      await snapshot(page);
      const later = server.requested.slice(loaded).filter((path) => !isIcon(path));
      assert.deepEqual(later, [], 'requests after loading');
      const origin = new URL(server.url).origin;
      assert.deepEqual([...origins], [origin]);
      const seen = await page.evaluate(() =>
        performance.getEntriesByType('resource').map(({ name }) => new URL(name).origin),
      );
      assert.deepEqual([...new Set(seen)], [origin]);
      const policy = await page.$eval('meta[http-equiv=Content-Security-Policy]', (meta) => meta.content);
      assert.equal(
        policy,
        "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'",
      );
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
      await page.click('.preset');
      await toggle(page, '[value=average]');
      assert.equal((await snapshot(page)).tokens.length, 8);
      await close();
    },
  },
  {
    name: 'a missing .wasm gives a plain message',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.endsWith('.wasm')) await rm(join(folder, 'assets', name));
      });
      const text = await failureOn(browser, server);
      assert.match(text, /\.wasm: HTTP status 404/);
      await server.close();
    },
  },
  {
    name: 'a missing worker gives a plain message',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.startsWith('worker')) await rm(join(folder, 'assets', name));
      });
      assert.match(await failureOn(browser, server), /worker script could not be loaded/);
      await server.close();
    },
  },
  {
    name: 'a browser without SIMD gets a plain message',
    async run({ browser }) {
      const server = await withWorkerPrelude('WebAssembly.validate = () => false;');
      assert.match(await failureOn(browser, server), /WebAssembly SIMD is missing/);
      await server.close();
    },
  },
  {
    name: 'a browser without relaxed SIMD runs the other build, and the chip says so',
    async run({ browser }) {
      // The relaxed-SIMD probe contains opcode 0x105, in LEB128 0x85 0x02.
      const server = await withWorkerPrelude(`{
        const real = WebAssembly.validate;
        WebAssembly.validate = (bytes) => !(bytes.includes(0x85) && bytes.includes(0xfd)) && real(bytes);
      }`);
      const { page, close } = await openPage(browser, server.url);
      const { backend, trace, weights, heads } = await snapshot(page);
      assert.equal(backend.simd, 'simd128');
      assert.match(await page.$eval('#status summary', (chip) => chip.textContent), /SIMD128/);
      const expected = reference({
        x: trace.x.data,
        n: 7,
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
    name: 'the status chip shows backend, reason, time and size',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const { backend, milliseconds } = await snapshot(page);
      await page.click('#status summary');
      const text = await page.$eval('#status', (chip) => chip.textContent);
      assert.ok(text.includes(backend.why));
      assert.match(text, /\d ms/);
      assert.match(text, new RegExp(`${(backend.wasmBytes / 1000).toFixed(0)} kB`));
      await close();
      return `${backend.simd}, ${milliseconds.toFixed(3)} ms a pass`;
    },
  },
  {
    name: 'a hundred edits leak no memory',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const before = (await snapshot(page)).memory;
      for (let i = 0; i < 100; i += 1) {
        await page.evaluate(async (round) => {
          const field = document.querySelector('#sentence');
          field.value = Array.from({ length: 1 + (round % 64) }, (_, j) => `t${j}`).join(' ');
          field.dispatchEvent(new Event('input'));
          if (round % 10 === 0) document.querySelector('[value=average]').click();
          await window.multiheadPage.settled();
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
      const { page, close } = await openPage(browser, url);
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
