// Actions of a visitor: type, choose, point at cells, share the address.

import assert from 'node:assert/strict';
import { eventually, openPage, pictures, settled, snapshot, toggle, typeSentence, until } from './harness.mjs';

const presets = [
  'I saw the dog and the dog ran',
  'The bank by the river approved my loan',
  'the black cat sat on the mat',
  'He is playing football',
  'The cat that was sitting on the mat ate the fish',
  'The cat sat on the',
];

const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent);

export const tests = [
  {
    name: 'the tests notice an error, a warning and a rejected promise of a page',
    essential: true,
    async run({ browser, url }) {
      const { page, complaints, close } = await openPage(browser, `${url}#source=rules`);
      await page.evaluate(() => {
        console.warn('planted warning');
        setTimeout(() => {
          throw new Error('planted error');
        });
        void Promise.reject(new Error('planted rejection'));
      });
      for (const what of ['warning', 'error', 'rejection']) {
        await eventually(async () => {
          await page.evaluate(() => 0);
          return complaints.some((text) => text.includes(`planted ${what}`));
        }, `a planted ${what} is noticed`);
      }
      await close({ expected: /planted/ });
    },
  },
  {
    name: 'the page loads and shows heat maps',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
      const maps = await page.$$eval('#live-map .map canvas', (list) =>
        list.map((canvas) => {
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(data.buffer)).size;
        }),
      );
      assert.equal(maps.length, 4);
      for (const colors of maps) assert.ok(colors > 5, 'a map has more than one color');
      const shown = await page.evaluate(() => performance.getEntriesByName('numbers shown')[0].startTime);
      assert.match(await textOf(page, '.about summary'), /written by hand, not trained/);
      const [shares, said] = await page.evaluate(() => ['SharedArrayBuffer' in globalThis, document.querySelector('#status').textContent]);
      assert.match(
        said,
        shares ? /Workersshare memory, because the page is isolated/ : /Workersexchange messages, because this browser shares no memory/,
      );
      await close();
      return `first numbers after ${Math.round(shown)} ms`;
    },
  },
  {
    name: 'typing a sentence changes the maps',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const before = await pictures(page);
      await typeSentence(page, 'to be, or not to be');
      const { tokens } = await snapshot(page);
      assert.deepEqual(tokens, ['to', 'be', ',', 'or', 'not', 'to', 'be']);
      const after = await pictures(page);
      assert.equal(after.length, before.length);
      after.forEach((picture, i) => {
        assert.notEqual(picture, before[i]);
      });
      await typeSentence(page, ' ');
      assert.equal(await page.$eval('#gallery', (section) => section.hidden), true);
      assert.match(await textOf(page, '#sentence-notice'), /Type a word, or pick a sentence below/);
      await typeSentence(page, 'back again');
      assert.equal(await page.$eval('#gallery', (section) => section.hidden), false);
      await close();
    },
  },
  {
    name: 'presets set the sentence',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      assert.deepEqual(await page.$$eval('.preset:not([hidden])', (list) => list.map((button) => button.textContent)), presets);
      for (const [index, text] of presets.entries()) {
        await (await page.$$('.preset:not([hidden])'))[index].click();
        const { tokens } = await snapshot(page);
        assert.deepEqual(tokens, text.split(' '));
        assert.equal(await page.$eval('#sentence', (field) => field.value), text);
      }
      await close();
    },
  },
  {
    name: 'heads can be chosen, and the last one stays',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      await toggle(page, '[value=letter]');
      await toggle(page, '[value=first]');
      assert.deepEqual((await snapshot(page)).heads, ['previous', 'same', 'nearby', 'letter']);
      const titles = await page.$$eval('.share h3 .sr-only', (list) => list.map((title) => title.textContent));
      assert.deepEqual(titles, ['Head 1: ', 'Head 2: ', 'Head 3: ', 'Head 4: ']);
      for (const id of ['previous', 'same', 'nearby', 'letter']) await toggle(page, `[value=${id}]`);
      const { heads, trace } = await snapshot(page);
      assert.deepEqual(heads, ['letter']);
      assert.deepEqual(trace.weights.shape, [1, 1, 8, 8]);
      assert.equal(await page.$eval('[value=letter]', (box) => box.checked), true);
      await close();
    },
  },
  {
    name: 'more than 64 tokens are cut, with a notice',
    async run({ browser, url }) {
      const words = Array.from({ length: 70 }, (_, i) => `w${i}`).join('+');
      const { page, close } = await openPage(browser, `${url}#text=${words}`);
      assert.equal((await snapshot(page)).tokens.length, 64);
      assert.match(await textOf(page, '#sentence-notice'), /70 tokens: only the first 64 are used/);
      await close();
    },
  },
  ...[1280, 360].map((width) => ({
    name: `a very long word does not push the page sideways, ${width} px`,
    async run({ browser, url }) {
      const long = 'W'.repeat(1500);
      const address = `${url}#text=${long}+and+${'x'.repeat(400)}&${'y'.repeat(40)}`;
      const { page, close } = await openPage(browser, address, { width });
      assert.equal((await snapshot(page)).tokens[0], long);
      const check = async (where) => {
        await settled(page);
        const over = await page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.documentElement;
          return scrollWidth - clientWidth;
        });
        assert.ok(over <= 0, `${where}: the page is ${over} px too wide`);
      };
      for (let token = 0; token < 3; token += 1) {
        await (await page.$$('.token'))[token].click();
        await check(`token ${token + 1}`);
      }
      for (const step of ['x', 'project', 'scores', 'softmax']) {
        await page.click(`#step-${step}`);
        await check(step);
      }
      await page.focus('#step-detail [role=gridcell]');
      await until(page, () => document.querySelector('#gallery .readout').textContent.includes('→'));
      await check('a cell pointed at');
      for (const place of ['.token', '.strip-summary', '.origin-pair', '#gallery .readout']) {
        const whole = await page.$eval(`${place} .word`, ({ title, textContent }) => title === textContent && textContent.length);
        assert.ok(whole === 1500 || whole === 400, `${place} keeps the whole word`);
      }
      await page.$$eval('.segments button', (buttons) =>
        buttons.filter(({ textContent }) => textContent === 'Numbers').forEach((button) => button.click()),
      );
      await check('tables');
      const widest = await page.$$eval('.table-scroll th', (list) => Math.max(...list.map((cell) => cell.offsetWidth)));
      assert.ok(widest <= 240, `a column of ${widest} px`);
      await close();
    },
  })),
  {
    name: 'pointing at a cell shows it in every head',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const target = await page.$eval('#live-map .map-grid', (grid) => {
        grid.scrollIntoView({ block: 'center' });
        const { left, top, width, height } = grid.querySelector('[aria-colindex="3"]').getBoundingClientRect();
        return { x: left + width / 2, y: top + height * 4.5 };
      });
      await page.mouse.move(target.x, target.y);
      await until(page, () => document.querySelector('#gallery .readout').textContent.startsWith('and → the₃'));
      const { trace } = await snapshot(page);
      const readouts = await page.$$eval('#gallery .share:not(:last-child) .readout', (list) => list.map((line) => line.textContent));
      readouts.forEach((text, head) => {
        const value = trace.weights.data[head * 64 + 4 * 8 + 2].toFixed(3);
        assert.equal(text, `and → the₃${value}row sum 1.000`);
      });
      const marked = await page.$$eval('#live-map .map-mark-cell', (list) => list.filter((mark) => !mark.hidden).length);
      assert.equal(marked, 4, 'in four heads');
      await page.mouse.move(2, 2);
      await until(page, () => document.querySelector('#live-map .map-mark-cell').hidden);
      await close();
    },
  },
  {
    name: 'on a phone, by touch alone: an example, a word, a cell, a head, the next step, a switch, and undo',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { width: 360, height: 740, fresh: true });
      /** Touches an element at these shares of its width and height, and returns the hash of the address. */
      const touch = async (selector, across = 0.5, down = 0.5) => {
        const place = await page.$eval(
          selector,
          (element, dx, dy) => {
            element.scrollIntoView({ block: 'center' });
            const { left, top, width, height } = element.getBoundingClientRect();
            return [left + dx * width, top + dy * height];
          },
          across,
          down,
        );
        await page.touchscreen.tap(...place);
        await settled(page);
        return page.evaluate(() => location.hash);
      };
      assert.match(await touch('.preset::-p-text(The bank)'), /^#text=The\+bank.*&query=2$/);
      assert.match(await touch('.token:first-child'), /&query=1$/);
      const chosen = /&query=(\d)&key=(\d)/.exec(await touch('#live-map canvas', 0.7, 0.8));
      assert.ok(chosen, 'a cell of the map');
      assert.equal(await page.$eval('.token[aria-pressed=true]', (token) => [...token.parentElement.children].indexOf(token) + 1), Number(chosen[1]));
      assert.match(await touch('.strip-head:nth-child(3)'), /&head=3$/);
      assert.match(await touch('.step-buttons .secondary:nth-last-child(2)'), /&step=project$/);
      assert.match(await touch('#live-map .live-card:nth-child(2) canvas', 0.8, 0.8), /&head=2&/);
      const { trace } = await snapshot(page);
      const { query, key } = Object.fromEntries(new URLSearchParams(await page.evaluate(() => location.hash.slice(1))));
      const value = trace.weights.data[64 + (query - 1) * 8 + Number(key) - 1].toFixed(3);
      assert.match(await textOf(page, '#gallery .share:nth-child(2) .readout'), new RegExp(`${value}row sum`), 'the number of the cell touched');
      const before = await page.evaluate(() => location.hash);
      await touch('.more summary');
      assert.match(await touch('#causal + .switch-track'), /&causal=1&/);
      await touch('#undo');
      await until(page, () => !location.hash.includes('causal'));
      assert.equal(await page.evaluate(() => location.hash), before);
      await close();
    },
  },
  {
    name: 'the token strip tells what a word looks at',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      await (await page.$$('.token'))[3].hover();
      await until(page, () => document.querySelector('.strip-looks').textContent === 'dog₄ looks at');
      const summary = await textOf(page, '.strip-heads');
      assert.match(summary, /head 1 the₃ 0\.99/);
      assert.match(summary, /head 2 I 1\.00/);
      assert.match(summary, /head 3 dog₇ 1\.00/);
      await close();
    },
  },
  {
    name: 'ten steps, each with formula, shape and matrix',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`);
      const { trace } = await snapshot(page);
      const order = ['x', 'q', 'qHeads', 'scores', 'scaledScores', 'maskedScores', 'weights', 'headsOut', 'merged', 'output'];
      await page.focus('[role=tab][aria-selected=true]');
      await page.keyboard.press('Home');
      await settled(page);
      for (const name of order) {
        const shape = await textOf(page, '.shape-line strong');
        assert.equal(shape, `(${trace[name].shape.join(', ')})`);
        assert.ok(await page.$eval('.formula math', (math) => math.getBoundingClientRect().width > 10));
        const grid = await page.$eval('#step-detail .map-grid', (element) => ({
          rows: Number(element.getAttribute('aria-rowcount')),
          cols: Number(element.getAttribute('aria-colcount')),
        }));
        assert.deepEqual([grid.rows, grid.cols], trace[name].shape.slice(-2));
        await page.keyboard.press('ArrowDown');
        await settled(page);
      }
      assert.equal(await page.$eval('[role=tab][aria-selected=true]', (tab) => tab.id), 'step-x', 'it goes round');
      await close();
    },
  },
];
