// "Your own model" on the browser's GPU: Chromium on SwiftShader, which computes with the processor.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { launchWithGpu } from './browsers.mjs';
import { catchDownloads, press } from './downloads.mjs';
import { openPage, startBrokenServer, until } from './harness.mjs';
import { mapShown } from './own_model.tests.mjs';
import { bytePairTokenizer, goldenFiles } from './small_models.mjs';

const words = ['the', ' black', ' cat', ' sat', ' on', ' the', ' mat', 'The', '.'];
const vocabulary = JSON.parse(goldenFiles('gpt2')['config.json']).vocab_size;
const files = Object.entries({ ...goldenFiles('gpt2'), 'tokenizer.json': bytePairTokenizer(words, vocabulary) });
const texts = 'the black cat sat on the mat\nthe black mat sat on the cat';
const address = (device) => `#text=the+black+cat+sat&labTexts=${encodeURIComponent(texts)}&ownDevice=${device}`;
const skip = (kind) => kind !== 'chromium' && 'Chromium has a software adapter';

/** Gives the golden GPT-2 to the page. */
const give = (page) =>
  page.evaluate(
    (all) => {
      const made = all.map(([name, base64]) => new File([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], name));
      const event = new Event('drop', { bubbles: true, cancelable: true });
      document.dispatchEvent(Object.defineProperty(event, 'dataTransfer', { value: { types: ['Files'], files: made, items: [] } }));
    },
    files.map(([name, content]) => [name, Buffer.from(content).toString('base64')]),
  );
const chipOf = (page) => page.$eval('.own-where', ({ textContent }) => textContent);
const reasonOf = (page) => page.$eval('.own-why', ({ textContent }) => textContent);
const statusOf = (page) => page.$eval('.own-status[role=status]', ({ textContent }) => textContent);
const written = (page) => page.$$eval('.own-token', (list) => list.map(({ textContent }) => textContent));

async function continued(page) {
  await page.$eval('#own-continue', (button) => button.click());
  await until(page, () => /^24 new tokens; /.test(document.querySelector('#own-pace').textContent));
  return written(page);
}

/** Reads from the page the weights of the open head, the new tokens, and the maps of the laboratory. */
async function everything(page) {
  await catchDownloads(page);
  await give(page);
  await mapShown(page);
  const found = { place: await chipOf(page), status: await statusOf(page), tokens: await continued(page) };
  await page.$eval('.lab-place', (place) => place.scrollIntoView({ block: 'center' }));
  await until(page, () => document.querySelector('.lab-lens .map-cell') !== null);
  await page.$eval('#lab-run', (button) => button.click());
  await until(page, () => document.querySelector('.lab-experiment .lab-program')?.hidden === false);
  const tables = ['.own-picture .map-under .save', '.lab-lens .column .save', '.lab-lens .lab-rated .save'];
  const numbers = [];
  for (const table of [...tables, ...[1, 2, 3].map((at) => `.lab-maps > :nth-child(${at}) .save`)]) {
    await press(page, `${table}:nth-child(2)`);
    numbers.push(await page.evaluate(() => window.saved.at(-1).text()));
  }
  return { ...found, numbers: numbers.join('\n'), after: await chipOf(page) };
}

/** Throws unless two texts are the same but for their numbers, and each number is near the one in its place. */
function near(got, wanted, what) {
  const number = /-?\d+\.\d+(e-?\d+)?/g;
  assert.equal(got.replaceAll(number, '#'), wanted.replaceAll(number, '#'), what);
  const [a, b] = [got, wanted].map((text) => text.match(number).map(Number));
  a.forEach((value, at) => assert.ok(Math.abs(value - b[at]) <= 2e-4 * Math.max(1, Math.abs(b[at])), `${what}, ${at}: ${value}, not ${b[at]}`));
}

/** Runs in a page of a browser with WebGPU. */
async function withGpu(url, hash, run) {
  const browser = await launchWithGpu();
  try {
    const { page, close } = await openPage(browser, `${url}${hash}`, { fresh: true });
    await run(page);
    await close();
  } finally {
    await browser.close();
  }
}

/** Runs before the model's worker: SwiftShader is not known as such, measurements say that it is faster, and "lose" loses devices. */
const prelude = `
Object.defineProperty(GPUAdapterInfo.prototype, 'isFallbackAdapter', { get: () => false });
let looks = 0;
performance.now = () => (looks += 1) ** 2;
const request = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...given) {
  const device = await request.apply(this, given);
  new BroadcastChannel('lose').onmessage = () => device.destroy();
  return device;
};`;

const startServer = () =>
  startBrokenServer(async (folder, assets) => {
    const worker = join(
      folder,
      'assets',
      assets.find((name) => /^model_worker.*\.js$/.test(name)),
    );
    await writeFile(worker, `${prelude}\n${await readFile(worker, 'utf8')}`);
  });

/** Loses the GPU in the middle of a generation. */
const lost = (device) => async () => {
  const server = await startServer();
  try {
    let wanted;
    await withGpu(server.url, address('cpu'), async (page) => {
      await give(page);
      await mapShown(page);
      wanted = await continued(page);
    });
    await withGpu(server.url, address(device), async (page) => {
      await give(page);
      await mapShown(page);
      assert.equal(await chipOf(page), 'GPU', await reasonOf(page));
      await page.evaluate(() => {
        const channel = new BroadcastChannel('lose');
        const observer = new MutationObserver(() => {
          if (document.querySelectorAll('.own-token').length < 3) return;
          observer.disconnect();
          channel.postMessage('');
        });
        observer.observe(document.querySelector('.own-tokens'), { childList: true });
      });
      assert.deepEqual(await continued(page), wanted, 'tokens over the loss');
      assert.match(await chipOf(page), /^(1 thread|\d workers?)$/);
      assert.match(await reasonOf(page), /the device is lost/);
    });
  } finally {
    await server.close();
  }
};

export const tests = [
  {
    name: 'a model on the GPU: the chip says so, and its numbers are near those of the processor, in the laboratory too',
    skip,
    async run() {
      const server = await startServer();
      const found = {};
      try {
        for (const device of ['cpu', 'gpu', 'auto']) {
          await withGpu(server.url, address(device), async (page) => (found[device] = await everything(page)));
        }
      } finally {
        await server.close();
      }
      const { cpu, ...others } = found;
      assert.match(cpu.place, /^(1 thread|\d workers?)$/);
      for (const [device, { place, after, status, tokens, numbers }] of Object.entries(others)) {
        assert.deepEqual([place, after, status], ['GPU', 'GPU', ''], device);
        assert.deepEqual(tokens, cpu.tokens, device);
        near(numbers, cpu.numbers, device);
      }
    },
  },
  { name: "a lost GPU in the middle of a text: the processor goes on, device 'auto'", skip, run: lost('auto') },
  { name: "a lost GPU in the middle of a text: the processor goes on, device 'gpu'", skip, run: lost('gpu') },
  {
    name: 'a GPU that is lost in the laboratory: the processor ends the experiment',
    skip,
    async run() {
      const server = await startServer();
      try {
        await withGpu(server.url, address('gpu'), async (page) => {
          await give(page);
          await mapShown(page);
          await page.$eval('.lab-place', (place) => place.scrollIntoView({ block: 'center' }));
          await until(page, () => document.querySelector('.lab-lens .map-cell') !== null);
          assert.equal(await chipOf(page), 'GPU');
          await page.evaluate(() => new BroadcastChannel('lose').postMessage(''));
          await page.$eval('#lab-run', (button) => button.click());
          await until(page, () => document.querySelector('.lab-experiment .lab-program')?.hidden === false);
          assert.match(await chipOf(page), /^(1 thread|\d workers?)$/);
          assert.match(await reasonOf(page), /^The GPU failed, so the model goes on with the processor/);
        });
      } finally {
        await server.close();
      }
    },
  },
  {
    name: 'a GPU that only the processor plays is not taken, and the page says why',
    skip,
    run: ({ url }) =>
      withGpu(url, '#text=the+black+cat+sat', async (page) => {
        await give(page);
        await mapShown(page);
        assert.match(await chipOf(page), /^(1 thread|\d workers?)$/);
        assert.match(await reasonOf(page), /^The GPU computes nothing: .*, which computes on the CPU\.$/);
        assert.equal(await statusOf(page), '');
      }),
  },
  {
    name: 'a visitor who chooses the GPU where there is none reads a sentence, and the model stays open',
    skip,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=the+black+cat+sat`, { fresh: true });
      await give(page);
      await mapShown(page);
      await page.select('#own-device', 'gpu');
      await until(page, () => /GPU/.test(document.querySelector('.own-status').textContent));
      assert.equal(await statusOf(page), 'This browser offers pages no GPU, so the model computes on the processor.');
      assert.equal(await reasonOf(page), await statusOf(page));
      assert.match(await chipOf(page), /^(1 thread|\d workers?)$/);
      assert.match(await page.evaluate(() => location.hash), /ownDevice=gpu/);
      assert.equal((await continued(page)).length, 24);
      await close();
    },
  },
];
