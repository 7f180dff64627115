// The first five seconds: the content above the fold, the arcs, the next words, the presets, and text of every script.

import assert from 'node:assert/strict';
import { openPage, setSentence, settled, snapshot, until } from './harness.mjs';

const boxOf = (page, selector) =>
  page.$eval(selector, (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom };
  });
/** The token to which each head gives most, from the last one. */
const looksOfLast = async (page) => {
  const { trace, tokens, heads } = await snapshot(page);
  const n = tokens.length;
  const rowOf = (head) => [...trace.weights.data.subarray((head * n + n - 1) * n, (head + 1) * n * n)];
  return { tokens, looks: heads.map((_, head) => rowOf(head).indexOf(Math.max(...rowOf(head)))) };
};
const nextOf = (page) =>
  page.$$eval('.next-bar', (bars) =>
    bars.map((bar) => [bar.querySelector('.next-word').textContent, parseInt(bar.querySelector('.number').textContent)]),
  );
const names = (page) => page.$$eval('.token', (list) => list.map(({ textContent }) => textContent));

export const tests = [
  ...[
    { width: 1280, height: 800 },
    { width: 360, height: 740 },
  ].map(({ width, height }) => ({
    name: `the sentence, its arcs, the next words and a heat map are above the fold, ${width} × ${height}`,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url, { width, height });
      for (const place of [
        '.intro p',
        '#sentence',
        '.presets',
        '.strip-words',
        '.strip-heads',
        '.next-bar',
        `#live-map .live-card:nth-child(${width > 640 ? 4 : 2}) canvas`,
      ]) {
        const box = await boxOf(page, place);
        assert.ok(box.top >= 0 && box.bottom <= height, `${place} ends at ${box.bottom} of ${height}`);
        assert.ok(box.left >= 0 && box.right <= width, `${place} ends at ${box.right} of ${width}`);
      }
      const rows = await page.$$eval('.preset:not([hidden])', (list) => new Set(list.map((each) => each.offsetTop)).size);
      assert.equal(rows, 1, 'the presets are one row');
      const arcs = await page.$$eval('.arc', (list) =>
        list.map((arc) => ({ color: getComputedStyle(arc).stroke, width: arc.getBoundingClientRect().width })),
      );
      assert.equal(new Set(arcs.map(({ color }) => color)).size, 4, 'a color for each head');
      const numbers = await page.$$eval('.arc-mark', (list) => list.map(({ textContent }) => textContent));
      assert.deepEqual([...new Set(numbers)].sort(), ['1', '2', '3', '4']);
      const { tokens, looks } = await looksOfLast(page);
      assert.ok(new Set(looks).size >= 3, `the heads look at ${looks}`);
      assert.match(
        await page.$eval('.in-use', (line) => line.textContent),
        /weights, trained .* it has learned how her sentences go, not what they mean/,
      );
      assert.equal(await page.$eval('.strip-looks', (line) => line.textContent), `${tokens.at(-1)}₉ looks at`);
      assert.match(await page.$eval('.preset-line', (line) => line.textContent), /^From “Mr\.₉”: head/);
      await close();
    },
  })),
  {
    name: 'the words model: a pressed word is written and the next ones follow; a muted head and a changed word change them',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url, { fresh: true });
      const [[word, share], ...others] = await nextOf(page);
      assert.equal(word, 'Elton', 'the name that followed the same word before');
      assert.ok(share >= 40 && others.every(([, other]) => other <= share), `${share} %`);
      // Without the heads that copy, the name is no longer likely.
      const copying = await page.$$eval('.live-name', (list) => list.flatMap(({ textContent }, i) => (textContent === 'copies' ? [i + 1] : [])));
      assert.ok(copying.length > 0);
      await page.evaluate((heads) => void (location.hash = `#source=novels&muted=${heads.join('.')}`), copying);
      await until(page, () => document.querySelector('#live-map .is-muted') !== null);
      await settled(page);
      const muted = Object.fromEntries(await nextOf(page))[word] ?? 0;
      assert.ok(muted < share / 2, `${muted} % without heads ${copying}`);
      await page.evaluate(() => void (location.hash = ''));
      await settled(page);
      // Another name is copied, too.
      await setSentence(page, 'Mr. Darcy came in. Emma looked at Mr.');
      assert.equal((await nextOf(page))[0][0], 'Darcy', 'another name');
      await page.click('#undo');
      await until(page, () => document.querySelector('#sentence').value.startsWith('Mr. Elton'));
      await setSentence(page, 'Emma saw a quokka');
      assert.deepEqual(await page.$$eval('.token.is-unknown', (list) => list.map((each) => each.textContent)), ['quokka']);
      assert.match(await page.$eval('.preset-line', (line) => line.textContent), /This model has not learned “quokka” \(dotted\)/);
      assert.match(await page.$eval('.live-title', ({ title }) => title), /^copies: \d.* followed the same word last time/);
      await page.click('#undo');
      await until(page, () => document.querySelector('#sentence').value.startsWith('Mr. Elton'));
      await settled(page);
      await page.focus('.next-bar');
      for (let i = 1; i <= 2; i += 1) {
        await page.keyboard.press('Enter');
        await settled(page);
        assert.equal((await page.$$('.token')).length, 9 + i);
      }
      assert.equal(await page.evaluate(() => document.activeElement.className), 'next-bar', 'the focus stays');
      assert.match(await page.$eval('#sentence', ({ value }) => value), /^Mr\. Elton came in\. Emma looked at Mr\. Elton\S* ?\S+$/);
      assert.match(await page.$eval('.next [role=status]', ({ textContent }) => textContent), / is written\. Next: .*\d.%/);
      const before = await nextOf(page);
      await page.goto(`${url}?again${await page.evaluate(() => location.hash)}`);
      await settled(page);
      assert.deepEqual(await nextOf(page), before, 'a link shows the same');
      await page.select('#source-layer', '0');
      await settled(page);
      assert.match(await page.evaluate(() => location.hash), /novelsLayer=1/);
      assert.deepEqual(await nextOf(page), before, 'the prediction is that of the whole model, whichever layer is shown');
      await page.click('#source-rules');
      await settled(page);
      assert.equal(await page.$eval('.next', ({ hidden }) => hidden), true, 'hand-built heads predict nothing');
      await close();
    },
  },
  {
    name: 'nothing moves while the page loads: layout shift at most 0.1',
    skip: (kind) => kind === 'firefox' && 'Firefox does not measure layout shift',
    async run({ browser, url }) {
      const shifts = [];
      for (const [width, height] of [
        [1280, 800],
        [360, 740],
      ]) {
        const { page, close } = await openPage(browser, 'about:blank', { width, height, ready: false });
        await page.evaluateOnNewDocument(() => {
          window.shift = 0;
          new PerformanceObserver((list) => {
            for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) window.shift += value;
          }).observe({ type: 'layout-shift', buffered: true });
        });
        await page.goto(url);
        await settled(page);
        const shift = await page.evaluate(() => window.shift);
        assert.ok(shift <= 0.1, `${shift} at ${width} px`);
        shifts.push(shift.toFixed(3));
        await close();
      }
      return shifts.join(' and ');
    },
  },
  {
    name: 'arcs lead to the words with the weight, on one line and across lines',
    async run({ browser, url }) {
      for (const width of [1280, 360]) {
        const { page, close } = await openPage(browser, `${url}#query=7`, { width });
        const { trace, tokens } = await snapshot(page);
        const n = tokens.length;
        const strongest = [0, 1, 2, 3].map((head) => {
          const row = [...trace.weights.data.subarray((head * n + 6) * n, (head * n + 7) * n)];
          return row.indexOf(Math.max(...row));
        });
        const near = await page.evaluate(() => {
          const tokens = [...document.querySelectorAll('.token')].map((each) => each.getBoundingClientRect());
          return [...document.querySelectorAll('.arc-mark')].map((mark) => {
            const { left, top, width, height } = mark.getBoundingClientRect();
            const [x, y] = [left + width / 2, top + height / 2];
            const away = tokens.map((box) => Math.hypot(x - (box.left + box.right) / 2, Math.min(Math.abs(y - box.top), Math.abs(y - box.bottom))));
            return [mark.textContent, away.indexOf(Math.min(...away))];
          });
        });
        near.forEach(([number, token]) => assert.equal(token, strongest[number - 1], `head ${number}, ${width} px`));
        await close();
      }
    },
  },
  {
    name: 'arrow keys choose words in the strip, and the choice stays in view when the pointer leaves',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      await page.focus('.token[tabindex="0"]');
      await page.keyboard.press('Home');
      await page.keyboard.press('ArrowRight');
      await until(page, () => document.querySelector('.strip-looks').textContent === 'saw looks at');
      assert.match(await page.evaluate(() => location.hash), /query=/);
      await (await page.$$('.token'))[3].hover();
      await until(page, () => document.querySelector('.strip-looks').textContent === 'dog₄ looks at');
      await page.mouse.move(2, 2);
      await until(page, () => document.querySelector('.strip-looks').textContent === 'saw looks at');
      await page.$$eval('.strip-head', (heads) => heads[2].click());
      await until(page, () => document.querySelector('.live-title[aria-pressed=true]').textContent.includes('Same word'));
      assert.match(await page.$eval('#live-map .live-card:nth-child(3) [role=gridcell]', (cell) => cell.ariaLabel), /^head 3, query I, key I, /);
      await close();
    },
  },
  {
    name: 'a muted head is hatched in each section, and no number stands for it',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#muted=3&query=7&key=4&step=softmax&head=3`, { fresh: true });
      const places = ['.strip-heads', '#live-map', '.bar-heads', '#steps', '.shares'];
      await page.evaluate(() => document.querySelector('#steps').scrollIntoView());
      await until(page, () => document.querySelectorAll('.bar-heads .badge').length === 4);
      const badges = await page.evaluate(
        (all) =>
          all.map((place) =>
            [...document.querySelectorAll(`${place} .badge`)]
              .filter((badge) => getComputedStyle(badge).backgroundImage !== 'none')
              .map((badge) => badge.textContent),
          ),
        places,
      );
      badges.forEach((those, i) => assert.ok(those.length > 0 && those.every((number) => number === '3'), `${places[i]}: ${those}`));
      assert.equal(await page.$eval('.strip-head:nth-child(3)', (look) => look.innerText.trim().replace(/\s+/g, ' ')), '3 head 3 muted');
      assert.equal(await page.$$eval('.live-readout .number', (numbers) => numbers[2].textContent), 'muted');
      for (const place of ['#live-map .live-card:nth-child(3)', '#step-detail']) {
        const label = await page.$eval(`${place} [role=gridcell]`, (cell) => cell.ariaLabel);
        assert.equal(label, 'head 3, query I, key I, muted', place);
      }
      assert.match(
        await page.$eval('.preset-line', (line) => line.textContent),
        /^From “dog₇”: head 1 looks at “the₆”, head 2 at “I”, head 4 at several words, head 3 is muted\.$/,
      );
      await close();
    },
  },
  {
    name: 'text of every script: right to left, without spaces, emoji, markup',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      await setSentence(page, 'مرحبا بالعالم مرحبا');
      assert.deepEqual(await names(page), ['مرحبا₁', 'بالعالم', 'مرحبا₃']);
      const [first, last] = await page.$$eval('.token', (list) => [list[0].offsetLeft, list[2].offsetLeft]);
      assert.ok(first > last, 'from right to left');
      assert.equal(await page.$eval('#sentence', (field) => getComputedStyle(field).direction), 'rtl');
      await setSentence(page, 'ฉันรักแมว');
      assert.deepEqual(await names(page), ['ฉั', 'น', 'รั', 'ก', 'แ', 'ม', 'ว'], 'Thai is split into signs');
      await setSentence(page, '🇫🇷 is 3.14159 👨‍👩‍👧');
      assert.deepEqual(await names(page), ['🇫🇷', 'is', '3.14159', '👨‍👩‍👧']);
      await setSentence(page, '<img src=x onerror=alert(1)> <b>bold</b>');
      assert.equal((await page.$$('[onerror], #your-sentence b')).length, 0, 'markup stays text');
      assert.equal((await names(page))[1], 'img');
      await setSentence(page, '');
      assert.deepEqual(await page.$$eval('.strip-box, #live-map', (list) => list.map(({ hidden }) => hidden)), [true, true]);
      await settled(page);
      assert.equal(await page.$eval('.top', (bar) => bar.classList.contains('is-away')), false, 'the top of the page stays');
      await setSentence(page, 'e\u0301te\u0301 x\u0302y back');
      assert.deepEqual(await names(page), ['\u00e9t\u00e9', 'x\u0302y', 'back']);
      await close();
    },
  },
  {
    name: 'paper is white in the dark theme, and forced colors keep arcs, bars and the choice',
    skip: (kind) => kind === 'firefox' && 'Firefox emulates neither printing nor forced colors',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#query=7&step=softmax`, { scheme: 'dark' });
      const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const dark = await ground();
      await page.emulateMediaType('print');
      assert.notEqual(await ground(), dark);
      assert.equal(await ground(), 'rgba(0, 0, 0, 0)', 'the paper itself');
      const folded = await page.$eval('.about p', (text) => text.checkVisibility());
      assert.ok(folded, 'what is folded is printed');
      await page.emulateMediaType(null);
      const client = await page.createCDPSession();
      await client.send('Emulation.setEmulatedMedia', { features: [{ name: 'forced-colors', value: 'active' }] });
      await until(page, () => matchMedia('(forced-colors: active)').matches);
      const seen = await page.evaluate(() => {
        const style = (selector) => getComputedStyle(document.querySelector(selector));
        return {
          arcs: new Set([...document.querySelectorAll('.arc')].map((arc) => getComputedStyle(arc).stroke)).size,
          bar: style('.origin-bar > *').backgroundColor,
          room: style('.origin-bar').backgroundColor,
          here: style('.step[aria-selected=true] .step-number').backgroundColor,
          there: style('.step[aria-selected=false] .step-number').backgroundColor,
          chosen: style('.token[aria-pressed=true]').outlineStyle,
        };
      });
      assert.equal(seen.arcs, 4);
      assert.notEqual(seen.bar, seen.room);
      assert.notEqual(seen.here, seen.there);
      assert.equal(seen.chosen, 'solid');
      await close();
    },
  },
];
