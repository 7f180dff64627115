// "Your own model": a small GPT-2 that the test writes, its heads, its continuation, and files that are not models.

import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { catchDownloads, pictureSaved, press } from './downloads.mjs';
import { openPage, setSentence, settled, snapshot, startBrokenServer, until } from './harness.mjs';

const sentence = 'text=the+black+cat+sat+on+the+mat';

const [width, heads, vocabulary, positions] = [12, 3, 24, 40];
const d = width / heads;

function noise(count, seed) {
  let state = seed >>> 0;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return 4 * (state / 2 ** 32 - 0.5);
  });
}

function gpt2() {
  const shapes = { 'wte.weight': [vocabulary, width], 'wpe.weight': [positions, width], 'ln_f.weight': [width], 'ln_f.bias': [width] };
  for (const layer of [0, 1]) {
    for (const name of ['ln_1', 'ln_2']) {
      for (const part of ['weight', 'bias']) shapes[`h.${layer}.${name}.${part}`] = [width];
    }
    const matrices = [['attn.c_attn', width, 3 * width], ['attn.c_proj', width, width], ['mlp.c_fc', width, 48], ['mlp.c_proj', 48, width]];
    for (const [name, from, to] of matrices) {
      shapes[`h.${layer}.${name}.weight`] = [from, to];
      shapes[`h.${layer}.${name}.bias`] = [to];
    }
  }
  return Object.fromEntries(
    Object.entries(shapes).map(([name, shape], i) => [name, { shape, data: noise(shape.reduce((a, b) => a * b), i + 1) }]),
  );
}

/** Returns a file in the format that huggingface.co/docs/safetensors describes. */
function safetensors(tensors) {
  const header = { __metadata__: { n_head: String(heads) } };
  let end = 0;
  for (const [name, { shape, data }] of Object.entries(tensors)) {
    header[name] = { dtype: 'F32', shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return Buffer.concat([length, text, ...Object.values(tensors).map(({ data }) => Buffer.from(data.buffer))]);
}

const tensors = gpt2();
const words = ['the', 'Ġblack', 'Ġcat', 'Ġsat', 'Ġon', 'Ġthe', 'Ġmat'];
const letters = [...new Set(words.join(''))];
/** Every word of the sentence becomes one token, merged from its first letter on; "the" is merged before its space. */
const merges = [
  ...words.flatMap((word) => [...word].slice(1).map((letter, i) => `${word.slice(0, i + 1)} ${letter}`)),
  'Ġ the',
];
const vocab = Object.fromEntries([...words, ...letters].slice(0, vocabulary).map((token, id) => [token, id]));

/** The weights of the first layer in float64. */
function firstLayer(ids) {
  const get = (name) => tensors[name].data;
  const [gain, shift, matrix, bias] = ['ln_1.weight', 'ln_1.bias', 'attn.c_attn.weight', 'attn.c_attn.bias'].map((name) => get(`h.0.${name}`));
  const rows = ids.map((id, i) => {
    const x = Array.from({ length: width }, (_, c) => get('wte.weight')[id * width + c] + get('wpe.weight')[i * width + c]);
    const mean = x.reduce((a, b) => a + b) / width;
    const variance = x.reduce((sum, v) => sum + (v - mean) ** 2, 0) / width;
    const normed = x.map((v, c) => ((v - mean) / Math.sqrt(variance + 1e-5)) * gain[c] + shift[c]);
    return Array.from({ length: 2 * width }, (_, o) => normed.reduce((sum, v, c) => sum + v * matrix[c * 3 * width + o], bias[o]));
  });
  return Array.from({ length: heads }, (_, h) =>
    rows.flatMap((row, i) => {
      const scores = rows.slice(0, i + 1).map((other) => {
        let sum = 0;
        for (let c = h * d; c < (h + 1) * d; c += 1) sum += row[c] * other[width + c];
        return Math.exp(sum / Math.sqrt(d));
      });
      const total = scores.reduce((a, b) => a + b);
      return rows.map((_, j) => (j <= i ? scores[j] / total : 0));
    }),
  );
}

async function withFiles(run) {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-model-'));
  const write = async (name, content) => {
    await writeFile(join(folder, name), content);
    return join(folder, name);
  };
  try {
    await run(write);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const give = async (page, ...paths) => (await page.$('#model-files')).uploadFile(...paths);
const statusOf = (page) => page.$eval('.own-status', (line) => line.textContent);

/** The numbers of head 1, 2 and so on, from the CSV that the page saves. */
async function savedNumbers(page) {
  const files = [];
  for (let head = 1; head <= heads; head += 1) {
    await press(page, `#own .card:nth-child(${head}) .save:nth-child(2)`);
    files.push(await page.evaluate(() => window.saved.at(-1).text()));
  }
  return files.map((csv) =>
    csv
      .trimEnd()
      .split('\r\n')
      .slice(1)
      .flatMap((line) => line.split(',').slice(1).map(Number)),
  );
}

export const tests = [
  {
    name: 'a GPT-2 from disk shows its heads on the sentence to 1e-5, and continues it with a cache',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, origins, close } = await openPage(browser, `${url}#${sentence}`);
        const files = [
          await write('model.safetensors', safetensors(tensors)),
          await write('vocab.json', JSON.stringify(vocab)),
          await write('merges.txt', `#version: 0.2\n${merges.join('\n')}\n`),
        ];
        await give(page, ...files);
        await until(page, () => document.querySelectorAll('#own .card').length === 3);
        await until(page, () => document.querySelector('#own .map-cell') !== null);
        assert.match(await page.$eval('.own-facts', (line) => line.textContent), /^2 layers of 3 heads, 12 columns, .* cut into pieces from a list of 24/);
        const label = await page.$eval('#own .card:nth-child(2) .map-cell', (cell) => cell.ariaLabel);
        assert.equal(label, 'head 2, query the, key the, 1.00');
        const rows = await page.$$eval('.own-row', (list) => list.map((row) => row.querySelectorAll('canvas').length));
        assert.deepEqual(rows, [3, 3], 'both layers and their heads are one picture');
        await (await page.$$('.own-row'))[1].click();
        await until(page, () => location.hash.includes('ownLayer=2'));
        await page.evaluate(() => history.back());
        await until(page, () => !location.hash.includes('ownLayer'));
        await catchDownloads(page);
        const ids = words.map((word) => vocab[word]);
        const expected = firstLayer(ids);
        (await savedNumbers(page)).forEach((numbers, head) => {
          assert.equal(numbers.length, 49);
          numbers.forEach((value, i) => assert.ok(Math.abs(value - expected[head][i]) < 1e-5, `head ${head + 1}, ${i}`));
        });
        assert.equal(await press(page, '#own .card:nth-child(2) .save:first-child'), 'layer-1-head-2.png');
        const { width: across, height: down, ...ink } = await pictureSaved(page, words.length);
        assert.ok(across >= 2 * 44 * 7 && down >= 2 * 44 * 7, `${across} × ${down}`);
        for (const [place, pixels] of Object.entries(ink)) assert.ok(pixels > 200, `${place}: ${pixels} pixels`);
        await page.$$eval('#own .segments button', (buttons) => buttons.find(({ textContent }) => textContent === 'Numbers').click());
        await until(page, () => document.querySelectorAll('#own .card table').length === 3);
        const written = await page.$$eval('#own .card:nth-child(2) tbody td', (cells) => cells.map(({ textContent }) => Number(textContent)));
        assert.equal(written.length, 49);
        written.forEach((value, i) => assert.ok(Math.abs(value - expected[1][i]) < 0.00051, `table, ${i}`));
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelectorAll('#own .card table').length === 0);
        await page.click('#own-continue');
        await until(page, () => /^.+ 24 tokens; the sentence took/.test(document.querySelector('#own-text').textContent));
        await setSentence(page, 'the cat');
        await until(page, () => document.querySelector('#own [role=grid]').ariaRowCount === '2');
        assert.deepEqual([...origins], [new URL(url).origin], 'the weights stay here');

        await page.$eval('#own-layer', (slider) => {
          slider.value = '2';
          slider.dispatchEvent(new Event('input'));
        });
        await until(page, () => document.querySelector('.own-kept').textContent.includes('asks for the file again'));
        await page.click('#own-keep');
        await until(page, () => /model\.safetensors is kept in this browser, \d+ kB/.test(document.querySelector('.own-kept').textContent));
        await page.reload();
        await settled(page);
        assert.match(await page.evaluate(() => location.hash), /model=model\.safetensors&ownLayer=2/);
        await until(page, () => document.querySelector('#own-open')?.checkVisibility());
        assert.equal((await page.$$('#own .card')).length, 0, 'nothing is read unasked');
        await page.click('#own-open');
        await until(page, () => document.querySelector('#own [role=grid]')?.ariaLabel === 'Layer 2, head 1');
        assert.match(await page.$eval('.own-facts', (line) => line.textContent), /cut into pieces/, 'the vocabulary is kept, too');
        await until(page, () => document.activeElement.id === 'own-layer');
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelector('#own .control-value').textContent === '1 of 2');
        await page.evaluate(() => history.forward());
        await until(page, () => document.querySelector('#own .control-value').textContent === '2 of 2');
        await page.click('#own-keep');
        await until(page, () => document.querySelector('#own-keep').textContent === 'Keep it in this browser');
        await page.reload();
        await settled(page);
        await until(page, () => document.querySelector('.own-kept')?.textContent.startsWith('This address was made with a file named "model.safetensors"'));
        assert.equal(await page.evaluate(async () => {
          const root = await navigator.storage.getDirectory();
          const names = [];
          for await (const name of root.keys()) names.push(name);
          return names.join();
        }), '', 'no byte is left');
        await close();
      }),
  },
  {
    name: 'a dropped model without a vocabulary numbers the words; another number of heads is another model',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#${sentence}`);
        await page.evaluate((base64) => {
          const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
          const files = new DataTransfer();
          files.items.add(new File([bytes], 'small.safetensors'));
          document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true }));
        }, safetensors(tensors).toString('base64'));
        await until(page, () => document.querySelectorAll('#own .card').length === 3);
        assert.match(await page.$eval('.own-facts', (line) => line.textContent), /words get arbitrary numbers/);
        await page.select('#own-heads', '6');
        await until(page, () => document.querySelectorAll('#own .card').length === 6);
        assert.match(await page.evaluate(() => location.hash), /model=small\.safetensors&ownHeads=6/);
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelectorAll('#own .card').length === 3);
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelector('.own-body').hidden);
        await page.evaluate(() => history.go(2));
        await until(page, () => !document.querySelector('.own-body').hidden && document.querySelectorAll('#own .card').length === 6);
        await page.$eval('#own-layer', (slider) => {
          slider.value = '2';
          slider.dispatchEvent(new Event('input'));
        });
        await until(page, () => document.querySelector('#own [role=grid]').ariaLabel.startsWith('Layer 2, head 1'));

        const second = await page.browserContext().newPage();
        await second.goto(`${url}#${sentence}`);
        await settled(second);
        await give(second, await write('other.safetensors', safetensors(tensors)));
        await until(second, () => document.querySelectorAll('#own .card').length === 3);
        const tabs = [page, second];
        await page.evaluate(() => {
          const open = FileSystemFileHandle.prototype.createWritable;
          FileSystemFileHandle.prototype.createWritable = async function () {
            const file = await open.call(this);
            await new Promise((resolve) => setTimeout(resolve, 300));
            return file;
          };
        });
        for (const tab of tabs) await tab.$eval('#own-keep', (button) => button.click());
        for (const tab of tabs) {
          await until(tab, () => document.querySelector('#own-keep').ariaDisabled === 'false');
          assert.doesNotMatch(await tab.$eval('.own-kept', (line) => line.textContent), /cannot/, 'two tabs keep their models');
        }
        await close();
      }),
  },
  {
    name: 'the worker of a model ends while it reads the file or a sentence: the page says so, and the next file opens',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await startBrokenServer(async (folder, assets) => {
          const file = join(folder, 'assets', assets.find((name) => /^model_worker.*\.js$/.test(name)));
          const end = `addEventListener('message', (event) => {
            const [given] = event.data.values;
            if (!(given.model?.name ?? given).includes('fatal')) return;
            event.stopImmediatePropagation();
            setTimeout(close, 300);
          });`;
          await writeFile(file, `${end}\n${await readFile(file, 'utf8')}`);
        });
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        await give(page, await write('fatal.safetensors', safetensors(tensors)));
        await until(page, () => /^fatal\.safetensors cannot be used: its worker has ended/.test(document.querySelector('.own-status').textContent));
        await give(page, await write('good.safetensors', safetensors(tensors)));
        await until(page, () => document.querySelectorAll('#own .card').length === 3);
        await setSentence(page, 'a fatal sentence');
        await until(page, () => /worker of good\.safetensors has ended/.test(document.querySelector('.own-status').textContent));
        assert.equal(await page.$eval('.own-body', ({ hidden }) => hidden), true);
        assert.equal(await page.$eval('#sentence', ({ value }) => value), 'a fatal sentence');
        await setSentence(page, 'another one');
        await give(page, await write('good.safetensors', safetensors(tensors)));
        await until(page, () => !document.querySelector('.own-body').hidden && document.querySelectorAll('#own .card').length === 3);
        await close();
        await server.close();
      }),
  },
  {
    name: 'if the script that shows a model or the one that measures is missing, its section says so and the page goes on',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await startBrokenServer(async (folder, assets) => {
          for (const name of assets) if (/^(opened_model|measurement).*\.js$/.test(name)) await rm(join(folder, 'assets', name));
        });
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        await give(page, await write('good.safetensors', safetensors(tensors)));
        await until(page, () => /^This part of the page could not be loaded: /.test(document.querySelector('.own-status').textContent));
        await page.click('#run-speed');
        await until(page, () => /^The measurement could not start: /.test(document.querySelector('.speed-controls [role=status]').textContent));
        await setSentence(page, 'another one');
        assert.deepEqual((await snapshot(page)).tokens, ['another', 'one']);
        await close({ expected: /404|Failed to load|error loading|MIME|dynamically imported/i });
        await server.close();
      }),
  },
  {
    name: 'the name of a model in the address is quoted, shortened, and never a sentence of the page',
    async run({ browser, url }) {
      const name = encodeURIComponent(`Your session has expired", log in at evil.example\u202e`);
      const { page, close } = await openPage(browser, `${url}#model=${name}`);
      await until(page, () => document.querySelector('.own-kept')?.textContent);
      assert.match(
        await page.$eval('.own-kept', (line) => line.textContent),
        /^This address was made with a file named "Your session has expired\\", log in at evi…", which is not part of it:/,
      );
      await close();
    },
  },
  {
    name: 'files that are no model, corrupt or huge: the page says so and goes on',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#${sentence}`);
        const whole = safetensors(tensors);
        const say = async (pattern) => {
          await until(page, () => /cannot be used|no \.safetensors|at most|is not a/.test(document.querySelector('.own-status').textContent));
          assert.match(await statusOf(page), pattern);
          await page.$eval('.own-status', (line) => (line.textContent = ''));
        };
        await give(page, await write('cut.safetensors', whole.subarray(0, 999)));
        await say(/^cut\.safetensors is not a safetensors file\.$/);
        await give(page, await write('other.safetensors', safetensors({ weight: tensors['ln_f.bias'] })));
        await say(/^other\.safetensors is not a GPT-2: it has no wte\.weight\.$/);
        await give(page, await write('notes.txt', 'hello'));
        await say(/^There is no \.safetensors file among notes\.txt/);
        const drop = (names) =>
          page.evaluate((all) => {
            const transfer = { types: ['Files'], files: all.map((name) => new File(['x'], name)) };
            const event = new Event('drop', { bubbles: true, cancelable: true });
            document.dispatchEvent(Object.defineProperty(event, 'dataTransfer', { value: transfer }));
          }, names);
        await drop(Array.from({ length: 522 }, (_, i) => `${i}\u202e.txt`));
        await say(/^There is no \.safetensors file among 0\\u202e\.txt, 1\\u202e\.txt, .*, 9\\u202e\.txt and 512 more\.$/);
        await drop([`x\n\u202e${'y'.repeat(1000)}.safetensors`]);
        await say(/^x\\u000a\\u202ey{77}… is not a safetensors file/);
        const name = 'y\n'.repeat(500_000);
        const header = Buffer.from(JSON.stringify({ [name]: { dtype: 'Q9' } }));
        const length = Buffer.alloc(8);
        length.writeBigUInt64LE(BigInt(header.length));
        await give(page, await write('names.safetensors', Buffer.concat([length, header])));
        await say(/^names\.safetensors cannot be used: (y\\u000a)+…: expected a dtype of .{0,300}$/);
        await page.evaluate(() => {
          const file = new File(['x'], 'huge.safetensors');
          Object.defineProperty(file, 'size', { value: 3.2e9 });
          const transfer = { types: ['Files'], files: [file] };
          const event = new Event('drop', { bubbles: true, cancelable: true });
          document.dispatchEvent(Object.defineProperty(event, 'dataTransfer', { value: transfer }));
        });
        await say(/^huge\.safetensors has 3\.20 GB; at most 1\.50 GB fit/);
        const good = await write('good.safetensors', whole);
        await give(page, good);
        await until(page, () => document.querySelectorAll('#own .card').length === 3);
        await rm(good);
        await page.select('#own-heads', '6');
        await say(/^good\.safetensors cannot be used: the browser could not read its \d+ kB into memory: .*Your earlier model stays open/);
        await page.evaluate(() => history.back());
        await until(page, () => !location.hash.includes('ownHeads'));
        await page.evaluate(() => {
          FileSystemFileHandle.prototype.createWritable = () => Promise.reject(new DOMException('full', 'QuotaExceededError'));
        });
        await page.click('#own-keep');
        await until(page, () => /cannot keep the file: it has too little room/.test(document.querySelector('.own-kept').textContent));
        assert.equal(await page.$eval('#own-keep', (button) => button.textContent), 'Keep it in this browser');
        await give(page, await write('bad.safetensors', whole.subarray(0, 999)));
        await say(/Your earlier model stays open/);
        assert.equal((await page.$$('#own .card')).length, 3);
        await close();
      }),
  },
];
