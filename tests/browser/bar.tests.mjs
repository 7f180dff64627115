// The bar that stays at the top: the sentence, the heads, the sections by name, and the addresses of the sections.

import assert from 'node:assert/strict';
import { eventually, openPage, setViewport, settled, snapshot, until } from './harness.mjs';

const topOf = (page, selector) => page.$eval(selector, (element) => element.getBoundingClientRect().top);
const inView = async (page, selector) => {
  const top = await topOf(page, selector);
  return top > -1 && top < 120;
};

export const tests = [
  {
    name: 'the bar shows the words and the heads once they have left the screen: a word is chosen, a head shown and muted',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      assert.equal(await page.$eval('.bar-sentence', ({ hidden }) => hidden), true, 'the words are on the screen');
      await page.$eval('#train', (section) => section.scrollIntoView());
      await until(page, () => document.querySelectorAll('.bar-word').length === 8);
      assert.ok(Math.abs(await topOf(page, '.top')) < 1, 'the bar stays');
      await (await page.$$('.bar-word'))[1].click();
      await until(page, () => /query=2/.test(location.hash));
      await (await page.$$('.bar-heads button'))[2].click();
      await until(page, () => /head=3/.test(location.hash));
      await page.click('#bar-mute');
      assert.deepEqual((await snapshot(page)).bend.muted, [2]);
      await until(page, () => document.querySelector('#bar-mute').textContent === 'Unmute 3');
      await page.click('#undo');
      await until(page, () => !location.hash.includes('muted'));
      // Again and again: after Undo the browser scrolls to where the entry was left, on a busy machine later than this.
      await until(page, () => {
        scrollTo(0, 0);
        return document.querySelector('.bar-sentence').hidden;
      });
      await close();
    },
  },
  {
    name: 'on a phone, the bar shows four whole heads beside Undo and Redo',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#step=scores`, { width: 360, height: 740 });
      await page.click('#step-mask');
      await page.evaluate(() => document.querySelector('#steps').scrollIntoView());
      await until(page, () => document.querySelectorAll('.bar-heads button').length === 4);
      const { end, heads } = await page.evaluate(() => ({
        end: document.querySelector('.bar-sentence').getBoundingClientRect().right,
        heads: [...document.querySelectorAll('.bar-heads button')].map((button) => button.getBoundingClientRect().right),
      }));
      assert.ok(await page.$eval('#undo', ({ offsetWidth }) => offsetWidth > 0), 'Undo is shown');
      assert.ok(
        heads.every((right) => right <= end + 0.5),
        `heads end at ${heads}, the bar's sentence at ${end}`,
      );
      await close();
    },
  },
  {
    name: 'the chosen word and the lists are whole in the bar at every width, and nothing moves when Undo becomes possible',
    skip: (kind) => kind === 'firefox' && 'the same page as in Chromium',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=The+dog+saw+the+internationalization+of+the+bank&query=5`);
      await page.evaluate(() => document.querySelector('#steps').scrollIntoView());
      await until(page, () => document.querySelectorAll('.bar-word').length === 8);
      await settled(page);
      const places = () =>
        page.$$eval('.top :is(.brand, .bar-words, .bar-heads, #bar-mute, select, .undo-bar, .icon-button)', (all) =>
          all
            .map((each) => each.getBoundingClientRect())
            .map(({ left, right }) => [left, right].map(Math.round))
            .filter(([left, right]) => right > left),
        );
      const before = await places();
      await page.$$eval('.step-buttons button', (buttons) => buttons[1].click());
      await until(page, () => document.querySelector('#undo').ariaDisabled === 'false');
      assert.deepEqual(await places(), before);
      for (const width of [1720, 1440, 1280, 1024, 768, 360]) {
        await setViewport(page, { width, height: 800 });
        await settled(page);
        const all = await places();
        assert.ok(all.every(([left], i) => left >= (i > 0 ? all[i - 1][1] : 0)) && all.at(-1)[1] <= width, `${width} px: ${all.join(' | ')}`);
        const [row, word] = await page.$$eval('.bar-words, .bar-word[aria-pressed=true]', (both) =>
          both.map((each) => each.getBoundingClientRect()).map(({ left, right }) => [left, right]),
        );
        assert.ok(word[0] >= row[0] && word[1] <= row[1], `${width} px: the word at ${word}, the row at ${row}`);
      }
      await close();
    },
  },
  {
    name: 'sections have addresses: a link leads to its section, and a copied link to the section in view',
    async run({ browser, url }) {
      // The section "Speed" is the shortest: the next one is on the screen, too.
      for (const [hash, id, name, height] of [
        ['#train', 'train', 'Train', 900],
        ['#causal=1&at=own', 'own', 'Your model', 900],
        ['#speed', 'speed', 'Speed', 900],
        ['#speed', 'speed', 'Speed', 800],
      ]) {
        const { page, close } = await openPage(browser, url + hash, { height });
        await eventually(async () => {
          const current = await page.evaluate(async () => {
            await window.multiheadPage.settled();
            return document.querySelector('.places a[aria-current]')?.textContent;
          });
          return current === name;
        }, `${hash} marks ${name} in the bar`);
        assert.ok(await inView(page, `#${id}`), `${hash} leads to ${id}, at ${await topOf(page, `#${id}`)}`);
        assert.equal(await page.$eval('#notice', ({ hidden }) => hidden), true, 'the whole address is understood');
        await close();
      }
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      await page.$eval('.places a[href="#gallery"]', (link) => link.click());
      await until(page, () => document.querySelector('.places a[aria-current]').textContent === 'Heads');
      assert.ok(await inView(page, '#gallery'));
      const copied = await page.evaluate(async () => {
        const texts = [];
        const write = (text) => (texts.push(text), Promise.resolve());
        Object.defineProperty(navigator, 'clipboard', { configurable: true, value: { writeText: write } });
        [...document.querySelectorAll('#use-it button')].find(({ textContent }) => textContent === 'Copy a link to this view').click();
        return texts[0];
      });
      assert.equal(copied, `${url}#source=rules&at=gallery`);
      await close();
    },
  },
];
