// "Step through": every step in the same place, the operation behind a number, and the final text.

import assert from 'node:assert/strict';
import { eventually, openPage, settled, snapshot, toggle, until } from './harness.mjs';
import { large } from './maps.tests.mjs';
import { countWork } from './work.mjs';

const ids = ['x', 'project', 'split', 'scores', 'scale', 'mask', 'softmax', 'values', 'merge', 'output'];
const selected = (page) => page.$eval('.step[aria-selected=true]', ({ id }) => id);
const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent);
/** The visible text of the detail: hidden layers do not count. */
const seen = (page) => page.$eval('#step-detail', (element) => element.innerText);

export const tests = [
  ...[1280, 1024, 768, 360].map((width) => ({
    name: `the panel and the Next button stay where they are from step to step, and no explanation is cut, ${width} px`,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`, { width });
      const measure = () =>
        page.evaluate(() => {
          const section = document.querySelector('#steps').getBoundingClientRect();
          const next = [...document.querySelectorAll('.secondary')][1].getBoundingClientRect();
          const detail = document.querySelector('#step-detail').getBoundingClientRect();
          const number = document.querySelector('.origin').getBoundingClientRect();
          // On a phone the buttons stay on the screen, and a short step has a short panel.
          const phone = [next.top, number.top - section.top];
          return [next.left, ...(innerWidth < 641 ? phone : [next.top - section.top, section.height, detail.height])].map(Math.round);
        });
      const cut = () => page.$eval('.origin', (box) => box.scrollHeight - box.clientHeight);
      const heights = [];
      for (const view of [0, 1]) {
        await page.$$eval(
          '#step-detail .segments button',
          (list, wanted) => {
            list.filter(({ textContent }) => ['Colors', 'Numbers'].includes(textContent))[wanted].click();
          },
          view,
        );
        const places = [];
        for (const id of ids) {
          await page.$eval(`#step-${id}`, (tab) => tab.click());
          await settled(page);
          await page.$eval('#steps', (section) => section.scrollIntoView());
          places.push(await measure());
          heights.push(await page.$eval('#step-detail', ({ offsetHeight }) => offsetHeight));
          assert.equal(await cut(), 0, `pixels of the explanation below its box, ${id}`);
        }
        for (const place of places) assert.deepEqual(place, places[0]);
      }
      if (width < 641)
        assert.ok(heights[0] < heights[6] - 200, `the first step leaves no room blank that softmax needs: ${heights[0]} and ${heights[6]} px`);
      await close();
    },
  })),
  {
    name: 'Next, Back, arrow keys and the slider walk through the steps; the last Next keeps the focus',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#step=x`);
      await page.evaluate(() => document.querySelectorAll('.secondary')[1].focus());
      for (const id of ids) {
        assert.equal(await selected(page), `step-${id}`);
        await page.keyboard.press('Enter');
      }
      await page.keyboard.press('Enter');
      assert.equal(await selected(page), 'step-output');
      const next = await page.evaluate(() => [document.activeElement.textContent, document.activeElement.ariaDisabled]);
      assert.deepEqual(next, ['Next →', 'true']);
      await page.focus('.step-slider');
      await page.keyboard.press('ArrowLeft');
      assert.equal(await selected(page), 'step-merge');
      assert.match(await page.$eval('.step-slider', (slider) => slider.getAttribute('aria-valuetext')), /^9 of 10: /);
      await page.keyboard.press('Home');
      assert.equal(await selected(page), 'step-x');
      assert.equal(await page.$$eval('.secondary', ([back]) => back.ariaDisabled), 'true');
      await page.focus('.step[aria-selected=true]');
      await page.keyboard.press('ArrowRight');
      assert.equal(await selected(page), 'step-project');
      await close();
    },
  },
  {
    name: 'Play walks through the steps, and the operands move; another choice stops it',
    async run({ browser, url, kind }) {
      const { page, close } = await openPage(browser, `${url}#step=split`);
      await page.click('#step-play');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-scores');
      if (kind === 'chromium') {
        const moving = await page.evaluate(() => document.querySelector('.origin').getAnimations({ subtree: true }).length);
        assert.ok(moving > 0, 'the operands meet');
      }
      await page.click('#step-x');
      await until(page, () => document.querySelector('#step-play').textContent === 'Play');
      await close();
    },
  },
  {
    name: 'Next shows how a step works: a number drops into its cell, weighted values pile up, and the heads slide together',
    async run({ browser, url }) {
      const still = await openPage(browser, `${url}#step=mask`, {
        prepare: (page) => page.emulateMediaFeatures([{ name: 'prefers-reduced-motion', value: 'reduce' }]),
      });
      await still.page.click('#step-merge');
      await settled(still.page);
      assert.equal(await still.page.$('.flying, .map-slice'), null, 'nothing moves');
      await still.close();

      const { page, close } = await openPage(browser, `${url}#step=mask`);
      // Everything that is added for a movement is counted when it is added: it is gone within a second.
      await page.evaluate(() => {
        globalThis.moved = { numbers: 0, strips: 0, heads: 0 };
        new MutationObserver((changes) => {
          for (const node of changes.flatMap(({ addedNodes }) => [...addedNodes])) {
            if (!node.matches?.('.flying, .map-slice')) continue;
            globalThis.moved[node.matches('.map-slice') ? 'heads' : node.matches('canvas') ? 'strips' : 'numbers'] += 1;
          }
        }).observe(document.querySelector('#steps'), { childList: true, subtree: true });
      });
      /** Goes to the next step, and returns what moved once all of it is gone. */
      const next = async (id) => {
        await page.evaluate(() => Object.assign(globalThis.moved, { numbers: 0, strips: 0, heads: 0 }));
        await page.evaluate(() => [...document.querySelectorAll('#steps button')].find(({ textContent }) => textContent.startsWith('Next')).click());
        await eventually(async () => (await selected(page)) === id);
        await until(page, () => globalThis.moved.numbers > 0);
        await until(page, () => !document.querySelector('.flying, .map-slice'));
        return page.evaluate(() => ({ ...globalThis.moved }));
      };
      // The number of the step before becomes an operand, and the result drops into its cell.
      assert.deepEqual(await next('step-softmax'), { numbers: 2, strips: 0, heads: 0 });
      const mixed = await next('step-values');
      assert.ok(mixed.strips > 0, 'the weighted values move to their sum');
      assert.deepEqual(await next('step-merge'), { numbers: 2, strips: 0, heads: 4 });
      assert.equal(await page.$eval('.step-picture canvas', (canvas) => getComputedStyle(canvas).clipPath), 'none');
      await close();
    },
  },
  {
    name: 'a score is shown as query, key and product; all terms open and add up',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#step=scores&query=7&key=3&head=3`);
      const { trace } = await snapshot(page);
      const score = trace.scores.data[(2 * 8 + 6) * 8 + 2];
      await until(page, () => document.querySelector('.origin-pair').textContent === 'dog₇ → the₃');
      assert.equal(Number((await textOf(page, '.origin-value')).replace('−', '-')).toFixed(2), score.toFixed(2));
      const labels = await page.$$eval('.origin .strip-label', (list) => list.map(({ textContent }) => textContent));
      assert.deepEqual(labels, ['query of dog₇', 'key of the₃', 'product']);
      for (const [step, count] of [
        ['scores', 16],
        ['project', 64],
        ['softmax', 8],
        ['values', 8],
        ['output', 64],
      ]) {
        await page.$eval(`#step-${step}`, (tab) => tab.click());
        await settled(page);
        await page.$eval('.origin details', (details) => {
          details.open = true;
        });
        await until(page, () => document.querySelector('.origin tfoot') !== null);
        const products = await page.$$eval('.origin tbody tr', (rows) =>
          rows.map((row) => Number(row.lastElementChild.textContent.replace('−', '-'))),
        );
        assert.equal(products.length, count, step);
        const sum = products.reduce((a, b) => a + b, 0);
        const total = Number((await textOf(page, '.origin tfoot td:last-child')).replace('−', '-'));
        assert.ok(Math.abs(sum - total) < 0.02, `${step}: the terms add up to ${sum}, not ${total}`);
        if (step !== 'softmax') {
          const shown = Number((await textOf(page, '.origin-value')).replace('−', '-'));
          assert.ok(Math.abs(total - shown) < 0.002, `${step}: ${total} and ${shown}`);
        }
      }
      await close();
    },
  },
  {
    name: 'the mask step shows −∞ only if something is hidden; heads and columns count from 1',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#step=mask&query=2&key=5`);
      assert.doesNotMatch(await seen(page), /∞/, 'nothing is hidden');
      assert.match(await seen(page), /This word may be looked at, so its score stays\./);
      await toggle(page, '#causal');
      assert.match(await seen(page), /dog₄|−∞/);
      assert.match(await seen(page), /comes after saw, so it is hidden: its score becomes −∞/);
      const label = await page.$eval('#step-detail [aria-colindex="2"]', (cell) => cell.ariaLabel);
      assert.equal(label, 'head 1, query I, key saw, masked, −∞');
      await page.click('#step-split');
      await page.click('#show-head-2');
      await settled(page);
      assert.match(await seen(page), /head 2 has columns 17 to 32/);
      assert.match(await page.$eval('.layer.is-current math', (math) => math.textContent), /^Head.h.has.the.columns.?dhead\(h−1\)\+1.to.dheadh$/);
      await page.click('#step-merge');
      await settled(page);
      assert.match(await seen(page), /Columns 1 to 16 come from head 1/);
      await close();
    },
  },
  {
    name: 'one number is followed from x to the output: each stop has its number, and the figure of each step begins with it',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#query=7&head=3`);
      const { trace } = await snapshot(page);
      const read = (text) => Number(text.replace('−', '-'));
      const stops = await page.$$eval('.step-value', (list) => list.map(({ textContent }) => textContent));
      const seen = [];
      for (const id of ids) {
        await page.$eval(`#step-${id}`, (tab) => tab.click());
        await settled(page);
        seen.push(await textOf(page, '.origin-value'));
        assert.ok((await textOf(page, '.origin-next')).startsWith('Next: '), id);
        const size = await page.$eval('.origin-value', (value) => parseFloat(getComputedStyle(value).fontSize));
        assert.ok(size >= 40, `${size} px`);
      }
      assert.deepEqual(seen, stops);
      // Without a chosen key, it is the key with the largest weight.
      const row = trace.weights.data.subarray((2 * 8 + 6) * 8, (2 * 8 + 7) * 8);
      assert.equal(read(stops[6]).toFixed(3), Math.max(...row).toFixed(3));
      assert.equal(stops[1], stops[2], 'the split moves no number');
      assert.ok(Math.abs(read(stops[4]) - read(stops[3]) / 4) < 0.002);
      // In the score, the number of the step before is the first operand.
      await page.$eval('#step-scores', (tab) => tab.click());
      await settled(page);
      assert.ok((await textOf(page, '.origin-first')).startsWith(`${read(stops[2]).toFixed(2).replace('-', '(−')}`));
      const lit = await page.$eval('.strip-lit', (frame) => frame.checkVisibility() && frame.offsetWidth > 4);
      assert.ok(lit, 'its product is framed');
      // The parts of the shared bar are the row.
      await page.$eval('#step-softmax', (tab) => tab.click());
      await settled(page);
      const widths = await page.$$eval('.origin .shared-bar > :not([hidden])', (list) => list.map(({ style }) => parseFloat(style.width) / 100));
      assert.deepEqual(
        widths.map((width) => width.toFixed(3)),
        [...row].filter((weight) => weight >= 0.002).map((weight) => weight.toFixed(3)),
      );
      await close();
    },
  },
  {
    name: 'one short sentence is announced for a step, a pair and a bend, and none while the visitor is at work in another section',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules&step=scores&query=2&key=5`, { fresh: true });
      await page.$eval('#steps', (section) => section.scrollIntoView());
      // Notes each change of a live region, which a screen reader speaks. Regions of other sections count, too.
      await page.evaluate(() => {
        window.heard = [];
        new MutationObserver((changes) => {
          for (const { target } of changes) {
            const region = (target.nodeType === 1 ? target : target.parentElement)?.closest('[role=status], [aria-live]:not([aria-live=off])');
            if (region) window.heard.push(region.textContent);
          }
        }).observe(document.body, { childList: true, characterData: true, subtree: true });
      });
      const hears = async (wanted) => {
        await until(page, () => window.heard.some((text) => text !== ''));
        await settled(page);
        assert.match((await page.evaluate(() => window.heard.splice(0))).filter(Boolean).join(' | '), wanted);
      };
      await page.focus('#step-scores');
      await page.keyboard.press('ArrowRight');
      await hears(/^Step 5, Scale: saw → and: \S+, \S+ divided by √16 = 4\.$/);
      await page.focus('#step-detail .map-cell[tabindex="0"]');
      await hears(/^I₁ → I₁: \S+, \S+ divided by √16 = 4\.$|^I → I: \S+, \S+ divided by √16 = 4\.$/);
      await page.keyboard.press('ArrowRight');
      await hears(/^I → saw: \S+, \S+ divided by √16 = 4\.$/);
      await page.keyboard.press('Enter');
      await page.$eval('#bend-divisor-none', (button) => button.click());
      await hears(/^Head 1’s entropy: \S+ → \S+ \d of 8 outputs changed(, these the most)?:$/);
      await page.focus('#sentence');
      await page.keyboard.type('!');
      await settled(page);
      await page.$eval('#step-x', (tab) => tab.click());
      await settled(page);
      assert.deepEqual(await page.evaluate(() => window.heard.filter(Boolean)), []);
      await close();
    },
  },
  {
    name: 'predict, then look: a guess is answered in one sentence, and the page shows the row',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#query=7`);
      await page.$eval('.guess', (box) => box.scrollIntoView({ block: 'center' }));
      const asked = await textOf(page, '.guess-question');
      const head = Number(/head (\d+)/.exec(asked)[1]);
      await page.focus('.guess-words button');
      await page.keyboard.press('Enter');
      await settled(page);
      const { trace, tokens } = await snapshot(page);
      const query = Number(/query=(\d)/.exec(await page.evaluate(() => location.hash))[1]) - 1;
      assert.notEqual(query, 6);
      const n = tokens.length;
      const row = [...trace.weights.data.subarray(((head - 1) * n + query) * n, ((head - 1) * n + query + 1) * n)];
      const best = Math.max(...row);
      const said = await textOf(page, '.guess [role=status]');
      assert.match(said, row[0] === best ? /^Right: / : /^Not I \(/);
      assert.ok(said.includes(`gets ${Math.round(100 * best)}\u00a0% from ${tokens[query]}`), said);
      assert.match(await page.evaluate(() => location.hash), new RegExp(`key=${row.indexOf(best) + 1}`));
      assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Another');
      await page.keyboard.press('Enter');
      await settled(page);
      assert.notEqual(await textOf(page, '.guess-question'), asked);
      assert.ok(await page.evaluate(() => document.activeElement.closest('.guess-words') !== null), 'the focus stays');
      await close();
    },
  },
  {
    name: 'it ends in words, from the real weights',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#query=7`);
      const { trace, tokens } = await snapshot(page);
      const n = tokens.length;
      const shares = tokens.map((_, key) => [0, 1, 2, 3].reduce((sum, head) => sum + trace.weights.data[(head * n + 6) * n + key], 0) / 4);
      const best = shares.indexOf(Math.max(...shares));
      const names = await page.$$eval('.token', (list) => list.map(({ textContent }) => textContent));
      const text = await textOf(page, '.carries');
      assert.ok(text.startsWith(`dog₇ is ${Math.round(100 * shares[best])}\u00a0% ${names[best]}`), text);
      const total = [...text.matchAll(/(\d+)\u00a0%/g)].reduce((sum, [, percent]) => sum + Number(percent), 0);
      assert.equal(total, 100);
      await close();
    },
  },
  {
    name: 'on a narrow screen a formula that scrolls can be scrolled by keyboard, and terms that are opened can be seen',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { width: 320 });
      const { over, tabIndex } = await page.$eval('.formula', (box) => ({
        over: box.scrollWidth > box.clientWidth,
        tabIndex: box.tabIndex,
      }));
      assert.ok(!over || tabIndex === 0, 'a scrolling formula can have the focus');
      for (const step of ['x', 'mask', 'scale']) {
        await page.click(`#step-${step}`);
        const places = await page.$eval('.formula', (box) => {
          const math = box.querySelector('.is-current math > *').getBoundingClientRect();
          return { left: math.left - box.getBoundingClientRect().left, over: math.width > box.clientWidth + 1, tabIndex: box.tabIndex };
        });
        assert.ok(Math.abs(places.left) < 2, `the formula of ${step} starts at ${places.left} px`);
        assert.ok(!places.over || places.tabIndex === 0, `the formula of ${step} can have the focus if it scrolls`);
      }
      await page.click('#step-softmax');
      await page.$eval('.origin details', (details) => (details.open = true));
      await until(page, () => document.querySelector('.origin tfoot') !== null);
      const seen = await page.$$eval('.origin tbody tr', (rows) => {
        const { bottom } = rows[0].closest('.origin').getBoundingClientRect();
        return rows.filter((row) => row.getBoundingClientRect().bottom <= bottom).length;
      });
      assert.ok(seen >= 4, `${seen} of 8 terms`);
      await close();
    },
  },
  {
    name: 'on a phone, the map of each step, its explanation and the buttons are on one screen',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { width: 360, height: 740 });
      for (const id of ids) {
        await page.$eval(`#step-${id}`, (tab) => tab.click());
        await settled(page);
        await page.$eval('#steps', (section) => section.scrollIntoView());
        await settled(page);
        const [bar, map, why, buttons] = await page.evaluate(() =>
          ['.top', '#step-detail canvas', '.origin-why', '.step-buttons'].map((selector) => {
            const { top, bottom } = document.querySelector(selector).getBoundingClientRect();
            return { top, bottom };
          }),
        );
        const places = [bar.bottom, map.top, map.bottom, why.top, why.bottom, buttons.top, buttons.bottom, 740].map(Math.round);
        assert.deepEqual(
          places,
          [...places].sort((a, b) => a - b),
          `step ${id}: bar, map, explanation, buttons, edge`,
        );
      }
      await close();
    },
  },
  {
    name: 'on a screen of 1280 × 800, the buttons, the text, the formula, the whole map and its explanation are in sight in each step',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url, { width: 1280, height: 800, fresh: true });
      for (const id of ids) {
        await page.$eval(`#step-${id}`, (tab) => tab.click());
        const outside = () =>
          page.evaluate(() => {
            document.querySelector('#steps').scrollIntoView();
            const bar = document.querySelector('.top').getBoundingClientRect().bottom;
            return ['.step-buttons', '.step-texts', '.formula-row', '#step-detail canvas', '.origin-next', '#step-detail .origin'].filter(
              (selector) => {
                const { top, bottom } = document.querySelector(selector).getBoundingClientRect();
                return top < bar || bottom > innerHeight;
              },
            );
          });
        // A figure may still move to its place.
        await eventually(async () => (await outside()).length === 0, `step ${id} is in sight`);
      }
      await close();
    },
  },
  {
    name: 'a pointer move paints no map, and changes little of the document, at 64 tokens and 8 heads',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url + large, { fresh: true });
      const work = await countWork(page);
      const seen = await moveOverAll(page, work);
      for (const { place, painted, changes } of seen) {
        assert.equal(painted, 0, `${place}: maps painted for a move`);
        assert.ok(changes <= 450, `${place}: ${changes} changes of the document for a move`);
      }
      await close();
      return seen.map(({ place, changes }) => `${place}: ${changes} changes`).join('; ');
    },
  },
];

/**
 * Moves the pointer over everything that follows it.
 * @returns the most work of one move, for each place
 */
export async function moveOverAll(page, work = async () => ({ painted: 0, changes: 0 })) {
  const seen = [];
  for (const place of ['#live-map canvas', '#step-detail canvas', '.strip-words']) {
    // A pointer that stays over the last place leaves it at some time after the scrolling, during a move to this place.
    await page.mouse.move(0, 0);
    await settled(page);
    const box = await page.$eval(place, (element) => {
      element.scrollIntoView({ block: 'center' });
      const { left, top, width, height } = element.getBoundingClientRect();
      return { left, top, width, height };
    });
    await settled(page);
    const most = { place, painted: 0, changes: 0 };
    for (let i = 1; i <= 6; i += 1) {
      const before = await work();
      await page.mouse.move(box.left + (box.width * i) / 8, box.top + (box.height * i) / 8);
      await settled(page);
      const after = await work();
      for (const what of ['painted', 'changes']) most[what] = Math.max(most[what], after[what] - before[what]);
    }
    seen.push(most);
  }
  return seen;
}
