// Compares every number on the page with a separate float64 computation.

import assert from 'node:assert/strict';
import { openPage, setSentence, settled, snapshot, toggle } from './harness.mjs';
import { reference } from './reference.mjs';

const everyHead = 'previous.first.same.nearby.next.letter.average.itself';
const long = Array.from({ length: 64 }, (_, i) => `w${(i * i) % 41}`).join(' ');
const sentences = [
  'The bank by the river approved my loan',
  'the black cat sat on the mat',
  'He is playing football',
  'The cat that was sitting on the mat ate the fish',
  'The cat sat on the',
  'one',
  long,
];

/** The largest error of any step, relative to the size of the number if that exceeds 1. */
export function compare({ tokens, heads, causal, bend, weights, trace }) {
  const [n, embedDim] = trace.x.shape.slice(-2);
  const headDim = trace.qHeads.shape.at(-1);
  assert.equal(n, tokens.length);
  const expected = reference({ x: trace.x.data, n, embedDim, heads: heads.length, headDim, causal, weights, bend });
  let worst = 0;
  for (const [name, values] of Object.entries(expected)) {
    assert.equal(trace[name].data.length, values.length, `${name} has the right size`);
    values.forEach((value, i) => {
      const shown = trace[name].data[i];
      if (value === -Infinity || shown === -Infinity) assert.equal(shown, value, `${name}[${i}]`);
      else {
        const error = Math.abs(shown - value) / Math.max(1, Math.abs(value));
        assert.ok(error <= 1e-5, `${name}[${i}] is ${shown}, not ${value}`);
        worst = Math.max(worst, error);
      }
    });
  }
  return worst;
}

export function checkRows({ tokens, trace }) {
  const { data } = trace.weights;
  for (let start = 0; start < data.length; start += tokens.length) {
    const sum = data.subarray(start, start + tokens.length).reduce((total, weight) => total + weight, 0);
    assert.ok(Math.abs(sum - 1) < 1e-5, `a row sums to ${sum}`);
  }
}

const checkCausal = ({ tokens, heads, trace }) => {
  const n = tokens.length;
  for (let h = 0; h < heads.length; h += 1) {
    for (let i = 0; i < n; i += 1) {
      for (let j = i + 1; j < n; j += 1) {
        assert.ok(Object.is(trace.weights.data[(h * n + i) * n + j], 0), 'a masked weight is exactly 0');
        assert.equal(trace.maskedScores.data[(h * n + i) * n + j], -Infinity);
      }
    }
  }
};

export const tests = [
  {
    name: 'every step equals a float64 computation to 1e-5, and rows sum to 1',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#heads=${everyHead}`);
      let worst = 0;
      for (const text of sentences) {
        await setSentence(page, text);
        for (const causal of [false, true]) {
          if ((await page.$eval('#causal', (box) => box.checked)) !== causal) await toggle(page, '#causal');
          const result = await snapshot(page);
          assert.equal(result.causal, causal);
          assert.equal(result.heads.length, 8);
          worst = Math.max(worst, compare(result));
          checkRows(result);
          if (causal) checkCausal(result);
        }
      }
      await close();
      return `largest error ${worst.toExponential(1)}`;
    },
  },
  {
    name: 'the screen shows the numbers of the trace, rounded',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#causal=1&step=mask&head=2`);
      await page.evaluate(() => {
        for (const button of document.querySelectorAll('.segments button')) {
          if (button.textContent === 'Numbers') button.click();
        }
      });
      const read = (selector) =>
        page.$$eval(selector, (tables) => tables.map((table) => [...table.querySelectorAll('tbody td')].map((cell) => cell.textContent)));
      const { trace, tokens } = await snapshot(page);
      const n = tokens.length;
      const written = (value) =>
        value === -Infinity
          ? '−∞'
          : value
              .toFixed(3)
              .replace(/^-0\.000$/, '0.000')
              .replace('-', '−');
      const [masked] = await read('#step-detail .table-scroll table');
      assert.deepEqual(masked, [...trace.maskedScores.data.subarray(n * n, 2 * n * n)].map(written));
      await page.$eval('#step-softmax', (tab) => tab.click());
      for (let head = 0; head < 4; head += 1) {
        await page.$eval(`#show-head-${head + 1}`, (button) => button.click());
        await settled(page);
        const [cells] = await read('#step-detail .table-scroll table');
        assert.deepEqual(cells, [...trace.weights.data.subarray(head * n * n, (head + 1) * n * n)].map(written));
        for (let row = 0; row < n; row += 1) {
          const sum = cells.slice(row * n, (row + 1) * n).reduce((total, text) => total + Number(text), 0);
          assert.ok(Math.abs(sum - 1) < 0.005, `a written row sums to ${sum}`);
        }
      }
      await close();
    },
  },
  {
    name: 'the causal switch hatches the upper triangle',
    essential: true,
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      // Counts the colors inside each cell of row 0, by column. The cells' positions come from the grid.
      const colorsInRow = () =>
        page.$eval('#live-map .map-stage', (stage) => {
          const canvas = stage.querySelector('canvas');
          const ratio = canvas.width / canvas.clientWidth;
          const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d');
          copy.drawImage(canvas, 0, 0);
          const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
          const pixels = new Uint32Array(data.buffer);
          const corner = canvas.getBoundingClientRect();
          return [...stage.querySelectorAll('[role=gridcell]')].map((cell) => {
            const box = cell.getBoundingClientRect();
            const sides = [box.left - corner.left, box.top - corner.top, box.width, box.height];
            const [left, top, width, height] = sides.map((side) => Math.round(side * ratio));
            const colors = new Set();
            for (let y = top + 3; y < top + height - 3; y += 1) {
              for (let x = left + 3; x < left + width - 3; x += 1) colors.add(pixels[y * canvas.width + x]);
            }
            return colors.size;
          });
        });
      assert.deepEqual(await colorsInRow(), Array(8).fill(1), 'plain without the mask');
      await toggle(page, '#causal');
      checkCausal(await snapshot(page));
      const [visible, ...masked] = await colorsInRow();
      assert.equal(visible, 1);
      for (const colors of masked) assert.ok(colors > 1, 'a masked cell is hatched');
      const label = await page.$eval('#live-map [role=gridcell][aria-colindex="2"]', (cell) => cell.getAttribute('aria-label'));
      assert.equal(label, 'head 1, query I, key saw, masked, 0');
      await close();
    },
  },
  {
    name: 'editing the last token changes earlier outputs only without the mask',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#heads=${everyHead}`);
      const earlierRows = async (text) => {
        await setSentence(page, text);
        const { trace, tokens } = await snapshot(page);
        return Buffer.from(trace.output.data.slice(0, (tokens.length - 1) * 64).buffer);
      };
      for (const causal of [false, true]) {
        if (causal) await toggle(page, '#causal');
        const before = await earlierRows('the black cat sat on the mat');
        const after = await earlierRows('the black cat sat on the tree');
        assert.equal(before.equals(after), causal, causal ? 'the same bits' : 'other bits');
      }
      await close();
    },
  },
];
