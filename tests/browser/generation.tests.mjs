// Induction, trained to the end, and "Generate": a pattern continued with a cache and without one.

import assert from 'node:assert/strict';
import { until } from './harness.mjs';
import { openTraining, textOf, trainFor, trainToTheEnd } from './training_steps.mjs';

const lane = (page, which) =>
  page.$eval(`.cost-${which}`, (element) => ({
    now: element.querySelectorAll('.is-now').length,
    kept: element.querySelectorAll('.is-kept').length,
    numbers: [...element.querySelectorAll('dd')].map(({ textContent }) => textContent),
  }));

const whole = (text) => Number(text.replaceAll(/[^\d.]/g, ''));

export const tests = [
  {
    name: 'induction is learned with two layers and not with one; the model continues the pattern, with the same tokens with a cache as without',
    async run({ browser, kind, url }) {
      const { page, close } = await openTraining(browser, url, '#train=induction', {
        // The page shows one token every 260 ms; the test shortens this pause to 10 ms.
        prepare: (fresh) =>
          fresh.evaluateOnNewDocument(() => {
            const wait = window.setTimeout;
            window.setTimeout = (run, delay, ...rest) => wait(run, delay === 260 ? 10 : delay, ...rest);
          }),
      });
      const { step, measured, smallerRun, milliseconds } = await trainToTheEnd(page);
      assert.equal(step, 400);
      assert.ok(measured.accuracy >= 0.99, `two layers: ${measured.accuracy}`);
      assert.equal(smallerRun.settings.layers, 1);
      assert.ok(smallerRun.accuracy.at(-1).value < 0.3, `one layer: ${smallerRun.accuracy.at(-1).value}`);
      const badges = await page.$$eval('.head-job.is-earned', (list) => list.map(({ textContent }) => textContent));
      assert.ok(badges.includes('previous token') && badges.includes('induction'), badges.join());

      await page.click('#generate-one');
      await until(page, () => document.querySelectorAll('.generated > li:not(.is-given)').length === 1);
      const first = await lane(page, 'cached');
      assert.deepEqual(first.now, (await lane(page, 'plain')).now, 'the first tick reads the prompt');
      await page.evaluate(() => {
        const list = document.querySelector('.generated');
        window.lengths = [];
        new MutationObserver(() => window.lengths.push(list.childElementCount)).observe(list, { childList: true });
      });
      await page.click('#generate-go');
      await until(page, () => document.querySelectorAll('.generated > li').length === 48);
      const lengths = await page.evaluate(() => window.lengths);
      // Firefox runs with reduced motion, which shows only the end.
      if (kind === 'chromium') lengths.forEach((length, i) => assert.equal(length, 48 - lengths.length + 1 + i, 'a token a tick'));
      const [cached, plain] = [await lane(page, 'cached'), await lane(page, 'plain')];
      assert.deepEqual([cached.now, cached.kept], [1, 46]);
      assert.deepEqual([plain.now, plain.kept], [47, 0]);
      // Multiply-adds of 2 layers: 4 · 32² per row for the projections, and 64 for each token seen; then 32² for the
      // logits.
      assert.equal(whole(cached.numbers[0]), 2 * (4096 + 64 * 47) + 1024);
      assert.equal(whole(plain.numbers[0]), 47 * (2 * 4096 + 1024) + 2 * 64 * ((47 * 48) / 2));
      assert.deepEqual([whole(cached.numbers[1]), whole(plain.numbers[1])], [47 * 512, 0]);
      for (const { numbers } of [cached, plain]) assert.match(numbers[2], /ms$/);
      const given = await page.$$eval('.generated .is-given', (list) => list.length);
      const said = await textOf(page, '.same-tokens');
      assert.equal(said, `Same tokens with and without the cache: ${48 - given} of ${48 - given}.`);
      const tokens = await page.$$eval('.generated > li > :first-child', (list) => list.map((each) => each.textContent));
      const period = given - 1;
      for (let i = given; i < 32; i += 1) assert.equal(tokens[i], tokens[i - period], `token ${i + 1} of ${tokens}`);
      await page.click('#generate-other');
      await until(page, () => document.querySelectorAll('.generated > li').length === 0);
      await until(page, () => location.hash.includes('pattern=2'));
      await close();
      return `${(milliseconds / 1000).toFixed(1)} s; with the cache ${cached.numbers[2]}, without ${plain.numbers[2]}`;
    },
  },
  {
    name: 'an untrained model is said to guess, and more training starts the generation anew',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url, '#train=induction');
      assert.match(await textOf(page, '.generate-hint'), /has not learned the pattern/);
      await page.click('#generate-one');
      await until(page, () => document.querySelectorAll('.generated > li').length > 0);
      await trainFor(page, 3);
      assert.equal(await page.$$eval('.generated > li', (list) => list.length), 0);
      await close();
    },
  },
  {
    name: 'Four jobs has nothing to generate, and says why',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      assert.match(await textOf(page, '.no-generation'), /never says what comes next/);
      assert.equal(await page.$('#generate-go'), null, 'its script is not fetched');
      await page.click('#generate-train');
      await until(page, () => window.multiheadPage.training().curve.settings.kind === 'induction');
      await until(page, () => window.multiheadPage.training().step > 5);
      assert.equal(await page.evaluate(() => document.activeElement.id), 'generate-go');
      // Back shows the four jobs as they were, and trains nothing; the induction run is there again afterwards.
      await page.evaluate(() => history.back());
      await until(page, () => window.multiheadPage.training().curve.settings.kind === 'fourJobs');
      assert.equal(await page.$eval('#generate-go', (button) => button.checkVisibility()), false);
      assert.deepEqual(await page.evaluate(() => [window.multiheadPage.training().status, window.multiheadPage.training().step]), ['paused', 0]);
      await page.click('#train-induction');
      await until(page, () => window.multiheadPage.training().curve.settings.kind === 'induction');
      assert.ok((await page.evaluate(() => window.multiheadPage.training().step)) > 5);
      await close();
    },
  },
];
