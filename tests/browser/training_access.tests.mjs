// "Train live" and "Generate" by keyboard alone, for screen readers, on narrow screens, and with reduced motion.

import assert from 'node:assert/strict';
import { seriousFindings } from './axe.mjs';
import { eventually, until } from './harness.mjs';
import { openTraining, trainFor, trainingOf } from './training_steps.mjs';

const findings = (page) => seriousFindings(page, '#train', '#generate');

/** Presses Tab until an element that matches `selector` has the focus. */
async function tabTo(page, selector, most = 60) {
  for (let i = 0; i < most; i += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate((wanted) => document.activeElement.matches(wanted), selector)) return;
  }
  assert.fail(`${selector} cannot be reached with Tab`);
}

/** Presses Shift and Tab until the first element that matches `selector` has the focus. */
async function tabBackTo(page, selector) {
  await page.keyboard.down('Shift');
  const reached = async () => {
    await page.keyboard.press('Tab');
    return page.evaluate((wanted) => document.activeElement === document.querySelector(wanted), selector);
  };
  let found = false;
  for (let i = 0; i < 60 && !found; i += 1) found = await reached();
  await page.keyboard.up('Shift');
  assert.ok(found, `${selector} cannot be reached with Shift and Tab`);
}

const cases = ['light', 'dark'].flatMap((scheme) => [320, 360, 1280].map((width) => ({ scheme, width })));

const partsOf = {
  task: '#train .train-line',
  buttons: '#train > .run-box button',
  'four maps with their numbers': '.train-card :is(.head-button, .map-stage, .job-box)',
  loss: '#train .chart',
};
const screens = [
  { width: 1280, height: 800, wanted: ['task', 'buttons', 'four maps with their numbers', 'loss'] },
  { width: 360, height: 740, wanted: ['buttons', 'four maps with their numbers'] },
];

export const tests = [
  ...cases.map(({ scheme, width }) => ({
    name: `training and generation: axe-core finds nothing serious, nothing scrolls sideways, ${scheme}, ${width} px`,
    thorough: (width === 360) !== (scheme === 'light'),
    async run({ browser, url }) {
      const hash = width === 320 ? '#train=induction' : '';
      const { page, close } = await openTraining(browser, url, hash, { width, height: 900, scheme });
      assert.deepEqual(await findings(page), [], 'before the training');
      await trainFor(page, 25);
      await page.click('.head-button');
      await until(page, () => window.multiheadPage.training().muting !== undefined);
      if (hash) {
        await page.click('#generate-one');
        await until(page, () => document.querySelectorAll('.generated > li').length > 0);
      }
      assert.deepEqual(await findings(page), [], 'with a muted head');
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(wide <= 0, `the page is ${wide} px too wide`);
      await page.evaluate(() => {
        for (const button of document.querySelectorAll('#train .segments button')) {
          if (['Numbers', 'Right answers'].includes(button.textContent)) button.click();
        }
      });
      assert.deepEqual(await findings(page), [], 'as numbers');
      await close();
    },
  })),
  ...screens.map(({ width, height, wanted }) => ({
    name: `training: ${wanted.join(', ')} are on one screen of ${width} × ${height} before and after steps`,
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url, '#train', { width, height });
      const outside = () =>
        page.evaluate(
          (selectors) => {
            // On a phone the buttons cover the lower end of the screen.
            const box = document.querySelector('#train > .run-box');
            const covers = getComputedStyle(box).position === 'sticky';
            const end = covers ? box.getBoundingClientRect().top : innerHeight;
            const bar = document.querySelector('header').getBoundingClientRect().bottom;
            const isOutside = (element) => {
              const { top, bottom } = element.getBoundingClientRect();
              return box.contains(element) ? bottom > innerHeight : top < bar || bottom > end;
            };
            return selectors.flatMap((selector) => {
              const found = [...document.querySelectorAll(selector)].filter((element) => element.getClientRects().length > 0);
              return found.length > 0 && !found.some(isOutside) ? [] : [selector];
            });
          },
          wanted.map((name) => partsOf[name]),
        );
      await until(page, () => document.querySelector('.train-card canvas, .train-card svg') !== null);
      assert.deepEqual(await outside(), [], 'before the training');
      await trainFor(page, 25);
      assert.deepEqual(await outside(), [], 'after 25 steps');
      await close();
    },
  })),
  {
    name: 'training, going back, muting and generating with the keyboard alone',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      await page.focus('#gallery button');
      await tabTo(page, '#train-fourJobs', 200);
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      await until(page, () => window.multiheadPage.training().curve.settings.kind === 'induction');
      await tabTo(page, '#train-go');
      await page.keyboard.press('Enter');
      await until(page, () => window.multiheadPage.training().step > 12);
      await page.keyboard.press(' ');
      await until(page, () => window.multiheadPage.training().measured !== undefined);
      assert.equal(await page.evaluate(() => document.activeElement.id), 'train-go', 'the focus stays');
      await tabTo(page, '#train-moment');
      await page.keyboard.press('Home');
      await until(page, () => window.multiheadPage.training().step === 0);
      await tabBackTo(page, '.head-button');
      await page.keyboard.press('Enter');
      await until(page, () => window.multiheadPage.training().muting !== undefined);
      assert.deepEqual((await trainingOf(page)).muted, [0]);
      await until(page, () => /^Without head 1: /.test(document.querySelector('.run-buttons').lastElementChild.textContent));
      await tabTo(page, '#train-unmute');
      await page.keyboard.press('Enter');
      await until(page, () => window.multiheadPage.training().muted.length === 0);
      const { muter, top } = await page.evaluate(() => ({
        muter: document.activeElement.classList.contains('head-button'),
        top: document.activeElement.getBoundingClientRect().top,
      }));
      assert.ok(muter, 'the focus returns to the badge that muted the head');
      assert.ok(top >= 0 && top < 900, `it is on the screen, at ${top}`);
      await tabTo(page, '#generate-one');
      await page.keyboard.press('Enter');
      await until(page, () => document.querySelectorAll('.generated > li').length > 0);
      await close();
    },
  },
  {
    name: 'maps of heads in training have cells with names, and say when a head is muted',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      await trainFor(page, 3);
      await (await page.$('#train [role=gridcell][tabindex="0"]')).focus();
      await page.keyboard.press('ArrowDown');
      const label = () => page.evaluate(() => document.activeElement.getAttribute('aria-label'));
      assert.match(await label(), /^head 1, query . at 2, key . at 1, [01]\.\d\d$/);
      await page.keyboard.press('ArrowUp');
      await page.keyboard.press('ArrowRight');
      assert.match(await label(), /^head 1, query . at 1, key . at 2, masked, 0$/);
      await page.click('.head-button');
      await until(page, () => window.multiheadPage.training().muting !== undefined);
      await (await page.$('#train [role=gridcell][tabindex="0"]')).focus();
      assert.match(await label(), /muted$/);
      await close();
    },
  },
  {
    name: 'a pair chosen in a map of training stays in view in every head, follows the training, and Back lets it go',
    async run({ browser, url }) {
      const { page, close } = await openTraining(browser, url);
      await page.focus('#train [role=gridcell][tabindex="0"]');
      for (const key of ['ArrowDown', 'Enter']) await page.keyboard.press(key);
      await until(page, () => /trainQuery=2&trainKey=1/.test(location.hash));
      await page.evaluate(() => document.activeElement.blur());
      const seen = () =>
        page.evaluate(() => ({
          marks: [...document.querySelectorAll('#train .map-mark-cell')].filter(({ hidden }) => !hidden).length,
          readout: document.querySelector('.train-heads .readout').textContent,
        }));
      await eventually(async () => (await seen()).marks === 5, 'marks in four heads and in the model with one, which starts later');
      const before = await seen();
      assert.match(before.readout, /^query . at 2, key . at 1(\d\d\.\d\d){4}$/);
      await trainFor(page, 30);
      const after = await seen();
      assert.equal(after.marks, 5);
      assert.notEqual(after.readout, before.readout, 'the weights of the step shown');
      await page.evaluate(() => history.back());
      await until(page, () => document.querySelector('.train-heads .readout').textContent.trim() === '');
      assert.equal((await seen()).marks, 0);
      await close();
    },
  },
  {
    name: 'with reduced motion a generation shows its end at once',
    async run({ browser, kind, url }) {
      const { page, close } = await openTraining(browser, url, '#train=induction');
      if (kind === 'chromium') {
        await page.emulateMediaFeatures([{ name: 'prefers-reduced-motion', value: 'reduce' }]);
      }
      const lengths = await page.evaluate(async () => {
        const list = document.querySelector('.generated');
        const seen = new Set();
        const observer = new MutationObserver(() => seen.add(list.childElementCount));
        observer.observe(list, { childList: true });
        document.querySelector('#generate-go').click();
        while (list.childElementCount < 48) await new Promise((resolve) => setTimeout(resolve, 20));
        return [...seen];
      });
      assert.deepEqual(lengths, [48]);
      await close();
    },
  },
];
