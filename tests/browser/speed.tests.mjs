// The speed section: nothing runs before it is requested, and the texts describe the results.

import assert from 'node:assert/strict';
import { readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { openPage, startBrokenServer, startServer, until } from './harness.mjs';

const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const facts = (page) => page.$$eval('#speed .speed-row', (rows) => rows.map((row) => row.textContent.replace(/\s+/g, ' ').trim()));

async function run(page) {
  await page.$eval('#run-speed', (button) => button.click());
  await until(page, () => /^(Done|The measurement)/.test(document.querySelector('#speed [role=status]').textContent));
  assert.match(await page.$eval('#speed [role=status]', (line) => line.textContent), /^Done: 32 tokens, 4 heads/);
  return facts(page);
}

export const tests = [
  {
    name: 'speed: nothing runs until asked; then this module, plain JavaScript, and how far their outputs differ',
    essential: true,
    async run({ browser }) {
      const server = await startServer();
      const { page, close } = await openPage(browser, `${server.url}#speed=sentence`);
      const isCopy = (path) => path.startsWith('/service_worker.js');
      const before = server.requested.slice(0, server.requested.findIndex(isCopy));
      assert.deepEqual(
        before.filter((path) => /speed_worker|pool_worker|peer_/.test(path)),
        [],
      );
      assert.deepEqual(await facts(page), []);
      const rows = await run(page);
      for (const [at, pattern] of [
        /^multihead, one worker.* ms \(.* to .*\).*times as fast.*results differ by at most \d × 10[⁻⁰¹²³⁴-⁹]+$/,
        /^multihead, all workers ?(\d+ workers?, (shared memory|messages)|).* ms .*results differ by at most/,
        /^Plain JavaScript ?one thread.* ms .*the baseline$/,
      ].entries()) {
        assert.match(rows[at].replaceAll('\u00a0', ' '), pattern);
      }
      const machine = await page.$eval('.speed-machine', (line) => line.textContent);
      assert.match(machine, /^(Chromium|Firefox|Safari) \d+ on Linux, \d+ processor threads?\. \w+.*, cross-origin isolated\.$/);
      assert.equal(await page.$eval('#speed .save', (button) => button.hidden), false);
      await page.evaluate(axe);
      const serious = await page.evaluate(async () => {
        const { violations } = await window.axe.run('#speed', { resultTypes: ['violations'] });
        return violations.filter(({ impact }) => /serious|critical/.test(impact)).map(({ id, nodes }) => `${id} ${nodes[0].html}`);
      });
      assert.deepEqual(serious, [], 'axe-core, with results');
      await close();
      await server.close();
      return rows[0];
    },
  },
  {
    name: 'speed: no speed-up is printed if outputs differ',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        const file = join(
          folder,
          'assets',
          assets.find((name) => /^speed_worker.*\.js$/.test(name)),
        );
        const code = await readFile(file, 'utf8');
        const wrong = code.replaceAll('1/Math.sqrt(', '1.1/Math.sqrt(');
        assert.notEqual(wrong, code);
        await writeFile(file, wrong);
      });
      const { page, close } = await openPage(browser, `${server.url}#speed=sentence`);
      const rows = await run(page);
      assert.match(rows[0], /outputs differ by .*so the times are not compared$/);
      assert.doesNotMatch(rows.join(' '), /times as fast/);
      await close();
      await server.close();
    },
  },
  {
    name: 'speed: a worker that ends during the measurement is noticed, and the next one measures',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        const file = join(
          folder,
          'assets',
          assets.find((name) => /^speed_worker.*\.js$/.test(name)),
        );
        const end = `addEventListener('message', ({ data }) => data.values[0].size === 'paragraph' && setTimeout(close, 300));`;
        await writeFile(file, `${end}\n${await readFile(file, 'utf8')}`);
      });
      const { page, close } = await openPage(browser, server.url);
      await page.$eval('#run-speed', (button) => button.click());
      // The worker ends between two measurements, which take seconds in Firefox on a busy machine.
      await until(page, () =>
        document.querySelector('#speed [role=status]').textContent.startsWith('The measurement has stopped: its worker has ended'),
      );
      assert.equal(await page.$eval('#run-speed', (button) => button.textContent), 'Run');
      await page.evaluate(() => (location.hash = '#speed=sentence'));
      await run(page);
      await close();
      await server.close();
    },
  },
  {
    name: 'speed: it can be stopped, and peers are offered only if they are there',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#speed=page`);
      const hasPeers = await page.$eval('#speed', (section) => section.querySelectorAll('input').length === 2);
      const text = await page.$eval('#speed', (section) => section.textContent);
      assert.equal(/npm start -- --peers/.test(text), !hasPeers);
      await page.$eval('#run-speed', (button) => button.click());
      await until(page, () => document.querySelector('#run-speed').textContent === 'Stop');
      await page.$eval('#run-speed', (button) => button.click());
      assert.deepEqual(await page.$$eval('#run-speed, #speed [role=status]', (list) => list.map(({ textContent }) => textContent)), [
        'Run',
        'Stopped.',
      ]);
      await close();
      return hasPeers ? 'with peers' : 'without peers';
    },
  },
];
