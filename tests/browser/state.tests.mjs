// The state of the page: in the address, in the browser's history, and one selection for all sections.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { openPage, settled, snapshot, toggle, typeSentence, until } from './harness.mjs';

const hashOf = (page) => page.evaluate(() => location.hash);
const noticeOf = (page) => page.$eval('#notice', ({ hidden, textContent }) => (hidden ? null : textContent));
const textIn = (page) => page.$eval('#sentence', (field) => field.value);
const selectedStep = (page) => page.$eval('.step[aria-selected=true]', ({ id }) => id);
const chosenToken = async (page) => {
  await settled(page);
  return page.$$eval('.token', (list) => list.findIndex((token) => token.ariaPressed === 'true'));
};

/** Goes back or forward, like the browser's buttons. */
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

/** Repeatable random numbers from a seed (mulberry32). */
function randomFrom(seed) {
  let state = seed;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  return { next, pick: (list) => list[Math.floor(next() * list.length)] };
}

/** The names of the fields, as listed in page_state.ts. */
async function fieldNames() {
  const source = await readFile(new URL('../../web/src/state/page_state.ts', import.meta.url), 'utf8');
  const table = source.slice(source.indexOf('export const fields = {'), source.indexOf('type Fields ='));
  return [...table.matchAll(/^  (\w+): /gm)].map(([, name]) => name);
}

const usualValues = [
  ...['0', '1', '2', '3', '7', '8', '64', '-1', '0.5', '12', '999999', 'numbers', 'colors', 'cpp', 'induction', 'accuracy'],
  ...[
    'x',
    'mask',
    'output',
    'values',
    'v',
    'model',
    'trained',
    'none',
    'same',
    'itself.letter',
    'previous.first.same.nearby.next.letter.average.itself',
  ],
  ...['h1q2k1w0.5', 'h2q3k1w1_h1q2k2w0', '1.2', '2.1', 'sentence', 'small.safetensors'],
];
const oddValues = [
  ...['', '%00', '%E0%A4%A', '%', 'NaN', 'Infinity', '1e99', '-0', '0x10', '1.5', '9'.repeat(400), 'a'.repeat(2000), 'b'.repeat(5000)],
  ...['__proto__', 'constructor', '<b>bold</b>', '%3Cimg src=x onerror=alert(1)%3E', '..%2F..', 'h9q9k9w9', 'h1q1k1w0_h1q1k1w1'],
  ...['%F0%9F%91%A9%F0%9F%8F%BD%E2%80%8D%F0%9F%9A%80+%F0%9F%87%AB%F0%9F%87%B7', '%D9%85%D8%B1%D8%AD%D8%A8%D8%A7', 'e%CC%81'.repeat(99)],
  ...['%0D%0A+a+%09+b', '%E2%80%AE+abc', '\u{1F600}', 'one+two+three', '+', Array(300).fill('w').join('+'), '=&=', 'a=b=c'],
];

export const tests = [
  {
    name: 'addresses of random parts, valid, broken and absurd: the page goes on, and its address is whole again',
    thorough: true,
    async run({ browser, url }) {
      const seed = Date.now() % 1e6;
      const { next, pick } = randomFrom(seed);
      const names = [...(await fieldNames()), '__proto__', 'toString', 'a'.repeat(500), '%E0', ''];
      assert.ok(names.length > 40, names.join());
      const { page, complaints, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      for (let round = 0; round < 40; round += 1) {
        const parts = Array.from({ length: 1 + Math.floor(8 * next()) }, () => `${pick(names)}=${pick(next() < 0.5 ? usualValues : oddValues)}`);
        const hash = `#${parts.join('&')}`;
        await page.evaluate((text) => void (location.hash = text), hash);
        const result = await snapshot(page).catch((error) => assert.fail(`seed ${seed}, ${hash}: ${error.message}`));
        assert.deepEqual(complaints, [], `seed ${seed}, ${hash}`);
        if (result) assert.ok(result.tokens.length <= 64 && result.trace.output.data.every(Number.isFinite), `seed ${seed}, ${hash}`);
        assert.equal(await page.$eval('#failure', ({ hidden }) => hidden), true, `seed ${seed}, ${hash}`);
      }
      const step = (await selectedStep(page)) === 'step-x' ? 'mask' : 'x';
      await page.evaluate((id) => document.querySelector(`#step-${id}`).click(), step);
      const address = await page.evaluate(() => location.href);
      await close();
      const again = await openPage(browser, address);
      assert.equal(await noticeOf(again.page), null, `seed ${seed}: what the page writes, it can read: ${address}`);
      assert.equal(await selectedStep(again.page), `step-${step}`);
      await again.close();
      return `seed ${seed}`;
    },
  },
  {
    name: 'a storm of changes, undo and redo stays on the page, and the address is that of the screen',
    thorough: true,
    async run({ browser, url }) {
      const seed = Date.now() % 1e6;
      const { page, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
      await page.evaluate((from) => {
        window.isSame = true;
        const buttons = [...document.querySelectorAll('.preset:not([hidden]), .step, .token, .strip-head, #causal, .mutes button')];
        let state = from;
        const random = (count) => {
          state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
          return Math.floor((state / 2 ** 32) * count);
        };
        for (let i = 0; i < 120; i += 1) {
          const what = random(3);
          if (what === 0) document.querySelector('#undo').click();
          else if (what === 1) document.querySelector('#redo').click();
          else buttons[random(buttons.length)].click();
        }
        for (let i = 0; i < 200; i += 1) document.querySelector('#undo').click();
      }, seed);
      await until(page, () => document.querySelector('#undo').ariaDisabled === 'true');
      await settled(page);
      assert.equal(await page.evaluate(() => window.isSame), true, `seed ${seed}: it is the same page`);
      assert.deepEqual([await hashOf(page), await textIn(page)], ['#source=rules', 'I saw the dog and the dog ran'], `seed ${seed}: the beginning`);
      // Make more changes in a second than a browser makes entries for.
      await page.evaluate(() => {
        const steps = [...document.querySelectorAll('.step')];
        for (let i = 0; i < 231; i += 1) steps[i % 10].click();
        document.querySelector('#causal').click();
      });
      const { causal } = await snapshot(page);
      assert.deepEqual([causal, await selectedStep(page)], [true, 'step-x']);
      await page.click('#undo');
      await until(page, () => document.querySelector('.undo-said').textContent.startsWith('Undone: '));
      await close({ expected: /Throttling navigation/ });
      return `seed ${seed}`;
    },
  },
  {
    name: 'the state in the address comes back in a fresh page',
    essential: true,
    async run({ browser, url }) {
      const first = await openPage(browser, `${url}#source=rules`);
      await typeSentence(first.page, 'Über 100% & more?');
      await toggle(first.page, '#causal');
      await toggle(first.page, '[value=itself]');
      await first.page.click('#step-project');
      await first.page.click('#part-v');
      await first.page.click('#step-scores');
      await first.page.click('#show-head-3');
      // The words may lie below the bar, where the driver takes them for visible.
      await first.page.evaluate(() => scrollTo(0, 0));
      await (await first.page.$$('.token'))[3].click();
      await first.page.$$eval('#steps .view-switch button', (buttons) => buttons[1].click());
      await until(first.page, () => /query=4.*stepView=numbers/.test(location.hash));
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
      assert.equal((await second.page.$$('#step-detail .table-scroll table')).length, 1);
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
      assert.deepEqual([tokens.length, heads.length, causal], [9, 4, true]);
      assert.match(await noticeOf(page), /I could not read \(heads, causal, step, "nonsense"\)/);
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
      assert.equal((await snapshot(page)).tokens.length, 9, 'the default sentence');
      assert.ok(!(await textIn(page)).includes('\uFFFD'), 'no broken character');
      await page.click('#step-mask');
      assert.equal(await noticeOf(page), null, 'the address is whole again');
      assert.equal(await hashOf(page), '#source=novels&step=mask');
      await close();
    },
  },
  {
    name: 'Back takes back a step, a preset and a chosen word; typing is one entry; nothing typed is lost',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const first = await textIn(page);
      // All letters in one task: what comes later than a pause is an entry of its own, also on a busy machine.
      await page.$eval(
        '#sentence',
        (field, text) => {
          for (let length = 0; length <= text.length; length += 1) {
            field.value = text.slice(0, length);
            field.dispatchEvent(new InputEvent('input', { bubbles: true }));
          }
        },
        'my own words here',
      );
      await settled(page);
      await page.click('#step-scores');
      await (await page.$$('.token'))[1].click();
      assert.equal(await chosenToken(page), 1);
      await (await page.$$('.preset:not([hidden])'))[2].click();
      await settled(page);
      assert.notEqual(await textIn(page), 'my own words here');

      await go(page, -1);
      assert.equal(await textIn(page), 'my own words here');
      assert.equal(await chosenToken(page), 1);
      await go(page, -1);
      assert.equal(await chosenToken(page), 3, 'the word that the page chooses');
      assert.equal(await selectedStep(page), 'step-scores');
      await go(page, -1);
      assert.equal(await selectedStep(page), 'step-x');
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
    name: 'undo and redo by buttons in the bar, which say what they changed, and by Ctrl+Z and Ctrl+Y outside of text fields',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
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
      assert.equal(await page.$eval('#undo', (button) => button.ariaDisabled), 'true', 'nothing to undo yet');
      await page.click('#step-mask');
      await page.click('#step-split');
      assert.deepEqual(await bar(), { inside: true, said: '' });
      await page.click('#undo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Undone: step');
      assert.equal(await selectedStep(page), 'step-mask');
      assert.equal(await page.evaluate(() => document.activeElement.id), 'undo', 'the focus stays');
      await page.click('#redo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Redone: step');
      assert.equal(await selectedStep(page), 'step-split');
      assert.equal(await page.$eval('#redo', (button) => button.ariaDisabled), 'true');
      await press('z');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-mask');
      await press('z');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-x');
      assert.equal(await hashOf(page), '#source=rules');
      await press('y');
      await until(page, () => document.querySelector('.step[aria-selected=true]').id === 'step-mask');
      await (await page.$$('.preset:not([hidden])'))[1].click();
      await settled(page);
      assert.equal((await bar()).said, '', 'a change is not an undo');
      await page.click('#undo');
      await until(page, () => document.querySelector('.undo-said').textContent === 'Undone: sentence, heads and chosen word');
      await close();
    },
  },
  {
    name: 'one selection: a chosen word or cell shows in the strip, in each map and in the figure of the step',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#step=softmax`);
      const rowOf = (selector) => page.$eval(selector, (mark) => (mark.hidden ? null : mark.style.transform));
      const before = await rowOf('#step-detail .map-mark-cell');
      await (await page.$$('.token'))[0].click();
      await settled(page);
      assert.notEqual(await rowOf('#step-detail .map-mark-cell'), before, 'the step map follows the strip');

      const cell = await page.$eval('#live-map .live-card:nth-child(2) [role=gridcell][aria-colindex="3"]', (element) => {
        element.scrollIntoView({ block: 'center' });
        const { left, top, width, height } = element.getBoundingClientRect();
        return { x: left + width / 2, y: top + height * 4.5 };
      });
      await page.mouse.click(cell.x, cell.y);
      await page.mouse.move(2, 2);
      assert.equal(await hashOf(page), '#source=rules&query=5&key=3&head=2&step=softmax');
      assert.equal(await chosenToken(page), 4);
      await until(page, () => document.querySelector('#show-head-2').ariaPressed === 'true');
      assert.match(await page.$eval('.origin-pair', (line) => line.textContent), /^and → the₃/);
      const marked = await page.$$eval('#live-map .map-mark-cell', (marks) => marks.every(({ hidden }) => !hidden));
      assert.ok(marked, 'the choice stays marked in every head');
      await go(page, -1);
      assert.equal(await chosenToken(page), 0);
      await close();
    },
  },
];
