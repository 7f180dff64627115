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
import { openPage, setViewport, until } from './harness.mjs';
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

/** Opens the small English model and its laboratory. */
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
      await close();
    },
  },
];
