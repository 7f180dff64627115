// What bends a pass, in the steps that it changes: every control changes the numbers as a float64 computation does, is in the address, and can be undone.

import assert from 'node:assert/strict';
import { seriousFindings } from './axe.mjs';
import { checkRows, compare } from './numbers.tests.mjs';
import { openPage, settled, snapshot, until } from './harness.mjs';

const sentence = 'text=the+black+cat+sat+on+the+mat';

const hashOf = (page) => page.evaluate(() => decodeURIComponent(location.hash));

/** Moves a slider to a position, as dragging it does. */
const slide = (page, selector, position) =>
  page.$eval(
    selector,
    (slider, value) => {
      slider.value = value;
      slider.dispatchEvent(new Event('input'));
    },
    String(position),
  );

/** Each field, and how to change it with its control. */
const controls = [
  { field: 'causal', use: (page) => page.$eval('#bend-causal', (box) => box.click()) },
  { field: 'window', use: (page) => slide(page, '#bend-window', 1) },
  { field: 'temperature', use: (page) => slide(page, '#bend-temperature', 0.5) },
  { field: 'divisor', use: (page) => page.$eval('#bend-divisor-model', (button) => button.click()) },
  { field: 'divisor', use: (page) => page.$eval('#bend-divisor-none', (button) => button.click()) },
  { field: 'muted', use: (page) => page.$eval('.mutes button:nth-child(3)', (button) => button.click()) },
  { field: 'withoutOutput', use: (page) => page.$eval('#bend-output', (box) => box.click()) },
  { field: 'edits', use: (page) => slide(page, '#edit-weight', 0.25) },
];

export const tests = [
  {
    name: 'every control that bends a pass gives the numbers of float64 to 1e-5, one after the other and together',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}&query=4&key=3&head=4`);
      let before = await snapshot(page);
      for (const { field, use } of controls) {
        await use(page);
        const result = await snapshot(page);
        assert.notDeepEqual(result.trace.output.data, before.trace.output.data, `${field} changes the output`);
        compare(result);
        checkRows(result);
        assert.match(await hashOf(page), new RegExp(`[#&]${field}=`));
        before = result;
      }
      assert.equal(await page.$$eval('.effect-list li', (list) => list.length), 0, 'no comparison without W_O');
      await page.$eval('#bend-output', (box) => box.click());
      await settled(page);
      assert.ok((await page.$$eval('.effect-list li', (list) => list.length)) > 0);
      await close();
    },
  },
  {
    name: 'what is bent comes back from the address, and undo and redo take it back and forth, bit for bit',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}&query=4&key=3&head=4`, { fresh: true });
      const outputs = [(await snapshot(page)).trace.output.data];
      for (const { use } of controls.slice(-4)) {
        await use(page);
        outputs.push((await snapshot(page)).trace.output.data);
      }
      await until(page, () => location.hash.includes('w0.25'));
      const address = await page.evaluate(() => location.href);
      for (const output of outputs.slice(0, -1).reverse()) {
        const hash = await hashOf(page);
        await page.click('#undo');
        for (let i = 0; i < 200 && (await hashOf(page)) === hash; i += 1) await settled(page);
        assert.deepEqual((await snapshot(page)).trace.output.data, output, 'undone');
      }
      assert.equal(await page.$eval('#undo', (button) => button.ariaDisabled), 'true');
      const hash = await hashOf(page);
      await page.click('#redo');
      for (let i = 0; i < 200 && (await hashOf(page)) === hash; i += 1) await settled(page);
      assert.deepEqual((await snapshot(page)).trace.output.data, outputs[1], 'redone');
      await close();

      const second = await openPage(browser, address);
      assert.deepEqual((await snapshot(second.page)).trace.output.data, outputs.at(-1), 'from the address');
      await second.page.click('#bend-reset');
      const { bend } = await snapshot(second.page);
      assert.deepEqual(bend.edits, []);
      assert.deepEqual(bend.muted, []);
      await second.close();
    },
  },
  {
    name: 'a weight is chosen and set by keyboard; the row still sums to 1, and a masked weight stays 0',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}&causal=1&step=softmax`);
      await page.focus('#step-detail .map-cell[tabindex="0"]');
      for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight', 'Enter']) await page.keyboard.press(key);
      await until(page, () => document.querySelector('#edit-weight').ariaDisabled === 'false');
      await page.focus('#edit-number');
      await page.keyboard.down('Control');
      await page.keyboard.press('a');
      await page.keyboard.up('Control');
      await page.keyboard.type('0.75');
      const { trace, bend, tokens } = await snapshot(page);
      const n = tokens.length;
      assert.deepEqual(bend.edits, [{ head: 0, query: 2, key: 1, weight: 0.75 }]);
      const row = [...trace.weights.data.subarray(2 * n, 3 * n)];
      assert.equal(row[1], 0.75);
      assert.ok(Math.abs(row.reduce((a, b) => a + b) - 1) < 1e-6);
      assert.ok(row.slice(3).every((weight) => Object.is(weight, 0)));
      const label = await page.$eval('#step-detail [aria-colindex="2"]', (cell) => cell.ariaLabel);
      assert.equal(label, 'head 1, query cat, key black, 0.75, set by hand');
      for (const place of ['#live-map', '#steps']) {
        const legend = await page.$$eval(`${place} .legend`, (list) => list.map((each) => each.innerText).join());
        assert.match(legend, /masked, exactly 0[^]*set by hand/, `${place} says what its marks mean`);
      }
      await page.focus('#step-detail .map-cell[tabindex="0"]');
      for (const key of ['End', 'Enter']) await page.keyboard.press(key);
      await until(page, () => document.querySelector('#edit-weight').ariaDisabled === 'true');
      assert.match(await page.$eval('#edit-line', (line) => line.textContent), /mask hides/);
      await page.click('#edit-clear');
      assert.deepEqual((await snapshot(page)).bend.edits, []);
      await close();
    },
  },
  {
    name: 'causal: with any window, temperature and set weight, an edited token changes no earlier output',
    async run({ browser, url }) {
      const bent = 'window=3&temperature=2&edits=h1q3k2w0.5';
      const earlier = async (last, causal) => {
        const text = `the black cat sat on the ${last}`;
        const { page, close } = await openPage(browser, `${url}#text=${encodeURIComponent(text)}&causal=${causal}&${bent}`);
        const { trace } = await snapshot(page);
        await close();
        return Buffer.from(trace.output.data.slice(0, 6 * 64).buffer);
      };
      assert.ok((await earlier('mat', 1)).equals(await earlier('tree', 1)));
      assert.ok(!(await earlier('mat', 0)).equals(await earlier('tree', 0)));
    },
  },
  ...[
    [320, 'light', 'muted=2&query=5&key=2&temperature=2&edits=h1q5k2w0.5&withoutOutput=1'],
    [1280, 'dark', 'step=softmax&stepView=numbers&window=2'],
  ].map(([width, scheme, state]) => ({
    name: `axe-core finds nothing serious in all heads and what is bent, ${scheme}, ${width} px`,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#${sentence}&causal=1&${state}`, { width, scheme });
      await page.$$eval('#gallery details', (list) => list.forEach((details) => (details.open = true)));
      assert.deepEqual(await seriousFindings(page, '#gallery', '#steps', '#own'), []);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(over <= 0, `the page is ${over} px too wide`);
      await close();
    },
  })),
];
