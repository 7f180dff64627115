// The page used by keyboard only and without colors, and checked by axe-core.

import assert from 'node:assert/strict';
import { seriousFindings } from './axe.mjs';
import { eventually, openPage, setViewport, settled, snapshot, until } from './harness.mjs';
import { generationReady } from './training_steps.mjs';

const themes = ['light', 'dark'];
const widths = [
  { width: 360, height: 780 },
  { width: 1280, height: 900 },
];

const focused = (page) => page.evaluate(() => document.activeElement.getAttribute('aria-label'));

/**
 * Lists visible text and controls that are cut off or outside of the page, except elements that scroll or have their
 * whole text in a title.
 */
export const lost = (page) =>
  page.evaluate(() => {
    const scrolls = ({ overflowX }) => ['auto', 'scroll'].includes(overflowX);
    const inside = (element, test) => element !== null && (test(getComputedStyle(element)) || inside(element.parentElement, test));
    const found = [];
    for (const element of document.querySelectorAll('body *')) {
      const style = getComputedStyle(element);
      const box = element.getBoundingClientRect();
      const unseen = !element.checkVisibility({ visibilityProperty: true }) || box.width <= 1 || style.clipPath !== 'none';
      if (unseen || element.closest('.sr-only, svg, [aria-hidden=true]') || element.title) continue;
      const name = `${element.tagName} ${element.id || element.className} in ${element.closest('section')?.id}`;
      if ((box.right > innerWidth + 1 || box.left < -1) && !inside(element.parentElement, scrolls)) found.push(`${name} is beside the page`);
      // Skip maps, whose numbers are in a table, and labels for screen readers, which take no room.
      if (style.overflowX === 'visible' || scrolls(style) || element.closest('.map, .step, .strip-label')) continue;
      if (element.scrollWidth > element.clientWidth + 1) found.push(`${name} is cut: ${element.scrollWidth} > ${element.clientWidth} px`);
    }
    for (const cell of document.querySelectorAll('.table-scroll td')) {
      if (cell.scrollWidth > cell.clientWidth + 1) found.push(`a cell is cut: ${cell.textContent}`);
    }
    for (const control of document.querySelectorAll('main :is(button, input, select)')) {
      const { width, height } = control.getBoundingClientRect();
      const small = control.checkVisibility() && !control.closest('label') && (width < 24 || height < 24);
      if (small) found.push(`${control.id || control.className} is ${width} × ${height} px`);
    }
    return [...new Set(found)];
  });

export const tests = [
  {
    name: 'arrow keys move in a map, and cells have labels for screen readers',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=a+black+cat+sat+on+the+mat&causal=1`);
      const { trace, tokens } = await snapshot(page);
      const n = tokens.length;
      const label = (row, col) => {
        const value = trace.weights.data[(2 * n + row) * n + col];
        return `head 3, query ${tokens[row]}, key ${tokens[col]}, ${col > row ? 'masked, 0' : value.toFixed(2)}`;
      };
      const grids = await page.$$('#live-map [role=grid]');
      assert.equal(await grids[2].evaluate((grid) => grid.querySelectorAll('[tabindex="0"]').length), 1);
      await (await grids[2].$('[tabindex="0"]')).focus();
      let [row, col] = [0, 0];
      assert.equal(await focused(page), label(row, col));
      const moves = {
        ArrowRight: () => (col = Math.min(n - 1, col + 1)),
        ArrowLeft: () => (col = Math.max(0, col - 1)),
        ArrowDown: () => (row = Math.min(n - 1, row + 1)),
        ArrowUp: () => (row = Math.max(0, row - 1)),
        End: () => (col = n - 1),
        Home: () => (col = 0),
        PageDown: () => (row = Math.min(n - 1, row + 8)),
      };
      const walk = 'ArrowUp ArrowLeft ArrowDown ArrowDown ArrowRight ArrowUp End ArrowRight PageDown ArrowDown Home ArrowUp';
      for (const key of walk.split(' ')) {
        await page.keyboard.press(key);
        moves[key]();
        assert.equal(await focused(page), label(row, col), key);
        const place = await page.evaluate(() => [
          document.activeElement.parentElement.getAttribute('aria-rowindex'),
          document.activeElement.getAttribute('aria-colindex'),
        ]);
        assert.deepEqual(place.map(Number), [row + 1, col + 1]);
      }
      assert.match(await page.$eval('#gallery .readout', (line) => line.textContent), /row sum 1\.000/);
      await close();
    },
  },
  {
    name: 'every control can be reached by keyboard',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
      const reached = new Set();
      for (let i = 0; i < 90; i += 1) {
        await page.keyboard.press('Tab');
        const name = await page.evaluate(() => {
          const now = document.activeElement;
          if (now === document.body) return '';
          const role = now.getAttribute('role') ?? now.tagName.toLowerCase();
          return `${role} ${now.id || now.value || now.className}`;
        });
        reached.add(name.trim());
        if (await page.evaluate(() => document.activeElement.matches('.more summary'))) await page.keyboard.press('Enter');
        if (name === 'switch causal') {
          await page.keyboard.press(' ');
          await until(page, () => document.querySelector('#causal').checked);
        }
        if (name === '') break;
      }
      for (const wanted of [
        'textarea sentence',
        'button preset',
        'button token',
        'input previous',
        'switch causal',
        'tab step-x',
        'button show-head-1',
        'button secondary',
        'gridcell map-cell',
        'button icon-button',
      ]) {
        assert.ok(reached.has(wanted), `${wanted} among ${[...reached].join('; ')}`);
      }
      assert.equal((await snapshot(page)).causal, true);
      const named = await page.$eval('#causal', (box) => box.labels[0].textContent);
      assert.equal(named, 'Causal each word sees only itself and earlier words, as in GPT');
      await close();
    },
  },
  ...[
    [320, 100],
    [320, 200],
    [360, 200],
    [768, 200],
  ].map(([width, letters]) => ({
    name: `letters of ${letters} %: nothing is cut or beside the page, and controls are large enough, ${width} px`,
    skip: (kind) => kind === 'firefox' && width !== 360 && 'the same page as in Chromium',
    async run({ browser, url }) {
      const state = 'causal=1&query=6&key=5&edits=h1q5k2w0.5&train=induction';
      const { page, close } = await openPage(browser, `${url}#${state}`, { width, height: 780 });
      await page.evaluate((size) => (document.documentElement.style.fontSize = `${size}%`), letters);
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await until(page, () => window.multiheadPage.training().status === 'paused');
      await generationReady(page);
      await page.click('#generate-one');
      await until(page, () => document.querySelectorAll('.generated > li').length > 0);
      await page.$$eval('details', (list) => list.forEach((details) => (details.open = true)));
      for (const step of ['x', 'scores', 'softmax', 'output']) {
        await page.$eval(`#step-${step}`, (tab) => tab.click());
        await settled(page);
        assert.deepEqual(await lost(page), [], step);
      }
      await page.$$eval('.segments button', (buttons) =>
        buttons.filter(({ textContent }) => textContent === 'Numbers').forEach((button) => button.click()),
      );
      await settled(page);
      assert.deepEqual(await lost(page), [], 'as numbers');
      await close();
    },
  })),
  {
    name: 'new numbers do not move the focus',
    async run({ browser, url }) {
      // A few words and heads are drawn sooner, and still have controls of every kind.
      const { page, close } = await openPage(browser, `${url}#text=one+two+one&heads=previous.same`);
      const stray = (within) =>
        page.evaluate(async (selector) => {
          const stops = () =>
            [...document.querySelectorAll('a[href], button:enabled, input:enabled, textarea, summary, [tabindex="0"]')].filter(
              (element) =>
                // The words, the sections and the status in the bar come and go as the page scrolls to the focus.
                element.tabIndex === 0 &&
                element.closest(selector) &&
                !element.closest('.bar-sentence, .places, .status') &&
                element.checkVisibility({ visibilityProperty: true }),
            );
          const found = [];
          const change = async () => {
            document.querySelector('#causal').click();
            await window.multiheadPage.settled();
          };
          // An element loses the focus if it is removed, reinserted, hidden or disabled, or by a call of focus() or
          // blur(). An element that stays in place during a change and its reversal, without such a call, need not be
          // tried.
          const all = stops();
          const gone = new Set();
          const watcher = new MutationObserver((records) => {
            for (const { removedNodes } of records) {
              for (const node of removedNodes) for (const stop of all) if (node.contains(stop)) gone.add(stop);
            }
          });
          watcher.observe(document.body, { childList: true, subtree: true });
          const { focus, blur } = HTMLElement.prototype;
          for (const name of ['focus', 'blur']) {
            HTMLElement.prototype[name] = function () {
              found.push(`${name}() of ${this.outerHTML.slice(0, 80)}`);
            };
          }
          await change();
          const between = new Set(stops());
          await change();
          Object.assign(HTMLElement.prototype, { focus, blur });
          watcher.disconnect();
          const after = new Set(stops());
          const stays = (stop) => !gone.has(stop) && between.has(stop) && after.has(stop);
          const kinds = new Set();
          for (const [i, known] of all.entries()) {
            // Skip an element that stays if one of its kind was tried. A map keeps a cell only while the cell has the
            // focus, so one cell of each section is tried.
            const isCell = known.matches('.map-cell');
            const kind = `${known.tagName} ${known.className} ${isCell ? known.closest('section').id : ''}`;
            if ((stays(known) || isCell) && kinds.has(kind)) continue;
            kinds.add(kind);
            const stop = stops()[i];
            stop.focus();
            await change();
            const now = stops().indexOf(document.activeElement);
            if (now !== i) found.push(`${i} of ${all.length}: ${stop.outerHTML.slice(0, 80)} lost it to ${now}`);
          }
          return found;
        }, within);
      assert.deepEqual(await stray('body'), []);
      await page.evaluate(() => void (document.querySelector('.more').open = true));
      for (const section of ['.more', '#steps']) {
        const numbers = await page.evaluateHandle(
          (inside) => [...document.querySelectorAll(`${inside} .segments button`)].find(({ textContent }) => textContent === 'Numbers'),
          section,
        );
        await numbers.focus();
        await page.keyboard.press('Enter');
        assert.equal(await numbers.evaluate((button) => button === document.activeElement), true, section);
      }
      assert.deepEqual(await stray('#live-map, #gallery, #steps'), []);
      await close();
    },
  },
  ...themes.flatMap((scheme) =>
    widths.map(({ width, height }) => ({
      name: `axe-core finds nothing serious, ${scheme}, ${width} px`,
      skip: (kind) => (kind === 'chromium' || (width === 360 && scheme === 'light') ? null : 'the same page as in Chromium'),
      thorough: (width === 360) !== (scheme === 'light'),
      async run({ browser, url }) {
        const { page, close } = await openPage(browser, `${url}#causal=1`, { width, height, scheme });
        const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        assert.ok(over <= 0, `the page is ${over} px too wide`);
        const findings = () => seriousFindings(page, 'body');
        assert.deepEqual(await findings(), []);
        await page.evaluate(() => {
          for (const details of document.querySelectorAll('details')) details.open = true;
          for (const button of document.querySelectorAll('.segments button')) {
            if (button.textContent === 'Numbers') button.click();
          }
        });
        assert.deepEqual(await findings(), [], 'with everything open, as numbers');
        await close();
      },
    })),
  ),
  ...themes.map((scheme) => ({
    name: `axe-core finds nothing serious at 320 px, nor in any step at 320, 360 and 1280 px, and nothing scrolls sideways, ${scheme}`,
    skip: (kind) => kind === 'firefox' && 'the same page as in Chromium',
    thorough: scheme === 'light',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`, { width: 320, height: 700, scheme });
      assert.deepEqual(await seriousFindings(page, 'body'), [], 'the whole page');
      // axe reads the whole document to find the colors behind a text: removing the other sections saves time.
      await page.evaluate(() => document.querySelectorAll('main section:not(#steps, #use-it)').forEach((section) => section.remove()));
      for (const width of [320, 360, 1280]) {
        await setViewport(page, { width, height: 700 });
        for (const id of await page.$$eval('.step', (tabs) => tabs.map((tab) => tab.id))) {
          await page.$eval(`#${id}`, (tab) => tab.click());
          await settled(page);
          assert.deepEqual(await seriousFindings(page, '#steps', '.undo-bar'), [], `${id}, ${width} px`);
          const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(over <= 0, `${id}, ${width} px: the page is ${over} px too wide`);
        }
      }
      await close();
    },
  })),
  {
    name: 'reduced motion stops every transition',
    async run({ browser, url, kind }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const moving = () =>
        page.evaluate(
          () =>
            [...document.querySelectorAll('*')].filter(
              (element) => getComputedStyle(element).transitionDuration !== '0s' || element.getAnimations().length > 0,
            ).length,
        );
      if (kind === 'chromium') {
        assert.ok((await moving()) > 0);
        await page.emulateMediaFeatures([{ name: 'prefers-reduced-motion', value: 'reduce' }]);
      }
      // A transition that ran before ends by itself.
      await eventually(async () => (await moving()) === 0, 'nothing moves');
      await close();
    },
  },
];
