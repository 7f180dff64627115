// "Train live": heads that specialize, curves that repeat, muting, pausing, saved moments, bad input, and memory. The
// training of induction, and the text that its model generates, are in generation.tests.mjs.

import assert from 'node:assert/strict';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { eventually, openPage, settled, startBrokenServer, until } from './harness.mjs';
import { openTraining, textOf, trainFor, trainingOf, trainToTheEnd } from './training_steps.mjs';
import { countWork } from './work.mjs';

/** Sets the size. Firefox 140 rejects Puppeteer's next command, which sets the orientation of the screen. */
const resize = (page, size) => page.setViewport(size).catch(() => undefined);

const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(1)} s`;

export const tests = [
  {
    name: 'Four jobs: four heads take a job each, one head cannot, and muting a head takes its job away',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      const places = () =>
        page.$$eval('.train-card :is(.train-map, .job-cells)', (list) =>
          list.map((element) => {
            const { left, top, width, height } = element.getBoundingClientRect();
            return [left, top + scrollY, width, height].map(Math.round).join();
          }),
        );
      const before = await places();
      assert.deepEqual(await page.$$eval('.head-job', (list) => [...new Set(list.map((name) => name.textContent))]), ['no job yet']);
      const work = await countWork(page);
      const { step, run, measured, smallerRun, milliseconds } = await trainToTheEnd(page);
      const { painted, changes } = await work();
      assert.equal(step, 600);
      assert.ok(measured.accuracy >= 0.98, `4 heads: ${measured.accuracy}`);
      assert.ok(smallerRun.accuracy.at(-1).value <= 0.8, `1 head: ${smallerRun.accuracy.at(-1).value}`);
      assert.equal(smallerRun.settings.heads, 1);
      assert.equal(run.losses.length, 600);

      const score = (head, job) => measured.attention[head * 4 + job];
      const owners = [0, 1, 2, 3].map((job) => [0, 1, 2, 3].sort((a, b) => score(b, job) - score(a, job))[0]);
      assert.equal(new Set(owners).size, 4, `distinct heads: ${owners}`);
      owners.forEach((head, job) => assert.ok(score(head, job) >= 0.9, `job ${job}: ${score(head, job)}`));
      const jobs = ['previous token', 'two back', 'latest vowel', 'latest star'];
      const badges = await page.$$eval('.head-job', (list) => list.map(({ textContent }) => textContent));
      assert.deepEqual(
        badges,
        owners.map((_, head) => jobs[owners.indexOf(head)]),
      );
      assert.deepEqual(await places(), before, 'maps and job cells stay where they are');

      const buttons = await page.$$('.head-button');
      for (const [job, head] of owners.entries()) {
        await buttons[head].click();
        await until(page, () => window.multiheadPage.training().muting !== undefined);
        const { muted, muting } = await trainingOf(page);
        assert.deepEqual(muted, [head]);
        muting.after.forEach((after, other) => {
          const drop = muting.before.jobAccuracy[other] - after;
          if (other === job) assert.ok(drop >= 0.4, `${jobs[job]} drops by ${drop}`);
          else assert.ok(drop <= 0.05, `${jobs[other]} drops by ${drop} without head ${head}`);
        });
        const said = await textOf(page, '.proof-text');
        assert.match(said, new RegExp(`Without head ${head + 1}, ${jobs[job]} falls from .* the other 3 jobs stay`));
        assert.equal(await page.$eval('.proof .legend', (key) => key.innerText.trim().replace(/\s+/g, ' ')), 'all heads muted');
        assert.equal((await page.$$('.train-card.is-muted .job-box.is-muted')).length, 4);
        await buttons[head].click();
        await until(page, () => window.multiheadPage.training().muted.length === 0);
      }
      // The page shows a frame every ten steps, of each of the four heads and of the one head beside them.
      assert.ok(painted / step <= 1, `${painted / step} maps painted for a step`);
      assert.ok(changes / step <= 100, `${changes / step} changes of the document for a step`);
      await close();
      const shown = `${(painted / step).toFixed(2)} maps and ${Math.round(changes / step)} changes of the document for a step`;
      return `${seconds(milliseconds)} with the model beside it; ${shown}`;
    },
  },
  {
    name: 'the same seed gives the same curve, bit for bit',
    async run({ browser, url }) {
      const losses = async (page) => {
        const { run, smallerRun } = await trainFor(page, 40);
        return [run.losses.slice(0, 40), smallerRun.losses.slice(0, 20)];
      };
      const first = await openTraining(browser, url, '#seed=5');
      const five = await losses(first.page);
      await first.close();
      const { page, close } = await openTraining(browser, url, '#seed=6');
      const six = await losses(page);
      await page.evaluate(() => (location.hash = '#seed=5'));
      await until(page, () => {
        const { curve, step, status } = window.multiheadPage.training();
        return curve.settings.seed === 5 && step === 0 && status === 'paused';
      });
      const again = await losses(page);
      await close();
      assert.deepEqual(again, five);
      assert.notDeepEqual(six[0], five[0]);
    },
  },
  {
    name: 'pause acts within the next frame of ten steps',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      const pause = () =>
        page.evaluate(async () => {
          const { training } = window.multiheadPage;
          const from = training().last;
          document.querySelector('#train-go').click();
          while (training().last < from + 10) await new Promise((resolve) => setTimeout(resolve));
          const asked = training().last;
          document.querySelector('#train-go').click();
          while (training().status === 'running') await new Promise((resolve) => setTimeout(resolve));
          return training().last - asked;
        });
      // The worker trains on while a busy machine keeps the page waiting (40 more steps were seen), so one of five counts.
      const more = [];
      do {
        more.push(await pause());
        const { step } = await trainingOf(page);
        await new Promise((resolve) => setTimeout(resolve, 300));
        assert.equal((await trainingOf(page)).step, step);
      } while (more.at(-1) > 20 && more.length < 5);
      assert.ok(more.at(-1) <= 20, `${more} more steps`);
      await close();
      return `${more} more steps`;
    },
  },
  {
    name: 'the scrubber goes back to saved moments, and training goes on from there with the same numbers',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url, '#train=induction');
      const { run, moments, last } = await trainFor(page, 30);
      const map = () => page.$eval('.train-card canvas', (canvas) => canvas.toDataURL());
      const end = await map();
      await page.focus('#train-moment');
      for (let i = 0; i < moments.length + 2; i += 1) await page.keyboard.press('ArrowLeft');
      await until(page, () => window.multiheadPage.training().step === 0);
      assert.equal(await textOf(page, '.train-place'), `Step 0 of ${last}`);
      await eventually(async () => (await map()) !== end, 'the map of the first step');
      await page.keyboard.press('ArrowRight');
      await until(page, () => window.multiheadPage.training().step === 10);
      await page.click('#train-step');
      await until(page, () => window.multiheadPage.training().step === 11);
      assert.deepEqual((await trainingOf(page)).run.losses, run.losses);
      await close();
    },
  },
  {
    name: 'two runs lie over each other, settings are in the address, and Back brings them back',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url, '#layers=2&rate=0.02&chart=accuracy');
      assert.equal(await page.$$eval('.train-card', (list) => list.length), 8);
      const { run } = await trainFor(page, 25);
      assert.deepEqual(run.settings, { kind: 'fourJobs', seed: 12, heads: 4, layers: 2, rate: 0.02 });
      await page.$eval('#train-another-seed', (button) => button.click()); // the page may move under a pointer
      await until(page, () => window.multiheadPage.training().earlier?.settings.seed === 12);
      await until(page, () => location.hash.includes('seed=13'));
      await until(page, () => document.querySelectorAll('.chart-line').length === 3);
      assert.deepEqual((await trainingOf(page)).earlier.losses, run.losses);
      await page.select('#train-trainHeads', '2');
      await until(page, () => document.querySelectorAll('.train-card').length === 4);
      assert.match(await page.evaluate(() => location.hash), /trainHeads=2/);
      await page.evaluate(() => history.back());
      await until(page, () => document.querySelectorAll('.train-card').length === 8);
      await page.evaluate(() => history.back());
      await until(page, () => window.multiheadPage.training().curve.settings.seed === 12);
      assert.equal(await page.$eval('#train-seed', ({ value }) => value), '12');
      await page.click('.chart-key .link');
      await until(page, () => window.multiheadPage.training().earlier === undefined);
      // The card of the smaller model is shown again with one layer. It must not draw the two maps of the run before.
      await until(page, () => window.multiheadPage.training().smallerShown !== undefined);
      await page.select('#train-layers', '1');
      await until(page, () => document.querySelector('.train-beside')?.checkVisibility());
      await settled(page);
      // As many heads of another experiment have other jobs.
      for (const [train, jobs] of [
        ['fourJobs', 4],
        ['induction', 2],
      ]) {
        await page.evaluate((hash) => void (location.hash = hash), `#train=${train}&layers=2&trainHeads=2`);
        await until(page, `document.querySelectorAll('.train-layer:first-child .train-card .job-box').length === ${2 * jobs}`);
      }
      await close();
    },
  },
  {
    name: 'bad settings get a plain message, and the run stays',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      const { step, run } = await trainFor(page, 5);
      const enter = (field, text) =>
        page.$eval(
          field,
          (input, value) => {
            input.value = value;
            input.dispatchEvent(new Event('change'));
          },
          text,
        );
      for (const bad of ['0', 'NaN', '-1', '1e9', 'fast', '']) {
        await enter('#train-rate', bad);
        assert.match(await textOf(page, '#train-problem'), /The learning rate is a number from 0\.00001 to 1\./, bad);
      }
      for (const bad of ['-1', '1.5', '1e99', 'NaN']) {
        await enter('#train-seed', bad);
        assert.match(await textOf(page, '#train-problem'), /The seed is a whole number from 0 to 999999\./, bad);
      }
      const now = await trainingOf(page);
      assert.deepEqual([now.step, now.run.losses], [step, run.losses]);
      await page.evaluate(() => (location.hash = '#trainHeads=10000&rate=NaN&layers=0'));
      await until(page, () => !document.querySelector('#notice').hidden);
      assert.match(await textOf(page, '#notice'), /trainHeads, rate, layers/);
      assert.deepEqual((await trainingOf(page)).run.losses, run.losses);
      await page.click('#train-step');
      await until(page, () => window.multiheadPage.training().step > 0);
      await close();
    },
  },
  {
    name: 'a killed training worker is noticed, and another starts on demand',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      await page.click('#train-go');
      await until(page, () => window.multiheadPage.training().step > 5);
      const workers = page.workers().filter((worker) => worker.url().includes('training_worker'));
      assert.equal(workers.length, 2);
      for (const worker of workers) await worker.evaluate(() => self.close()).catch(() => undefined);
      await until(page, () => window.multiheadPage.training().status === 'lost', 20);
      assert.match(await textOf(page, '#train-failure'), /training is lost: its worker has ended/);
      await page.click('#train-anew');
      await until(page, () => window.multiheadPage.training().status === 'paused');
      assert.equal(await page.$eval('#train-failure', ({ hidden }) => hidden), true);
      assert.ok((await trainFor(page, 3)).step >= 3);
      await close();
    },
  },
  {
    name: 'a missing training worker gives a plain message',
    async run({ browser }) {
      const server = await startBrokenServer(async (folder, assets) => {
        for (const name of assets) if (name.startsWith('training_worker')) await rm(join(folder, 'assets', name));
      });
      const { page, close } = await openPage(browser, server.url);
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await page.waitForSelector('#train-failure:not([hidden])');
      assert.match(await textOf(page, '#train-failure'), /^A file of this page did not arrive\./);
      await close({ expected: /404|Failed to load resource|Loading Worker/ });
      await server.close();
    },
  },
  {
    name: 'training goes on while the window is resized and zoomed, and the page printed',
    thorough: true,
    async run({ browser, kind, url }) {
      const { page, close } = await openTraining(browser, url);
      await page.click('#train-go');
      const further = async (where) => {
        const { step } = await trainingOf(page);
        await until(page, `window.multiheadPage.training().step > ${step} || window.multiheadPage.training().status !== 'running'`);
        const seen = await page.evaluate(() => ({
          over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
          // Skip maps that are not on the screen, because they are drawn when scrolled to.
          wide: [...document.querySelectorAll('#train .map canvas, #train .chart-picture')].filter((picture) => {
            const { top, bottom, right } = picture.getBoundingClientRect();
            const room = picture.closest('.train-card, .train-beside, .train-run').getBoundingClientRect();
            return bottom > 0 && top < innerHeight && right > room.right + 1;
          }).length,
        }));
        assert.deepEqual([seen.over <= 0, seen.wide], [true, 0], `${where}: ${JSON.stringify(seen)}`);
      };
      for (const [width, zoom] of [
        [320, 4],
        [1280, 1],
        [768, 2],
        [360, 1],
      ]) {
        await resize(page, { width, height: 700, deviceScaleFactor: zoom });
        await page.evaluate(() => document.querySelector('.train-card').scrollIntoView());
        await further(`${width} px, zoom ${zoom}`);
      }
      if (kind === 'chromium') {
        await page.emulateMediaType('print');
        await further('on paper');
        await page.emulateMediaType();
        await page.pdf({ format: 'A4' });
      } else await page.evaluate(() => ['beforeprint', 'afterprint'].forEach((name) => dispatchEvent(new Event(name))));
      await further('after printing');
      assert.equal((await trainingOf(page)).message, '');
      await close();
    },
  },
  {
    name: 'a page that is hidden for long stops training',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      await page.click('#train-go');
      await until(page, () => window.multiheadPage.training().step > 5);
      await page.evaluate(() => {
        const wait = window.setTimeout;
        window.setTimeout = (run, delay) => wait(run, delay === 20_000 ? 50 : delay);
        Object.defineProperty(document, 'hidden', { get: () => true });
        document.dispatchEvent(new Event('visibilitychange'));
      });
      await until(page, () => window.multiheadPage.training().status === 'paused');
      assert.ok((await trainingOf(page)).step < 600);
      await close();
    },
  },
  {
    name: 'before a model is there, its cells have no numbers, and paper has no training',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      assert.deepEqual(await page.$$eval('#train .job-box', (list) => [...new Set(list.map(({ textContent }) => textContent))]), ['–']);
      if (page.emulateMediaType) {
        await page.emulateMediaType('print').catch(() => undefined);
        const [paper, shown] = await page.evaluate(() => [matchMedia('print').matches, document.querySelector('#train').checkVisibility()]);
        assert.equal(shown, !paper);
        await page.emulateMediaType(null).catch(() => undefined);
      }
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await until(page, () => /^0\.\d\d$/.test(document.querySelector('#train .job-box').textContent));
      await close();
    },
  },
  {
    name: 'heads that are dropped leave nothing behind, however often their number changes',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      const session = await page.createCDPSession();
      await session.send('Performance.enable');
      const counts = async () => {
        await settled(page);
        await session.send('HeapProfiler.collectGarbage');
        const { metrics } = await session.send('Performance.getMetrics');
        return ['Nodes', 'JSEventListeners'].map((wanted) => metrics.find(({ name }) => name === wanted).value);
      };
      const rounds = async (count) => {
        for (let round = 0; round < count; round += 1) {
          for (const heads of ['1', '4']) {
            await page.select('#train-trainHeads', heads);
            await until(page, `document.querySelectorAll('.train-card').length === ${heads}`);
          }
          await page.click('#train-another-seed');
          await until(page, () => window.multiheadPage.training().status === 'paused');
        }
      };
      await rounds(2);
      const before = await counts();
      await rounds(6);
      const after = await counts();
      // A card has some 100 nodes, and a map 6 listeners.
      after.forEach((count, i) => assert.ok(count - before[i] < 150, `${before} then ${after}`));
      await close();
      return `${before} then ${after} nodes and listeners`;
    },
  },
  {
    name: 'rounds of edit, train, reset leave no memory behind',
    thorough: true,
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url, '#train=induction');
      // The memory below is the workers'. Scroll to a place without maps, so that nothing is drawn meanwhile.
      await page.evaluate(() => document.querySelector('#use-it').scrollIntoView());
      const rounds = 100;
      const round = (index) =>
        page.evaluate(async (number) => {
          const { training } = window.multiheadPage;
          const holds = async (condition) => {
            while (!condition()) await new Promise((resolve) => setTimeout(resolve, 2));
          };
          const field = document.querySelector('#sentence');
          field.value = Array.from({ length: 2 + (number % 20) }, (_, i) => `w${i}`).join(' ');
          field.dispatchEvent(new Event('input'));
          document.querySelector('#train-step').click();
          await holds(() => training().step === 1 && training().smallerRun.losses.length === 1);
          if (number % 2 === 0) document.querySelector('#train-anew').click();
          else {
            const input = document.querySelector('#train-seed');
            input.value = String(number);
            input.dispatchEvent(new Event('change'));
          }
          await holds(() => training().step === 0 && training().smallerRun.losses.length === 0);
          await holds(() => window.multiheadPage.snapshot().tokens.join(' ') === field.value);
        }, index);
      await round(1000);
      await round(1001);
      const counted = async () => {
        await until(page, () => window.multiheadPage.training().memory.smallerRun !== undefined);
        const { memory } = await trainingOf(page);
        return [memory.main, memory.smallerRun].map(({ live, bytes }) => ({ live, bytes }));
      };
      const before = await counted();
      for (let index = 0; index < rounds; index += 1) await round(index);
      assert.deepEqual(await counted(), before);
      const heap = (await trainingOf(page)).memory.main.heap;
      await close();
      return `${rounds} rounds, ${before[0].live} objects, ${before[0].bytes} bytes, heap ${heap} bytes`;
    },
  },
];
