// Heat maps at any size, as tables, as files, on paper and in forced colors; and all heads beside each other.

import assert from 'node:assert/strict';
import { catchDownloads, pictureSaved, press } from './downloads.mjs';
import { eventually, openPage, settled, snapshot, until } from './harness.mjs';
import { countWork } from './work.mjs';

const everyHead = 'previous.first.same.nearby.next.letter.average.itself';
const longText = Array.from({ length: 64 }, (_, i) => `word${(i * i) % 41}`).join('+');
export const large = `#heads=${everyHead}&text=${longText}`;

/** Moves the pointer diagonally over the map next to the sentence, in `steps` steps. */
export async function sweep(page, steps) {
  const box = await page.$eval('#live-map .map-row', (row) => {
    row.scrollIntoView({ block: 'start' });
    const { left, top, width } = row.getBoundingClientRect();
    return { left, top, width };
  });
  for (let i = 0; i < steps; i += 1) {
    const at = ((i + 0.5) * box.width) / steps;
    await page.mouse.move(box.left + at, box.top + at);
  }
}

export const tests = [
  {
    name: 'pointing moves marks and paints no map, at 64 tokens and 8 heads',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url + large, { fresh: true });
      const work = await countWork(page);
      await sweep(page, 1); // scrolls to the map
      await settled(page);
      const before = await work();
      const moves = 32;
      await sweep(page, moves);
      await until(page, () => document.querySelector('#live-map .map-mark-cell').hidden === false);
      await settled(page);
      const { painted, changes } = await work();
      assert.equal(painted - before.painted, 0);
      const each = (changes - before.changes) / moves;
      assert.ok(each > 0 && each <= 200, `${each} changes of the document for a move`);
      await close();
      return `${Math.round(each)} changes of the document for a move`;
    },
  },
  {
    name: 'a letter typed at 64 tokens and 8 heads redraws what is on the screen, and the rest once typing stops',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url + large, {
        // Make the drawing pause last 60 s, because a busy machine may need longer than that pause between two letters.
        prepare: (page) =>
          page.evaluateOnNewDocument(() => {
            const real = window.setTimeout;
            window.setTimeout = (run, delay, ...rest) => real(run, delay > 100 && delay < 1000 ? 60_000 : delay, ...rest);
          }),
      });
      const work = await countWork(page);
      await page.focus('#sentence');
      const letters = 8;
      for (let i = 0; i < letters; i += 1) {
        const { painted } = await work();
        await page.keyboard.type('x');
        await eventually(async () => (await work()).painted !== painted, `a map is drawn after letter ${i + 1}`);
      }
      const seen = await page.evaluate(() => {
        const [maps, changes] = [new Set(window.work.painted), window.work.changes];
        const live = document.querySelector('#live-map canvas');
        return { maps: maps.size, live: maps.has(live), changes, below: maps.has(document.querySelector('#step-detail canvas')) };
      });
      assert.equal(seen.live, true, 'the map beside the sentence follows each letter');
      assert.equal(seen.below, false, 'the map of the step, below the screen, waits');
      assert.ok(seen.maps <= 9, `${seen.maps} maps while typing: those of the eight heads beside the sentence`);
      assert.ok(seen.changes / letters < 400, `${seen.changes / letters} changes of the document for a letter`);
      await settled(page);
      const { all, tokens } = await page.evaluate(() => ({
        all: new Set(window.work.painted).size,
        tokens: document.querySelectorAll('.token').length,
      }));
      assert.equal(tokens, 64);
      assert.ok(all >= 9, `then ${all} maps: of eight heads and of the step`);
      await close();
      return `${seen.maps} of ${all} maps and ${Math.round(seen.changes / letters)} changes of the document for a letter`;
    },
  },
  {
    name: 'a map of 64 tokens has labels on both sides, and names the cell pointed at',
    async run({ browser, url }) {
      for (const width of [360, 1280]) {
        const { page, close } = await openPage(browser, `${url + large}&step=softmax`, { width, fresh: true });
        const inked = await page.$eval('#step-detail .map-stage', (stage) => {
          const canvas = stage.querySelector('canvas');
          const ratio = canvas.width / canvas.clientWidth;
          const corner = canvas.getBoundingClientRect();
          const row = stage.querySelector('.map-row').getBoundingClientRect();
          const [left, top] = [(row.left - corner.left) * ratio, (row.top - corner.top) * ratio];
          const copy = new OffscreenCanvas(canvas.width, canvas.height);
          const pen = copy.getContext('2d', { willReadFrequently: true });
          pen.drawImage(canvas, 0, 0);
          const ink = (x, y, w, h) => pen.getImageData(x, y, w, h).data.filter((v, i) => i % 4 === 3 && v > 100).length;
          return {
            beside: ink(16 * ratio, top, left - 16 * ratio, canvas.height - top),
            above: ink(left, 16 * ratio, canvas.width - left, top - 16 * ratio),
            title: ink(left, 0, canvas.width - left, 15 * ratio) > 10 && ink(0, top, 14 * ratio, canvas.height - top) > 10,
          };
        });
        assert.ok(inked.beside > 200 && inked.above > 200, JSON.stringify(inked));
        assert.ok(inked.title, 'titles of both axes');
        await page.focus('#step-detail .map-cell[tabindex="0"]');
        for (const key of ['ArrowDown', 'End']) await page.keyboard.press(key);
        const { tokens } = await snapshot(page);
        const names = await page.$$eval('#step-detail .map-mark-label', (labels) =>
          labels.map(({ hidden, textContent }) => (hidden ? '' : textContent)),
        );
        assert.ok(names[0].startsWith(tokens[1]) && names[1].startsWith(tokens[63]), names.join());
        await close();
      }
    },
  },
  {
    name: 'numbers of 64 tokens: only what can be seen is in the document',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url + large}&step=softmax&stepView=numbers`, { fresh: true });
      await until(page, () => document.querySelector('#step-detail .table-scroll table') !== null);
      const cells = await page.$$eval('#step-detail .table-scroll td', (list) => list.length);
      assert.ok(cells < 1500, `${cells} cells`);
      const { trace } = await snapshot(page);
      const corner = await page.$eval('#step-detail .table-scroll', async (region) => {
        region.scrollTo(1e6, 1e6);
        const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        await frame();
        await frame();
        region.scrollTo(1e6, 1e6);
        await frame();
        const row = region.querySelector('tr[aria-rowindex="65"]');
        return row.querySelector('[aria-colindex="65"]').textContent;
      });
      assert.equal(corner, trace.weights.data[64 * 64 - 1].toFixed(3));
      await close();
      return `${cells} cells instead of ${64 * 64}`;
    },
  },
  {
    name: 'every map of the sentence is saved as CSV, exactly, and as PNG at twice its size',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1&step=softmax`);
      await catchDownloads(page);
      const { trace, tokens } = await snapshot(page);
      const n = tokens.length;
      for (let head = 0; head < 4; head += 1) {
        await page.click(`#show-head-${head + 1}`);
        await settled(page);
        const card = '#step-detail';
        const name = await press(page, `${card} .save:nth-child(2)`);
        assert.match(name, new RegExp(`^weights-of-head-${head + 1}\\.csv$`));
        const csv = await page.evaluate(() => window.saved.at(-1).text());
        const lines = csv
          .trimEnd()
          .split('\r\n')
          .map((line) => line.split(','));
        assert.equal(lines[0].length, n + 1);
        const numbers = lines.slice(1).flatMap((line) => line.slice(1).map((text) => Math.fround(Number(text))));
        assert.deepEqual(numbers, [...trace.weights.data.subarray(head * n * n, (head + 1) * n * n)]);

        assert.match(await press(page, `${card} .save:first-child`), /\.png$/);
        const { width, height, ...ink } = await pictureSaved(page, n);
        assert.ok(width >= 2 * 38 * n && height >= 2 * 38 * n, `${width} × ${height}`);
        for (const [place, pixels] of Object.entries(ink)) assert.ok(pixels > 300, `${place}: ${pixels} pixels`);
      }
      const numbersIn = async (section) => {
        await press(page, `${section} .save:nth-child(2)`);
        const lines = (await page.evaluate(() => window.saved.at(-1).text())).trimEnd().split('\r\n').slice(1);
        return lines.flatMap((line) =>
          line
            .split(',')
            .slice(1)
            .map((text) => Math.fround(Number(text))),
        );
      };
      assert.deepEqual(await numbersIn('#your-sentence'), [...trace.weights.data.subarray(3 * n * n, 4 * n * n)]);
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await until(page, () => window.multiheadPage.training().status === 'paused');
      const untrained = await numbersIn('#train');
      assert.equal(untrained.length, 32 * 32);
      for (const section of ['#your-sentence', '#steps', '#train']) {
        await press(page, `${section} .save:first-child`);
        const { width, height } = await page.evaluate(async () => {
          const { width, height } = await createImageBitmap(window.saved.at(-1));
          return { width, height };
        });
        assert.ok(width > 300 && height > 300, `${section}: ${width} × ${height}`);
      }
      await close();
    },
  },
  {
    name: 'the matrix of every step is saved as CSV, exactly',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1&head=2`);
      await catchDownloads(page);
      const { trace } = await snapshot(page);
      const names = ['x', 'q', 'qHeads', 'scores', 'scaledScores', 'maskedScores', 'weights', 'headsOut', 'merged', 'output'];
      const steps = await page.$$eval('.step', (tabs) => tabs.map((tab) => tab.id));
      for (const [i, id] of steps.entries()) {
        await page.$eval(`#${id}`, (tab) => tab.click());
        await press(page, '#step-detail .save:nth-child(2)');
        const csv = await page.evaluate(() => window.saved.at(-1).text());
        const lines = csv.trimEnd().split('\r\n').slice(1);
        const numbers = lines.flatMap((line) =>
          line
            .split(',')
            .slice(1)
            .map((text) => Math.fround(Number(text))),
        );
        const { shape, data } = trace[names[i]];
        const size = shape.at(-2) * shape.at(-1);
        const start = shape.length === 4 ? size : 0;
        assert.deepEqual(numbers, [...data.subarray(start, start + size)], names[i]);
      }
      await close();
    },
  },
  {
    name: 'every map has a table of its numbers, in the address and undone by Back',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`);
      await page.evaluate(() => document.querySelector('#train').scrollIntoView());
      await until(page, () => window.multiheadPage.training().status === 'paused');
      for (const [place, field, tables, pictures = tables] of [
        ['#your-sentence', 'liveView', 1, 4],
        ['#steps', 'stepView', 1],
        ['#train', 'trainView', 4],
      ]) {
        const maps = () =>
          page.$$eval(`${place} .map`, (list) => list.filter((map) => map.checkVisibility() && !map.closest('.train-beside')).length);
        const shown = () => page.$$eval(`${place} .table-scroll`, (list) => list.length);
        assert.equal(await maps(), pictures, `${place}: maps`);
        await page.$$eval(`${place} .segments button`, (buttons) => buttons.find(({ textContent }) => textContent === 'Numbers').click());
        await settled(page);
        assert.match(await page.evaluate(() => location.hash), new RegExp(`${field}=numbers`));
        assert.deepEqual([await shown(), await maps()], [tables, 0], `${place}: tables in the place of maps`);
        const named = await page.$$eval(`${place} caption`, (list) => list.every(({ textContent }) => textContent.length > 5));
        assert.ok(named, `${place}: the tables have captions`);
        await page.evaluate(() => history.back());
        for (let i = 0; i < 200 && (await shown()) > 0; i += 1) await settled(page);
        assert.deepEqual([await shown(), await maps()], [0, pictures], `${place}: Back`);
      }
      await close();
    },
  },
  {
    name: 'all heads show their row as one bar, their statistics and their mean',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1`);
      const { trace, tokens, heads } = await snapshot(page);
      const n = tokens.length;
      const weight = (h, i, j) => trace.weights.data[(h * n + i) * n + j];
      const shown = await page.$$eval('#gallery .share:not(:last-child) .scores', (list) =>
        list.map((scores) => [...scores.querySelectorAll('dd')].map((value) => Number(value.textContent))),
      );
      const lines = await page.$$eval('#gallery .scores dt', (list) => new Set(list.map(({ offsetHeight }) => offsetHeight)).size);
      assert.equal(lines, 1, 'no name of a score is broken');
      const rows = Array.from({ length: n }, (_, i) => i);
      shown.forEach(([entropy, previous, first], h) => {
        const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
        const surprise = (w) => (w > 0 ? -w * Math.log(w) : 0);
        const entropies = rows.map((i) => rows.reduce((sum, j) => sum + surprise(weight(h, i, j)), 0));
        assert.ok(Math.abs(entropy - mean(entropies)) < 0.0051, 'entropy');
        assert.ok(Math.abs(previous - mean(rows.slice(1).map((i) => weight(h, i, i - 1)))) < 0.0051);
        assert.ok(Math.abs(first - mean(rows.slice(1).map((i) => weight(h, i, 0)))) < 0.0051);
      });
      const query = n - 1;
      await page.$$eval('.token', (words) => words.at(-1).click());
      await settled(page);
      const bars = await page.$$eval('#gallery .shared-bar', (list) =>
        list.map((bar) => [...bar.children].filter(({ hidden }) => !hidden).map(({ style }) => parseFloat(style.width) / 100)),
      );
      const shares = heads.map((_, h) => rows.map((j) => weight(h, query, j)));
      const mean = rows.map((j) => shares.reduce((sum, row) => sum + row[j], 0) / heads.length);
      [...shares, mean].forEach((row, h) => {
        const drawn = row.filter((share) => share >= 0.002);
        assert.equal(bars[h].length, drawn.length, `bar ${h + 1}`);
        drawn.forEach((share, i) => assert.ok(Math.abs(bars[h][i] - share) < 0.0002, `bar ${h + 1}: ${bars[h][i]}, not ${share}`));
      });
      await close();
    },
  },
  {
    name: 'forced colors keep the maps, the bars and the choice',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#query=3&key=2`, { fresh: true });
      const session = await page.createCDPSession();
      await session.send('Emulation.setEmulatedMedia', { features: [{ name: 'forced-colors', value: 'active' }] });
      await until(page, () => matchMedia('(forced-colors: active)').matches);
      const kept = await page.evaluate(() => {
        const style = (selector) => getComputedStyle(document.querySelector(selector));
        return {
          bar: style('#gallery .score-bar > *').backgroundColor !== style('#gallery').backgroundColor,
          mark: parseFloat(style('#live-map .map-mark-cell').outlineWidth) >= 2,
          chosen: style('#gallery .card-title[aria-pressed=true]').outlineStyle === 'solid',
          pressed: style('#steps .segments [aria-pressed=true]').outlineStyle === 'solid',
          on: style('#bend-output + .switch-track').backgroundColor !== style('#bend-causal + .switch-track').backgroundColor,
        };
      });
      assert.deepEqual(kept, { bar: true, mark: true, chosen: true, pressed: true, on: true });
      await close();
    },
  },
];
