// Helpers of the browser tests: a server that logs its requests, copies of the site with a broken part, and pages that
// collect every error.

import assert from 'node:assert/strict';
import { cp, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { serve } from '../../web/serve.mjs';

const at = (path) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
export const site = at('build/web');
export const results = at('build/test-results');

/**
 * Milliseconds after which a wait counts as hung. A machine that compiles on every core meanwhile can take ten times as
 * long as a calm one, so no test depends on how long something takes.
 */
export const PATIENCE = 120_000;

/** For tests whose workers nothing starts again: what run.mjs repeats them for. */
export const lostWorkers = { firefox: 'Firefox 153 does not return from 1 of 50 new Worker() in a worker, in a page with nothing else, too' };

/** Opens a page that is not given up before PATIENCE. */
export async function patientPage(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  return page;
}

/** A server on its own port; it adds requested paths to `requested`, and counts the bytes that it sends. */
export async function startServer(root = site) {
  const running = await serve({ root, port: 0 });
  const requested = [];
  const sockets = new Set();
  running.server.on('request', ({ url }) => requested.push(url));
  running.server.on('connection', (socket) => sockets.add(socket));
  const bytesSent = () => [...sockets].reduce((sum, { bytesWritten }) => sum + bytesWritten, 0);
  return { ...running, requested, bytesSent };
}

/** True for the page's icons, which the browser itself fetches, at any time and repeatedly. */
export const isIcon = (url) => /\/(favicon\.svg|touch-icon\.png|favicon\.ico)$/.test(url);

/** A server of a changed copy of the site: `change(folder, assets)` may edit it; `assets` lists its files. */
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

/** Inserts code at the start of the worker: the only way to change the browser features that a worker finds. */
export const withWorkerPrelude = (code) =>
  startBrokenServer(async (folder, assets) => {
    const worker = join(
      folder,
      'assets',
      assets.find((name) => /^attention_worker.*\.js$/.test(name)),
    );
    await writeFile(worker, `${code}\n${await readFile(worker, 'utf8')}`);
  });

const USUAL_SIZE = { width: 1280, height: 900 };

/** Methods that change a page beyond its address. A test that calls one of these methods leaves no page to the next test. */
const SPOILS = ['createCDPSession', 'emulateMediaFeatures', 'emulateMediaType', 'evaluateOnNewDocument', 'goto', 'reload', 'setOfflineMode'];

/**
 * The page that a lane's tests share, by browser: opening one takes two core-seconds, another address a tenth of that.
 * @type {WeakMap<object, { origin: string, opened?: Opened, inUse?: boolean }>}
 */
const lanes = new WeakMap();

/** From here on, the tests in this browser share an opened page of this server. */
export const sharePage = (browser, url) => void lanes.set(browser, { origin: new URL(url).origin });

/** The next test opens a page of its own: the one before failed, and has left its page in any state. */
export function forgetPage(browser) {
  const lane = lanes.get(browser);
  void lane?.opened?.context.close().catch(() => undefined);
  if (lane) sharePage(browser, lane.origin);
}

/**
 * @typedef {object} Opened
 * @property {import('puppeteer-core').Page} page
 * @property {string[]} complaints errors of the console and the page
 * @property {Set<string>} origins of its requests
 * @property {import('puppeteer-core').BrowserContext} context
 */

/** Opens a page in a new browser context. */
async function openNew(browser, url, { size, scheme, ready, prepare }) {
  const context = await browser.createBrowserContext();
  const page = await patientPage(context);
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
  await setViewport(page, size);
  if (scheme) await setScheme(page, scheme);
  await prepare?.(page);
  await page.goto(url);
  if (ready) await settled(page);
  if (scheme) await checkScheme(page, scheme);
  return { page, context, complaints, origins };
}

/**
 * Returns the states of the page's elements that have an id, as one text. Leaves out Undo and Redo, which know what earlier
 * tests did.
 */
const lookOf = (page) =>
  page.evaluate(() => {
    const states = ['aria-checked', 'aria-expanded', 'aria-hidden', 'aria-pressed', 'aria-selected', 'class', 'disabled', 'hidden', 'open'];
    const elements = [...document.querySelectorAll('body [id], details, dialog')].filter((element) => !element.closest('.undo-bar'));
    const look = elements.map((element) => {
      const all = states.map((name) => element.getAttribute(name)?.replace(/^false$/, ''));
      return [element.tagName, element.id, ...all.map((state) => state ?? ''), element.value, element.checked].join('|');
    });
    return [...look, `${scrollX},${scrollY}`, JSON.stringify({ ...localStorage, ...sessionStorage })].join('\n');
  });

/** Brings the shared page to an address, as a visitor does who edits it. */
async function moveTo(page, hash, size) {
  await setViewport(page, size);
  await page.mouse.move(0, 0);
  await page.evaluate(async (next) => {
    document.activeElement?.blur();
    getSelection().removeAllRanges();
    if (location.hash !== next) {
      const moved = new Promise((done) => addEventListener('popstate', done, { once: true }));
      location.hash = next;
      await moved;
    }
    scrollTo({ left: 0, top: 0, behavior: 'instant' });
  }, hash);
  await settled(page);
}

/**
 * Opens a page at this address. Takes the page that an earlier test has left in this browser, if there is one. `fresh` opens a
 * new page in a new browser context: for tests of the first look, of undo, of the order of the focus, and of work that is
 * counted. `scheme` and `prepare` do the same; `prepare` is called before the page loads. `complaints` collects
 * errors of the console and the page; `close` fails if there are any unexpected ones.
 */
export async function openPage(browser, url, { width = USUAL_SIZE.width, height = USUAL_SIZE.height, scheme, ready = true, prepare, fresh } = {}) {
  const size = { width, height };
  const { origin, hash } = new URL(url);
  const lane = lanes.get(browser);
  const shares = !fresh && !prepare && !scheme && ready && lane?.origin === origin && !lane.inUse && new URL(url).pathname === '/';
  const finish = async ({ page, complaints, context }, expected) => {
    await page.takeComplaints?.();
    const rest = complaints.filter((text) => !expected?.test(text));
    await context?.close();
    assert.equal(rest.length, 0, `errors on the console: ${rest.join(' | ')}`);
  };
  if (!shares) {
    const opened = await openNew(browser, url, { size, scheme, ready, prepare });
    return { ...opened, close: ({ expected } = {}) => finish(opened, expected) };
  }
  lane.inUse = true;
  if (!lane.opened) {
    lane.opened = await openNew(browser, `${origin}/`, { size: USUAL_SIZE, ready });
    lane.look = await lookOf(lane.opened.page);
    lane.spoiled = false;
    for (const name of SPOILS) {
      const method = lane.opened.page[name];
      if (method) {
        lane.opened.page[name] = (...given) => {
          lane.spoiled = true;
          return method.apply(lane.opened.page, given);
        };
      }
    }
  }
  const { opened } = lane;
  await moveTo(opened.page, hash, size);
  return {
    ...opened,
    close: async ({ expected } = {}) => {
      const { page, complaints, context } = opened;
      await finish({ page, complaints }, expected);
      complaints.length = 0;
      opened.origins.clear();
      if (!lane.spoiled) {
        await moveTo(page, '', USUAL_SIZE);
        lane.spoiled = (await lookOf(page)) !== lane.look;
      }
      if (lane.spoiled) {
        lane.opened = undefined;
        await context.close();
      }
      lane.inUse = false;
    },
  };
}

/**
 * Sets the size of the page. Puppeteer also sends a command for the orientation, which Firefox 140 rejects. The command
 * for the size has been sent by then, so wait for its effect.
 */
export async function setViewport(page, size) {
  await page.setViewport(size).catch((error) => {
    if (!/setScreenOrientationOverride/.test(error.message)) throw error;
  });
  const seen = () => page.evaluate(() => ({ width: innerWidth, height: innerHeight }));
  await eventually(async () => (await seen()).width === size.width, `the viewport is ${size.width} pixels wide`);
  assert.deepEqual(await seen(), size, 'the viewport');
}

const setScheme = (page, value) => page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value }]).catch(() => {});

/** Checks the color scheme. If the browser cannot emulate the preference, clicks the page's own theme button first. */
async function checkScheme(page, wanted) {
  const isDark = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor === 'rgb(15, 17, 24)');
  if ((await isDark()) !== (wanted === 'dark')) await page.click('.icon-button');
  assert.equal(await isDark(), wanted === 'dark', `the page is ${wanted}`);
}

/**
 * Waits until `holds()` is true, by polling. The pauses grow, because each look takes time in the page's process, too.
 */
export async function eventually(holds, what = String(holds)) {
  const end = performance.now() + PATIENCE;
  for (let pause = 5; !(await holds()); pause = Math.min(60, 1.25 * pause)) {
    assert.ok(performance.now() < end, `not true within ${PATIENCE / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

/**
 * Waits until `condition` holds in the page; an error has what the page says. Puppeteer's waitForFunction() would compile the condition in the
 * page, and Firefox 140 treats that as an eval of the page, which the security policy forbids.
 */
export async function until(page, condition) {
  try {
    await eventually(() => page.evaluate(condition), String(condition).replace(/\s+/g, ' '));
  } catch (error) {
    const said = await page
      .$$eval('[role=status], [role=alert]', (lines) => lines.map(({ textContent }) => textContent.trim()).filter(Boolean))
      .catch(String);
    error.message += `; the page says ${JSON.stringify(said)} at ${page.url()}`;
    throw error;
  }
}

/** Waits until the service worker has its copy of the page and answers the page's requests. */
export const offlineCopyReady = (page) =>
  until(page, async () => {
    const registration = await navigator.serviceWorker.getRegistration();
    return registration?.active?.state === 'activated' && navigator.serviceWorker.controller !== null;
  });

/** Waits until the page is complete and shows the current choices. */
export async function settled(page) {
  await until(page, () => window.multiheadPage !== undefined && document.querySelector('#use-it') !== null);
  await page.evaluate(() => window.multiheadPage.settled().then(() => undefined));
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** The numbers on the screen. They are sent as base64, which the protocols of both browsers transfer exactly. */
export async function snapshot(page) {
  await settled(page);
  const packed = await page.evaluate(() => {
    const result = window.multiheadPage.snapshot();
    if (!result) return null;
    const pack = (data) => {
      const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      let text = '';
      for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
      return btoa(text);
    };
    const entries = (object, get) => Object.fromEntries(Object.entries(object).map(([name, value]) => [name, get(value)]));
    return JSON.stringify({
      tokens: result.tokens,
      heads: result.heads,
      causal: result.causal,
      bend: result.bend,
      backend: result.backend,
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

/** Replaces the sentence, key by key. */
export async function typeSentence(page, text) {
  await page.click('#sentence');
  await page.keyboard.down('Control');
  await page.keyboard.press('a');
  await page.keyboard.up('Control');
  await page.keyboard.press('Backspace');
  await page.type('#sentence', text);
  await settled(page);
}

/** Replaces the sentence in one step. */
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

/** Toggles a switch or chip. `selector` matches its (invisible) checkbox. */
export async function toggle(page, selector) {
  await page.evaluate((wanted) => document.querySelector(wanted).closest('label').click(), selector);
  await settled(page);
}

/** The pixels of the maps of all heads. */
export const pictures = (page) => page.evaluate(() => [...document.querySelectorAll('#live-map .map canvas')].map((canvas) => canvas.toDataURL()));
