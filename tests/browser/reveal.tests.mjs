// "Split into heads": where the columns go, the wrong reshape, 7 heads, and the animation.

import assert from 'node:assert/strict';
import { openPage, settled, snapshot, until } from './harness.mjs';

const sentence = 'text=the+black+cat+sat+on+the+mat';

/** The labels of the cells in the active row of a block, as [head, token, column, number]. */
const rowOf = (page, block) =>
  page.$$eval(`#reveal .reveal-block:nth-child(${block}) [role=gridcell]`, (cells) =>
    cells.map((cell) => /^head (\d+), token (.+), column (\d+), (.+)$/.exec(cell.ariaLabel).slice(1)),
  );

const written = (value) =>
  value
    .toFixed(2)
    .replace(/^-0\.00$/, '0.00')
    .replace('-', '−');

const pictures = (page) => page.$$eval('#reveal .reveal-block canvas', (list) => list.map((canvas) => canvas.toDataURL()));

const shift = (page) => page.$eval('#reveal .reveal-block', (block) => Math.abs(new DOMMatrix(getComputedStyle(block).transform).e));

export const tests = [
  {
    name: 'the split gives each head its columns; the wrong reshape does not, and the page names its first wrong cell',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}`);
      const { trace, tokens } = await snapshot(page);
      const q = trace.q.data;
      for (let head = 0; head < 8; head += 1) {
        const row = await rowOf(page, head + 1);
        assert.deepEqual(
          row.map(([, , , value]) => value),
          [...q.subarray(head * 8, head * 8 + 8)].map(written),
        );
      }
      const before = await pictures(page);
      await page.$eval('#wrong-reshape', (box) => box.click());
      await settled(page);
      const after = await pictures(page);
      after.forEach((picture, head) => assert.notEqual(picture, before[head], `head ${head + 1} looks different`));
      for (let head = 0; head < 8; head += 1) {
        const start = head * tokens.length * 8;
        const row = await rowOf(page, head + 1);
        assert.deepEqual(
          row.map(([, , , value]) => value),
          [...q.subarray(start, start + 8)].map(written),
        );
      }
      const verdict = await page.$eval('.reveal-verdict', (line) => line.textContent);
      assert.match(verdict, /^First wrong cell: head 1, black.*, column 1\. It holds column 9 of the.*, which belongs to head 2/);
      await close();
    },
  },
  {
    name: 'a cell of a head names its place in memory, and the strides agree',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}&splitHeads=4`);
      const { trace, tokens } = await snapshot(page);
      await page.focus('#reveal .reveal-block:nth-child(3) [tabindex="0"]');
      for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight']) await page.keyboard.press(key);
      const index = 2 * 64 + 2 * 16 + 1;
      const line = await page.$eval('.reveal-address', (element) => element.textContent);
      const value = trace.q.data[index].toFixed(3).replace('-', '−');
      assert.match(
        line,
        new RegExp(
          `^Head 3, cat.*, column 2 is ${value}: column 34 of cat.*, the ${index + 1}(th|st|nd|rd) of ${tokens.length * 64} numbers in memory\\.$`,
        ),
      );
      const strides = await page.$$eval('.reveal-strides td', (list) => list.map((cell) => cell.textContent));
      assert.deepEqual(strides, ['+16', '+64', '+1', `+${tokens.length * 16}`, '+16', '+1']);
      await close();
    },
  },
  {
    name: '7 heads explain themselves, in the words of the package',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}`);
      const places = () =>
        page.$$eval('#reveal, #split-7, #split-apart, #wrong-reshape, .reveal, .reveal-memory', ([section, ...all]) => {
          const start = section.getBoundingClientRect().top;
          return all.map((each) => each.getBoundingClientRect()).map(({ left, top }) => [left, top - start].map(Math.round).join());
        });
      const before = await places();
      await page.click('#split-7');
      await settled(page);
      assert.deepEqual(await places(), before, 'nothing moves');
      const verdict = await page.$eval('.reveal-verdict', (line) => line.textContent);
      assert.match(verdict, /64 = 7 · 9 \+ 1: 1 column is left over/);
      assert.match(verdict, /numHeads = 7 does not divide embedDim = 64/);
      assert.equal((await page.$$('#reveal .reveal-block')).length, 8);
      assert.match(await page.$eval('#reveal .is-left [role=gridcell]', (cell) => cell.ariaLabel), /^left over/);
      assert.match(await page.$eval('.reveal-memory', (box) => box.innerText), /No steps in memory fit.*–/s);
      await page.click('#split-8');
      await page.click('#split-apart');
      await settled(page);
      assert.deepEqual(await places(), before, 'nothing moves');
      assert.match(await page.$eval('.reveal-verdict', (line) => line.textContent), /columns 1–8 of every word/);
      await close();
    },
  },
  {
    name: 'the parts slide apart, at once with reduced motion, and the address remembers',
    async run({ browser, url, kind }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}`);
      if (kind === 'chromium') {
        const moving = await page.evaluate(async () => {
          document.querySelector('#split-apart').click();
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          return [...document.querySelectorAll('#reveal .reveal-block')].filter((block) => block.getAnimations().length > 0).length;
        });
        assert.ok(moving >= 6, `${moving} blocks slide`);
        await page.click('#split-apart');
        await page.emulateMediaFeatures([{ name: 'prefers-reduced-motion', value: 'reduce' }]);
        await until(page, () => document.getAnimations().length === 0);
      }
      assert.ok((await shift(page)) > 20, 'together');
      await page.click('#split-apart');
      assert.equal(await shift(page), 0, 'apart');
      await until(page, () => location.hash.includes('splitApart=1'));
      await close();
    },
  },
];
