// What the tests need around a page: a server that keeps a log, copies of the site with something
// broken, and pages that remember every complaint.

import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { serve } from '../../web/serve.mjs';

const at = (path) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
export const site = at('build/web');
export const screenshotFolder = at('build/screenshots');
export const resultFile = at('build/test-results/browser.json');

/** A server on a port of its own; `requested` fills with paths. */
export async function startServer(root = site) {
  const running = await serve({ root, port: 0 });
  const requested = [];
  running.server.on('request', ({ url }) => requested.push(url));
  return { ...running, requested };
}

/** The tab's icon is fetched by the browser, not the page: at any time, and again. */
export const isIcon = (url) => url.endsWith('/favicon.svg');

/** A server of a changed copy: `change(folder, assets)` may edit it, `assets` lists its files. */
export async function startBrokenServer(change) {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-site-'));
  await cp(site, folder, { recursive: true });
  await change(folder, await readdir(join(folder, 'assets')));
  const running = await startServer(folder);
  return {
    ...running,
    close: async () => {
      await running.close();
      await rm(folder, { recursive: true });
    },
  };
}

/** Puts code in front of the worker's own, the only way to change what a worker finds in its browser. */
export const withWorkerPrelude = (code) =>
  startBrokenServer(async (folder, assets) => {
    const worker = join(
      folder,
      'assets',
      assets.find((name) => /^worker.*\.js$/.test(name)),
    );
    await writeFile(worker, `${code}\n${await readFile(worker, 'utf8')}`);
  });

/**
 * A page in a context of its own. `complaints` gathers errors of the console and the page; `close`
 * fails on any that were not expected.
 */
export async function openPage(browser, url, { width = 1280, height = 900, scheme, ready = true } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  const complaints = [];
  const origins = new Set();
  page.on('console', (message) => {
    if (isIcon(message.location()?.url ?? '')) return;
    if (['error', 'warn', 'warning'].includes(message.type())) complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('request', (request) => {
    if (/^(https?|wss?):/.test(request.url())) origins.add(new URL(request.url()).origin);
  });
  await setViewport(page, { width, height });
  if (scheme) await setScheme(page, scheme);
  await page.goto(url);
  if (ready) await settled(page);
  if (scheme) await checkScheme(page, scheme);
  return {
    page,
    complaints,
    origins,
    close: async ({ expected } = {}) => {
      const rest = complaints.filter((text) => !expected?.test(text));
      await context.close();
      assert.deepEqual(rest, [], 'errors on the console');
    },
  };
}

/**
 * Puppeteer turns the screen, too, by a command that Firefox 140 does not know. The size comes by one of its own, which
 * is under way when the other is refused.
 */
async function setViewport(page, size) {
  await page.setViewport(size).catch((error) => {
    if (!/setScreenOrientationOverride/.test(error.message)) throw error;
  });
  const seen = () => page.evaluate(() => ({ width: innerWidth, height: innerHeight }));
  for (let tries = 0; tries < 100 && (await seen()).width !== size.width; ++tries) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.deepEqual(await seen(), size, 'the viewport');
}

const setScheme = (page, value) =>
  page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]).catch(() => {});

/** Where the browser cannot pretend a preference, the page's own button will do. */
async function checkScheme(page, wanted) {
  const isDark = () =>
    page.evaluate(() => getComputedStyle(document.body).backgroundColor === 'rgb(15, 17, 24)');
  if ((await isDark()) !== (wanted === 'dark')) await page.click('.icon-button');
  assert.equal(await isDark(), wanted === 'dark', `the page is ${wanted}`);
}

/**
 * Waits until `condition` holds in the page. Asked again and again, because Puppeteer's waitForFunction() compiles it in
 * the page, which Firefox 140 takes for the page's own eval and forbids.
 */
export async function until(page, condition) {
  const patience = performance.now() + 10_000;
  while (!(await page.evaluate(condition))) {
    assert.ok(performance.now() < patience, `not true within 10 s: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Waits until the screen shows what is chosen. */
export async function settled(page) {
  await until(page, () => window.multiheadPage !== undefined);
  await page.evaluate(() => window.multiheadPage.settled().then(() => undefined));
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** The numbers on the screen. They travel as base64, which both browsers' protocols carry exactly. */
export async function snapshot(page) {
  await settled(page);
  const packed = await page.evaluate(() => {
    const result = window.multiheadPage.snapshot();
    if (!result) return null;
    const pack = (data) => {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      let text = '';
      for (let i = 0; i < bytes.length; i += 8192)
        text += String.fromCharCode(...bytes.subarray(i, i + 8192));
      return btoa(text);
    };
    const entries = (object, get) =>
      Object.fromEntries(Object.entries(object).map(([name, value]) => [name, get(value)]));
    return JSON.stringify({
      tokens: result.tokens,
      heads: result.heads,
      causal: result.causal,
      backend: result.backend,
      milliseconds: result.milliseconds,
      memory: result.memory,
      weights: entries(result.weights, pack),
      trace: entries(result.trace, ({ shape, data }) => ({ shape, data: pack(data) })),
    });
  });
  if (packed === null) return null;
  const result = JSON.parse(packed);
  const unpack = (text) => {
    const bytes = Uint8Array.from(Buffer.from(text, 'base64'));
    return new Float32Array(bytes.buffer);
  };
  for (const name of Object.keys(result.weights)) result.weights[name] = unpack(result.weights[name]);
  for (const step of Object.values(result.trace)) step.data = unpack(step.data);
  return result;
}

/** Replaces the sentence by typing. */
export async function typeSentence(page, text) {
  await page.click('#sentence');
  await page.keyboard.down('Control');
  await page.keyboard.press('a');
  await page.keyboard.up('Control');
  await page.keyboard.press('Backspace');
  await page.type('#sentence', text);
  await settled(page);
}

/** The same in one go. */
export async function setSentence(page, text) {
  await page.$eval(
    '#sentence',
    (field, value) => {
      field.value = value;
      field.dispatchEvent(new Event('input'));
    },
    text,
  );
  await settled(page);
}

/** A switch or chip, by the value or id of its (invisible) checkbox. */
export async function toggle(page, selector) {
  await page.evaluate((wanted) => document.querySelector(wanted).closest('label').click(), selector);
  await settled(page);
}

/** What the gallery's canvases look like. */
export const pictures = (page) =>
  page.evaluate(() => [...document.querySelectorAll('#gallery canvas')].map((canvas) => canvas.toDataURL()));
