// The laboratory of "Your own model": its numbers against golden ones, its programs, and how it is used.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { seriousFindings } from './axe.mjs';
import { catchDownloads, press } from './downloads.mjs';
import { openPage, setViewport, site, until } from './harness.mjs';
import { mapShown } from './own_model.tests.mjs';

const folder = fileURLToPath(new URL('lens_qwen3/', import.meta.url));
const golden = JSON.parse(await readFile(join(folder, 'expected.json'), 'utf8'));
const models = new URL('../../bindings/dist/models_node.js', import.meta.url);

const rowsOf = (csv) =>
  csv
    .trimEnd()
    .split('\r\n')
    .map((line) => line.split(','));
const numbersOf = (rows) => rows.map((row) => row.slice(1).map(Number)).flat();

async function savedRows(page, selector) {
  await press(page, selector);
  return rowsOf(await page.evaluate(() => window.saved.at(-1).text()));
}

/** Writes into a field as a visitor does. */
const write = (page, selector, text) =>
  page.$eval(
    selector,
    (field, value) => {
      field.value = value;
      field.dispatchEvent(new Event('input', { bubbles: true }));
    },
    text,
  );

/** Three digits, as the page and its programs write them, without a zero below zero. */
const shown = (value) => value.toFixed(3).replace(/^-(0\.0+)$/, '$1');

const see = (page, selector) => page.$eval(selector, (element) => element.scrollIntoView({ block: 'center' }));

/** Opens the little Llama and its laboratory. */
async function openEnglish(browser, url, hash = '', options = {}) {
  const opened = await openPage(browser, `${url}#model=small+English+model${hash}`, options);
  await mapShown(opened.page);
  await see(opened.page, '.lab-place');
  await until(opened.page, () => document.querySelector('.lab-lens .map-cell') !== null);
  return opened;
}

const ran = (page) => until(page, () => document.querySelector('.lab-experiment .lab-program')?.hidden === false);

/** Saves the program of a box and runs it in Node; returns its lines. */
async function runProgram(page, box, source) {
  await page.$eval(`${box} summary`, (summary) => summary.click());
  await press(page, `${box} .save`);
  const program = await page.evaluate(() => window.saved.at(-1).text());
  assert.equal(await page.$eval(`${box} code`, (code) => code.textContent), program, 'what is shown is what is saved');
  const place = await mkdtemp(join(tmpdir(), 'multihead-program-'));
  try {
    await writeFile(join(place, 'program.mjs'), program.replace("'multihead/models'", `'${models}'`));
    const { stdout } = await promisify(execFile)(process.execPath, [join(place, 'program.mjs'), source]);
    return stdout.trimEnd().split('\n');
  } finally {
    await rm(place, { recursive: true });
  }
}

function near(found, expected, tolerance, what) {
  assert.equal(found.length, expected.length, what);
  found.forEach((value, at) => assert.ok(Math.abs(value - expected[at]) <= tolerance, `${what}, ${at}: ${value}, expected ${expected[at]}`));
}

export const tests = [
  {
    name: 'laboratory: lens, log-probabilities, patches and attribution of a public model equal the golden values, and programs print them',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const files = (await readdir(folder)).filter((name) => name !== 'expected.json').map((name) => join(folder, name));
      await (await page.$('#model-files')).uploadFile(...files);
      await mapShown(page);
      const { lens, patch, sizes } = golden;
      await write(page, '#own-input', lens.ids.join(' '));
      await see(page, '.lab-place');
      await until(page, `document.querySelector('.lab-lens [role=grid]')?.ariaColCount === '${lens.ids.length}'`);
      await catchDownloads(page);
      const saved = await savedRows(page, '.lab-lens .column .save:nth-child(2)');
      const layers = sizes.layers + 1;
      near(
        numbersOf(saved.slice(1, layers + 1)),
        lens.likeliest.map(([first]) => first[1]),
        1e-5,
        'lens',
      );
      assert.deepEqual(
        saved.slice(layers + 1).flatMap((row) => row.slice(1)),
        lens.likeliest.map(([first]) => String(first[0])),
        'the likeliest words',
      );
      const listed = await page.$$eval('.lab-lens .lab-likely li', (items) => items.map(({ textContent }) => textContent.replaceAll('\u00a0', ' ')));
      assert.deepEqual(
        listed,
        lens.likeliest.at(-1).map(([id, share]) => `${id}${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`),
        'the five likeliest at the end',
      );
      near(numbersOf((await savedRows(page, '.lab-lens .lab-rated .save:nth-child(2)')).slice(1)), lens.logProbs, 1e-4, 'log-probabilities');
      const printed = await runProgram(page, '.lab-lens .lab-program', folder);
      for (let row = 0; row < layers; row += 1) {
        const words = lens.ids.map((_, at) => lens.likeliest[row * lens.ids.length + at][0][0]);
        const shares = saved[row + 1].slice(1).map((value) => Number(value).toFixed(3));
        assert.equal(printed[row], `${row} ${words.map((id, at) => `${id} ${shares[at]}`).join('  ')}`);
      }

      await write(page, '#lab-texts', `${patch.clean_ids.join(' ')}\n${patch.corrupt_ids.join(' ')}`);
      await write(page, '#lab-word-1', String(patch.metric.token_a));
      await write(page, '#lab-word-2', String(patch.metric.token_b));
      await page.$eval('#lab-run', (button) => button.click());
      await ran(page);
      const maps = [];
      for (const at of [1, 2, 3]) {
        maps.push(numbersOf((await savedRows(page, `.lab-maps > :nth-child(${at}) .save:nth-child(2)`)).slice(1)));
      }
      const change = (values) => values.map((value) => value - patch.clean);
      near(maps[0], change(patch.z), 2 * patch.tolerance, 'by head');
      near(maps[1], patch.attribution, 2 * patch.tolerance, 'by head, estimated');
      near(maps[2], change(patch.resid_pre), 2 * patch.tolerance, 'by position');
      const status = await page.$$eval('.lab-status strong', (list) => list.map(({ textContent }) => Number(textContent.replace('−', '-'))));
      near(status, [patch.clean, patch.corrupt], 0.00051, 'the metrics');
      const lines = await runProgram(page, '.lab-experiment .lab-program', folder);
      const rows = (values) => {
        const cols = values.length / sizes.layers;
        return Array.from({ length: sizes.layers }, (_, row) =>
          values
            .slice(row * cols, (row + 1) * cols)
            .map(shown)
            .join(' '),
        );
      };
      const printedRows = lines.slice(1).map((line) => (line.startsWith('by') ? line : line.split(' ').map(Number).map(shown).join(' ')));
      assert.deepEqual(printedRows, ['by head', ...rows(maps[0]), 'by head, estimated', ...rows(maps[1]), 'by position', ...rows(maps[2])]);

      // A cell says what it changes: the whole corrupt input in layer 1 gives the corrupt run's words.
      await write(page, '#lab-texts', '1 2\n1 2 3');
      await page.$eval('#lab-run', (button) => button.click());
      await until(page, () => /need as many: 2 \(1 \| 2\) and 3 \(1 \| 2 \| 3\)/.test(document.querySelector('.lab-status').textContent));
      assert.equal(await page.$eval('.lab-too-many', (line) => line.textContent), '');
      await write(page, '#lab-texts', '1 2\n\n1 3\n1 4');
      assert.equal(await page.$eval('.lab-too-many', (line) => line.textContent), 'Only the first two of 3 lines are compared.');
      await close();
    },
  },
  {
    name: 'laboratory: three experiments that are ready, a changed model that writes, and a change of words that ends what was shown',
    async run({ browser, url }) {
      const { page, close } = await openEnglish(browser, url);
      assert.equal(await page.$$eval('.lab-ready button', (list) => list.length), 3);
      const press = async (at) => {
        await page.$$eval('.lab-ready button', (list, index) => list[index].click(), at);
        await ran(page);
        await catchDownloads(page);
        return numbersOf((await savedRows(page, '.lab-maps > :first-child .save:nth-child(2)')).slice(1));
      };
      // The head that each experiment is about changes most, in a map of 2 layers and 4 heads.
      const largest = (values) => values.indexOf(Math.min(...values));
      assert.equal(largest(await press(0)), 1, 'head 2 of layer 1');
      assert.match(
        await page.$eval('.lab-status', (line) => line.textContent),
        /^The logit of ·Knightley minus that of ·She is 4\.\d{3} after the first/,
      );
      assert.equal(largest(await press(1)), 5, 'head 2 of layer 2');

      // A cell chosen by keyboard tells the next words before and after.
      await page.focus('.lab-maps .map-cell');
      await page.keyboard.press('ArrowDown');
      await page.keyboard.press('ArrowRight');
      assert.match(await page.evaluate(() => document.activeElement.ariaLabel), /^change, layer 2, head 2, −0\.\d{3}$/);
      await page.keyboard.press('Enter');
      await until(page, () => document.querySelector('.lab-changed h4').textContent === 'Next word with head 2 of layer 2 from the second sentence');
      assert.deepEqual(await page.$$eval('.lab-changed ol', (lists) => lists.map(({ children }) => children.length)), [5, 5]);

      await press(2);
      const { top, focused } = await page.$eval('.own-continue', (box) => ({
        top: box.getBoundingClientRect().top,
        focused: document.activeElement === box,
      }));
      assert.ok(top > 0 && top < 200 && focused, `the text that it changes is in sight, at ${top} px`);
      const written = () => until(page, () => /^24 new tokens/.test(document.querySelector('#own-pace').textContent));
      await written();
      assert.match(await page.$eval('#own-text', (line) => line.textContent), /^…  he was in the house/);
      assert.match(await page.$eval('.own-plain', (line) => line.textContent), /^As it is: …  and the next day/);
      const [text] = await runProgram(page, '.own-continue .lab-program', join(site, 'english'));
      assert.equal(`… ${text}`, await page.$eval('#own-text', (line) => line.textContent));
      // The slider turns the direction round.
      await page.$eval('#lab-factor', (slider) => {
        slider.value = '2';
        slider.dispatchEvent(new Event('input', { bubbles: true }));
      });
      await until(page, () => /she was not/.test(document.querySelector('#own-text').textContent));
      assert.match(await page.evaluate(() => location.hash), /labChange=steer&labFactor=2/);
      await written();
      await page.select('#lab-change', 'scale');
      await until(page, () => /it is muted\.$/.test(document.querySelector('.lab-line').textContent));
      await page.select('#lab-change', 'none');
      await until(page, () => document.querySelector('.own-plain').hidden);

      // Other words end the experiment; Stop ends one that runs.
      await write(page, '#lab-word-1', 'nonsenseword');
      assert.equal(await page.$eval('.lab-maps', (maps) => maps.checkVisibility()), false);
      await page.$eval('#lab-run', (button) => button.click());
      await until(page, () => /^"nonsenseword" is \d+ tokens of this model/.test(document.querySelector('.lab-status').textContent));
      await write(page, '#lab-word-1', '');
      await page.$eval('#lab-run', (button) => {
        button.click();
        document.querySelector('#lab-stop').click();
      });
      await until(page, () => document.querySelector('#lab-stop').hidden && !document.querySelector('#lab-run').hidden);
      await close();
    },
  },
  {
    name: 'laboratory: a model with encoder and decoder shows both texts with arcs of cross-attention',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, url);
      const marian = fileURLToPath(new URL('../conformance/models/marian/', import.meta.url));
      await (await page.$('#model-files')).uploadFile(...['config.json', 'model.safetensors'].map((name) => join(marian, name)));
      await mapShown(page);
      await write(page, '#own-input', '5 6 7 8');
      await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaColCount === '4');
      const words = await page.$$eval('.own-arc-words', (lines) => lines.map(({ children }) => children.length));
      const count = Number(await page.$eval('#own .own-map [role=grid]', (grid) => grid.ariaRowCount));
      assert.deepEqual(words, [4, count]);
      assert.match(await page.$eval('#own .own-map .map-cell', (cell) => cell.ariaLabel), /^head 1, written \d+\S*, read 5, [01]\.\d\d$/);
      // Every written token has an arc to what it looks at, and each arc is as strong as its weight.
      const arcs = await page.$$eval('.own-arcs path', (list) => list.map((path) => Number(path.getAttribute('stroke-opacity'))));
      assert.ok(arcs.length >= count && arcs.every((weight) => weight >= 0.04 && weight <= 1), arcs.join(' '));
      assert.deepEqual(await seriousFindings(page, '#own'), []);
      assert.equal(await page.$eval('.lab-place', (place) => place.hidden), true, 'analyses are of models with one stack');
      await close();
    },
  },
  ...['light', 'dark'].map((scheme) => ({
    name: `laboratory: nothing serious for axe-core, whole at 320 and 1280 px, as numbers, too, ${scheme}`,
    thorough: scheme === 'light',
    async run({ browser, url }) {
      const { page, close } = await openEnglish(browser, url, '&ownSort=previous', { scheme });
      await page.$$eval('.lab-ready button', (list) => list[0].click());
      await ran(page);
      await page.$$eval('#own summary', (list) => list.forEach((summary) => summary.click()));
      assert.deepEqual(await seriousFindings(page, '#own'), []);
      for (const width of [320, 1280]) {
        await setViewport(page, { width, height: 800 });
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${width} px: the page is ${over} px too wide`);
      }
      await page.$$eval('#own .view-switch button', (list) => list[1].click());
      await until(page, () => document.querySelectorAll('.lab table').length === 4);
      assert.match(await page.$eval('.lab-lens tbody td', (cell) => cell.textContent), /^\S+ [01]\.\d{3}$/);
      assert.deepEqual(await seriousFindings(page, '.lab'), []);
      await close();
    },
  })),
];
