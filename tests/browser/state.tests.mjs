// The state of the page: in the address, in the browser's history, and one selection for all sections.

import assert from 'node:assert/strict';
import { openPage, settled, snapshot, toggle, typeSentence, until } from './harness.mjs';

const hashOf = (page) => page.evaluate(() => location.hash);
const noticeOf = (page) =>
  page.$eval('#notice', ({ hidden, textContent }) => (hidden ? null : textContent));
const textIn = (page) => page.$eval('#sentence', (field) => field.value);
const selectedStep = (page) => page.$eval('.step[aria-selected=true]', ({ id }) => id);
const chosenToken = async (page) => {
  await settled(page);
  return page.$$eval('.token', (list) => list.findIndex((token) => token.ariaPressed === 'true'));
};

/** Back or Forward, as by the browser's buttons. */
async function go(page, by) {
  await page.evaluate(
    (steps) =>
      new Promise((done) => {
        addEventListener('popstate', () => done(), { once: true });
        history.go(steps);
      }),
    by,
  );
  await settled(page);
}

export const tests = [
  {
    name: 'the state in the address comes back in a fresh page',
    async run({ browser, url }) {
      const first = await openPage(browser, url);
      await typeSentence(first.page, 'Über 100% & more?');
      await toggle(first.page, '#causal');
      await toggle(first.page, '[value=itself]');
      await first.page.click('#step-project');
      await first.page.click('#part-v');
      await first.page.click('#step-scores');
      await first.page.click('#show-head-3');
      await (await first.page.$$('.token'))[3].click();
      await first.page.$$eval('#gallery .segments button', (buttons) => buttons[1].click());
      await until(first.page, () => /query=4.*galleryView=numbers/.test(location.hash));
      const address = await first.page.evaluate(() => location.href);
      const before = await snapshot(first.page);
      await first.close();

      const second = await openPage(browser, address);
      const after = await snapshot(second.page);
      for (const field of ['tokens', 'heads', 'causal']) assert.deepEqual(after[field], before[field]);
      assert.deepEqual(after.trace.output.data, before.trace.output.data);
      assert.equal(await textIn(second.page), 'Über 100% & more?');
      assert.equal(await second.page.$eval('#causal', (box) => box.checked), true);
      assert.equal(await selectedStep(second.page), 'step-scores');
      assert.equal(await second.page.$eval('#show-head-3', (button) => button.ariaPressed), 'true');
      assert.equal(await chosenToken(second.page), 3);
      assert.equal((await second.page.$$('#gallery .cards table')).length, before.heads.length);
      assert.equal(await noticeOf(second.page), null);
      await second.page.click('#step-project');
      assert.equal(await second.page.$eval('#part-v', (button) => button.ariaPressed), 'true');
      await second.close();
    },
  },
  {
    name: 'a broken address gives defaults and a notice, which goes with its cause',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#heads=zzz&causal=maybe&step=%00&nonsense`);
      const { tokens, heads, causal } = await snapshot(page);
      assert.deepEqual([tokens.length, heads.length, causal], [8, 4, false]);
      assert.match(await noticeOf(page), /I could not read \(heads, causal, step, nonsense\)/);
      await page.evaluate(() => {
        location.hash = '#text=fixed+now';
      });
      await until(page, () => document.querySelector('#notice').hidden);
      await settled(page);
      assert.deepEqual((await snapshot(page)).tokens, ['fixed', 'now']);
      await page.evaluate(() => {
        location.hash = '#text=%E0%A4%A';
      });
      await until(page, () => !document.querySelector('#notice').hidden);
      await settled(page);
      assert.match(await noticeOf(page), /I could not read \(text\)/);
      assert.equal((await snapshot(page)).tokens.length, 8, 'the default sentence');
      assert.ok(!(await textIn(page)).includes('\uFFFD'), 'no broken character');
      await page.click('#step-x');
      assert.equal(await noticeOf(page), null, 'the address is whole again');
      assert.equal(await hashOf(page), '#step=x');
      await close();
    },
  },
  {
    name: 'Back takes back a step, a preset and a chosen word; typing is one entry; nothing typed is lost',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const first = await textIn(page);
      await typeSentence(page, 'my own words here');
      await page.click('#step-scores');
      await (await page.$$('.token'))[1].click();
      assert.equal(await chosenToken(page), 1);
      await (await page.$$('.preset'))[2].click();
      await settled(page);
      assert.notEqual(await textIn(page), 'my own words here');

      await go(page, -1);
      assert.equal(await textIn(page), 'my own words here');
      assert.equal(await chosenToken(page), 1);
      await go(page, -1);
      assert.equal(await chosenToken(page), 3, 'the word that the page chooses');
      assert.equal(await selectedStep(page), 'step-scores');
      await go(page, -1);
      assert.equal(await selectedStep(page), 'step-softmax');
      assert.equal(await textIn(page), 'my own words here');
      await go(page, -1);
      assert.equal(await textIn(page), first, 'the whole typing at once');
      await go(page, 4);
      assert.notEqual(await textIn(page), 'my own words here', 'the preset again');
      assert.match(await page.$eval('.preset', ({ textContent }) => textContent), /^Yours: my own words/);
      await page.click('.preset');
      assert.equal(await textIn(page), 'my own words here');
      await close();
    },
  },
  {
    name: 'undo and redo by buttons in the corner, which say what they changed, and by Ctrl+Z and Ctrl+Y outside of text fields',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const press = async (key) => {
        await page.keyboard.down('Control');
        await page.keyboard.press(key);
        await page.keyboard.up('Control');
      };
      const bar = () =>
        page.$eval('.undo-bar', (element) => {
          const { bottom, right, width } = element.getBoundingClientRect();
          const inside = bottom <= innerHeight && right <= innerWidth && width > 0;
          return { inside, said: element.querySelector('[role=status]').textContent };
        });
      assert.equal((await bar()).inside, false, 'nothing to undo yet');
      await page.click('#step-mask');
      await page.click('#step-x');
      assert.deepEqual(await bar(), { inside: true, said: '' });
      await page.click('#undo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Undone: step');
      assert.equal(await selectedStep(page), 'step-mask');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'undo', 'the focus stays');
      await page.click('#redo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Redone: step');
      assert.equal(await selectedStep(page), 'step-x');
      assert.equal(await page.$eval('#redo', (button) => button.ariaDisabled), 'true');
      await press('z');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-mask');
      await press('z');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-softmax');
      assert.equal(await hashOf(page), '');
      await press('y');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-mask');
      await (await page.$$('.preset'))[1].click();
      await settled(page);
      assert.equal((await bar()).said, '', 'a change is not an undo');
      await page.click('#undo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Undone: sentence, heads and chosen word');
      await close();
    },
  },
  {
    name: 'one selection: a chosen word or cell shows in the strip, the step map and the gallery',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const rowOf = (selector) =>
        page.$eval(selector, (mark) => (mark.hidden ? null : mark.style.transform));
      const before = await rowOf('#step-detail .map-mark-cell');
      await (await page.$$('.token'))[0].click();
      assert.notEqual(await rowOf('#step-detail .map-mark-cell'), before, 'the step map follows the strip');

      const cell = await page.$eval('#gallery .card:nth-child(2) [role=gridcell][aria-colindex="3"]', (element) => {
        element.scrollIntoView({ block: 'center' });
        const { left, top, width, height } = element.getBoundingClientRect();
        return { x: left + width / 2, y: top + height * 4.5 };
      });
      await page.mouse.click(cell.x, cell.y);
      await page.mouse.move(2, 2);
      assert.equal(await hashOf(page), '#query=5&key=3&head=2');
      assert.equal(await chosenToken(page), 4);
      await until(page, () => document.querySelector('#show-head-2').ariaPressed === 'true');
      assert.match(await page.$eval('.origin-pair', (line) => line.textContent), /^and → the₃/);
      const marked = await page.$$eval('#gallery .map-mark-cell', (marks) => marks.every(({ hidden }) => !hidden));
      assert.ok(marked, 'the choice stays marked in every head');
      await go(page, -1);
      assert.equal(await chosenToken(page), 0);
      await close();
    },
  },
];
