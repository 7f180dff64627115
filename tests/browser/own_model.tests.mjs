// "Your own model": models that the tests write or that the conformance suite has, their heads, continuations and sentences,
// and files that are not models.

import assert from 'node:assert/strict';
import { mkdir, mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { seriousFindings } from './axe.mjs';
import { catchDownloads, pictureSaved, press } from './downloads.mjs';
import {
  eventually,
  offlineCopyReady,
  openPage,
  setSentence,
  settled,
  setViewport,
  snapshot,
  startBrokenServer,
  startServer,
  until,
} from './harness.mjs';
import { bytePairTokenizer, goldenFiles, gpt2, gpt2Config, gpt2Tensors, safetensors, safetensorsHeader, wordTokenizer } from './small_models.mjs';
import { countWork } from './work.mjs';

const sentence = 'text=the+black+cat+sat+on+the+mat';

const { width, heads, vocabulary } = gpt2;
const d = width / heads;
const tensors = gpt2Tensors();
const words = ['the', ' black', ' cat', ' sat', ' on', ' the', ' mat', 'The', '.'];
const ids = [0, 1, 2, 3, 4, 5, 6];

/** The files of the GPT-2; `change` replaces some or, with null, leaves them out. */
const model = (change = {}) => ({
  'config.json': gpt2Config,
  'model.safetensors': safetensors(tensors),
  'tokenizer.json': bytePairTokenizer(words, vocabulary),
  ...change,
});

/** The weights of the first layer in float64. */
function firstLayer() {
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

/** Calls `run` with a function that writes files into a folder, and returns their paths. */
async function withFiles(run) {
  const root = await mkdtemp(join(tmpdir(), 'multihead-model-'));
  const write = async (contents, folder = '.') => {
    const paths = [];
    for (const [name, content] of Object.entries(contents)) {
      if (content === null) continue;
      paths.push(join(root, folder, name));
      await mkdir(dirname(paths.at(-1)), { recursive: true });
      await writeFile(paths.at(-1), content);
    }
    return paths;
  };
  try {
    await run(write, root);
  } finally {
    await rm(root, { recursive: true });
  }
}

const give = async (page, paths) => (await page.$('#model-files')).uploadFile(...paths);
const statusOf = (page) => page.$eval('.own-status[role=status]', (line) => line.textContent);
const factsOf = (page) => page.$eval('.own-facts', (line) => line.textContent);
/** Waits until the map is drawn: its grid is visible a frame before it has rows. */
export const mapShown = (page) =>
  until(page, () => {
    const grid = document.querySelector('#own .own-map [role=grid]');
    return grid?.checkVisibility() === true && grid.ariaRowCount !== null;
  });
/** Presses the picture of a head; both count from 1. */
const openHead = (page, layer, head) => page.$eval(`#own .own-row:nth-child(${layer}) .own-cell:nth-of-type(${head})`, (cell) => cell.click());

/** Drops files on the page; `folder` stands before their names, as in a folder that is dropped. */
const drop = (page, contents, folder) =>
  page.evaluate(
    (files, name) => {
      const all = files.map(([path, base64]) => new File([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], path));
      const entry = (file) => ({ isFile: true, isDirectory: false, fullPath: `/${name}/${file.name}`, file: (done) => done(file) });
      const left = all.map(entry);
      // Browsers give the entries of a folder in parts.
      const readEntries = (done) => done(left.splice(0, 2));
      const directory = { isFile: false, isDirectory: true, fullPath: `/${name}`, createReader: () => ({ readEntries }) };
      const items = name ? [{ webkitGetAsEntry: () => directory }] : [];
      const transfer = { types: ['Files'], files: all, items };
      const event = new Event('drop', { bubbles: true, cancelable: true });
      document.dispatchEvent(Object.defineProperty(event, 'dataTransfer', { value: transfer }));
    },
    Object.entries(contents)
      .filter(([, content]) => content !== null)
      .map(([path, content]) => [path, Buffer.from(content).toString('base64')]),
    folder,
  );

/** The numbers of head 1, 2 and so on, from the CSV that the page saves. */
async function savedNumbers(page) {
  const files = [];
  for (let head = 1; head <= heads; head += 1) {
    await openHead(page, 1, head);
    await press(page, '#own .own-map .save:nth-child(2)');
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

/** Makes the model's worker slow: it waits before it reads a large piece of a file. */
const slowServer = () =>
  startBrokenServer(async (folder, assets) => {
    const file = join(
      folder,
      'assets',
      assets.find((name) => /^model_worker.*\.js$/.test(name)),
    );
    const slow = `const read = Blob.prototype.arrayBuffer;
      Blob.prototype.arrayBuffer = async function () {
        if (this.size > 1e6) await new Promise((done) => setTimeout(done, 200));
        return read.call(this);
      };`;
    await writeFile(file, `${slow}\n${await readFile(file, 'utf8')}`);
  });

export const tests = [
  {
    name: 'a GPT-2 from disk shows its heads on the sentence to 1e-5, and continues it with a cache',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, origins, close } = await openPage(browser, `${url}#${sentence}`);
        await give(page, await write(model()));
        await mapShown(page);
        await until(page, () => document.querySelector('#own .map-cell') !== null);
        assert.match(
          await factsOf(page),
          /^gpt2: 2 layers of 3 heads, 12 columns, 4,\d\d\d parameters\. Its weights take \d+ kB of memory as stored; the files have \d+ kB\.$/,
        );
        const rows = await page.$$eval('.own-row', (list) => list.map((row) => row.querySelectorAll('.own-cell').length));
        assert.deepEqual(rows, [3, 3], 'both layers and their heads are one picture');
        await openHead(page, 1, 2);
        await until(page, () => location.hash.includes('ownHead=2'));
        await until(page, () => document.querySelector('#own .own-map .map-cell').ariaLabel === 'head 2, query the, key the, 1.00');
        await openHead(page, 2, 3);
        await until(page, () => document.querySelector('#own [role=grid][aria-rowcount]').ariaLabel === 'Layer 2, head 3');
        await catchDownloads(page);
        const expected = firstLayer();
        (await savedNumbers(page)).forEach((numbers, head) => {
          assert.equal(numbers.length, 49);
          numbers.forEach((value, i) => assert.ok(Math.abs(value - expected[head][i]) < 1e-5, `head ${head + 1}, ${i}`));
        });
        await openHead(page, 1, 2);
        assert.equal(await press(page, '#own .own-map .save:first-child'), 'layer-1-head-2.png');
        const { width: across, height: down, ...ink } = await pictureSaved(page, ids.length);
        assert.ok(across >= 2 * 44 * 7 && down >= 2 * 44 * 7, `${across} × ${down}`);
        for (const [place, pixels] of Object.entries(ink)) assert.ok(pixels > 200, `${place}: ${pixels} pixels`);
        await page.$$eval('#own .segments button', (buttons) => buttons.find(({ textContent }) => textContent === 'Numbers').click());
        await until(page, () => document.querySelectorAll('#own .own-map table').length === 1);
        const written = await page.$$eval('#own .own-map tbody td', (cells) => cells.map(({ textContent }) => Number(textContent)));
        assert.equal(written.length, 49);
        written.forEach((value, i) => assert.ok(Math.abs(value - expected[1][i]) < 0.00051, `table, ${i}`));
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelectorAll('#own .own-map table').length === 0);

        await page.click('#own-continue');
        await until(page, () => /^24 new tokens; reading the text took .* with the cache\.$/.test(document.querySelector('#own-pace').textContent));
        assert.deepEqual(await page.$$eval('.own-token', (list) => list.length), 24);
        assert.equal(await page.$$eval('.own-likely li', (list) => list.length), 5);
        const shares = await page.$$eval('.own-likely .number', (list) => list.map(({ textContent }) => parseFloat(textContent)));
        assert.deepEqual(
          shares,
          [...shares].sort((a, b) => b - a),
        );
        await page.click('.own-tokens li:nth-child(3) button');
        assert.equal(await page.$eval('.own-continue .own-asked', (line) => line.textContent), 'Likeliest at new token 3');
        const [chosen, likeliest] = [
          await page.$eval('.own-tokens li:nth-child(3)', (item) => item.textContent),
          await page.$eval('.own-likely .word', (item) => item.textContent),
        ];
        assert.equal(chosen, likeliest);
        await setSentence(page, 'the cat');
        await until(page, () => document.querySelector('#own [role=grid][aria-rowcount]').ariaRowCount === '2');
        assert.equal(await page.$$eval('.own-token', (list) => list.length), 0, 'a continuation of another text is gone');
        assert.deepEqual([...origins], [new URL(url).origin], 'the weights stay here');

        await openHead(page, 2, 1);
        await until(page, () => document.querySelector('.own-kept').textContent.includes('asks for the files again'));
        await page.click('#own-keep');
        await until(page, () => /model\.safetensors is kept in this browser, \d+ kB/.test(document.querySelector('.own-kept').textContent));
        await page.reload();
        await settled(page);
        assert.match(await page.evaluate(() => location.hash), /model=model\.safetensors&ownLayer=2/);
        await until(page, () => document.querySelector('#own-open')?.checkVisibility());
        assert.equal((await page.$$('#own .own-cell')).length, 0, 'nothing is read unasked');
        await page.click('#own-open');
        await until(page, () => document.querySelector('#own .own-map [role=grid]')?.ariaLabel === 'Layer 2, head 1');
        assert.doesNotMatch(await factsOf(page), /no tokenizer/, 'the tokenizer is kept, too');
        await until(page, () => document.activeElement.ariaLabel === 'Layer 2, head 1');
        await page.evaluate(() => history.back());
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel !== 'Layer 2, head 1');
        await page.evaluate(() => history.forward());
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel === 'Layer 2, head 1');
        await page.click('#own-keep');
        await until(page, () => document.querySelector('#own-keep').textContent === 'Keep it in this browser');
        await page.reload();
        await settled(page);
        await until(page, () =>
          document.querySelector('.own-kept')?.textContent.startsWith('This address was made with a model named "model.safetensors"'),
        );
        assert.equal(
          await page.evaluate(async () => {
            const root = await navigator.storage.getDirectory();
            const names = [];
            for await (const name of root.keys()) names.push(name);
            return names.join();
          }),
          '',
          'no byte is left',
        );
        await close();
      }),
  },
  {
    name: 'a dropped model without a tokenizer reads numbers of tokens; another type of weights and a tokenizer open it again',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#${sentence}`);
        await drop(page, model({ 'tokenizer.json': null }));
        await mapShown(page);
        assert.match(await factsOf(page), /There is no tokenizer\.json, so the model reads numbers of tokens/);
        assert.equal(await page.$eval('[for=own-input]', (line) => line.textContent), 'Numbers of tokens for this model, 0 to 23');
        assert.equal(await page.$eval('#own .own-map [role=grid]', (grid) => grid.ariaRowCount), '8');
        await page.type('#own-input', '3 1 4');
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaRowCount === '3');
        await page.type('#own-input', ' 24');
        await until(page, () => document.querySelector('.own-status').textContent === 'This model knows the tokens from 0 to 23, not 24.');
        assert.equal(await page.$eval('.own-picture', ({ hidden }) => hidden), true);
        await page.$eval('#own-input', (field) => {
          field.value = 'the cat';
          field.dispatchEvent(new Event('input'));
        });
        await until(page, () => /^Without tokenizer\.json this model reads numbers/.test(document.querySelector('.own-status').textContent));
        await page.$eval('#own-input', (field) => {
          field.value = '';
          field.dispatchEvent(new Event('input'));
        });
        await until(
          page,
          () => document.querySelector('#own .own-map [role=grid]').ariaRowCount === '8' && document.querySelector('.own-status').textContent === '',
        );

        await page.select('#own-weights', 'int4');
        await until(page, () => /of memory as int4;/.test(document.querySelector('.own-facts').textContent));
        assert.match(await page.evaluate(() => location.hash), /model=model\.safetensors&ownWeights=int4/);
        await page.click('#undo');
        await until(page, () => /of memory as stored;/.test(document.querySelector('.own-facts').textContent));
        for (let back = 0; back < 6; back += 1) {
          await page.evaluate(() => history.back());
          await new Promise((done) => setTimeout(done, 50));
          if (!(await page.evaluate(() => location.hash.includes('model=')))) break;
        }
        await until(page, () => document.querySelector('.own-body').hidden);
        await page.evaluate(() => history.forward());
        await until(page, () => !document.querySelector('.own-body').hidden);
        await give(page, await write(model({ 'config.json': null, 'model.safetensors': null })));
        await until(
          page,
          () =>
            !/no tokenizer/.test(document.querySelector('.own-facts').textContent) &&
            document.querySelector('#own .own-map [role=grid]').ariaRowCount === '7',
        );

        assert.equal((await page.$$('#own .own-cell')).length, gpt2.layers * gpt2.heads);
        const twoHeads = JSON.stringify({ ...JSON.parse(gpt2Config), n_head: 2 });
        await drop(page, model({ 'tokenizer.json': null, 'config.json': twoHeads }));
        await until(page, `document.querySelectorAll('#own .own-cell').length === ${gpt2.layers * 2}`);

        const second = await page.browserContext().newPage();
        await second.goto(`${url}#${sentence}`);
        await settled(second);
        await give(second, await write(model(), 'second'));
        await mapShown(second);
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
    name: 'a folder with weights in several files opens as it is, chosen or dropped, and its heads are walked by keyboard',
    run: ({ browser, url }) =>
      withFiles(async (write, root) => {
        const { page, close } = await openPage(browser, `${url}#source=rules`, { fresh: true });
        const files = { ...goldenFiles('qwen3'), 'README.md': 'hello', 'onnx/config.json': '{}' };
        await write(files, 'My-Qwen');
        await (await page.$('#model-folder')).uploadFile(join(root, 'My-Qwen'));
        await mapShown(page);
        const { num_hidden_layers: layers, num_attention_heads: count } = JSON.parse(files['config.json']);
        assert.match(await factsOf(page), new RegExp(`^qwen3: ${layers} layers of ${count} heads, `));
        assert.match(await page.evaluate(() => location.hash), /model=My-Qwen/);
        const stops = () => page.$$eval('#own .own-cell[tabindex="0"]', (cells) => cells.map(({ ariaLabel }) => ariaLabel));
        assert.deepEqual(await stops(), ['Layer 1, head 1'], 'Tab reaches one picture');
        await page.focus('#own .own-cell[tabindex="0"]');
        for (const key of ['ArrowDown', 'ArrowRight', 'ArrowRight', 'ArrowLeft', 'End', 'ArrowUp', 'Home', 'ArrowUp', 'ArrowDown', 'ArrowRight'])
          await page.keyboard.press(key);
        assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), 'Layer 2, head 2');
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel === 'Layer 2, head 2');
        await new Promise((done) => setTimeout(done, 300));
        const work = await countWork(page);
        await page.keyboard.press('ArrowLeft');
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel === 'Layer 2, head 1');
        const { painted: maps, changes } = await work();
        assert.ok(maps <= 1 && changes < 120, `another head paints ${maps} maps and changes ${changes} elements`);
        const sizes = await page.$$eval('#own .own-strip', (list) => list.map((canvas) => `${canvas.width} × ${canvas.height}`));
        assert.deepEqual(
          sizes,
          Array.from({ length: layers }, () => `${8 * count} × 8`),
          'every head has its picture of 8 tokens',
        );

        await drop(page, goldenFiles('gemma3'), 'Dropped');
        await until(page, () => /^gemma3/.test(document.querySelector('.own-facts').textContent) && location.hash.includes('model=Dropped'));
        await page.click('#undo');
        await until(page, () => document.querySelector('.own-body').hidden);
        assert.match(await page.$eval('.own-kept', (line) => line.textContent), /made with a model named "My-Qwen"/);
        await close();
      }),
  },
  {
    name: 'a model of sentences shows how alike they are, and looks both ways',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#text=the+dog+sat`);
        const texts = ['the cat sat', 'the black dog sat', 'the cat sat'];
        await give(
          page,
          await write({ ...goldenFiles('bert'), 'tokenizer.json': wordTokenizer(['the', 'black', 'cat', 'sat', 'dog', 'on', 'mat']) }),
        );
        await mapShown(page);
        assert.deepEqual(await page.$$eval('#own-continue', (list) => list.map((button) => button.checkVisibility())), [false]);
        const label = await page.$eval('#own .own-map .map-cell:nth-child(2)', (cell) => cell.ariaLabel);
        assert.match(label, /^head 1, query \[CLS\], key the, \d\.\d\d$/, 'nothing is masked');
        await page.type('#own-sentences', texts.join('\n'));
        const numbers = () => page.$$eval('.own-similar td.number', (cells) => cells.map(({ textContent }) => Number(textContent.replace('−', '-'))));
        await eventually(async () => (await page.$$eval('.own-similar tbody th', (list) => list.length)) === 3);
        // Before its last letter is typed, the third text may have 1.00 with the first, but another number with the second.
        await eventually(async () => {
          const [, second, third, , , last] = await numbers();
          return third === 1 && last === second;
        });
        const all = await numbers();
        assert.equal(all.length, 9);
        for (const i of [0, 4, 8, 2, 6]) assert.equal(all[i], 1);
        assert.ok(all[1] < 1 && all[1] === all[3] && all[5] === all[1], all.join());
        assert.match(await page.evaluate(() => location.hash), /ownSentences=/);
        await page.reload();
        await settled(page);
        assert.match(await page.evaluate(() => location.hash), /ownSentences=/);
        await close();
      }),
  },
  {
    name: 'a model of pictures shows where its class token and its patches look, and the likeliest classes',
    essential: true,
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#source=rules`);
        await give(page, await write(goldenFiles('vit')));
        await mapShown(page);
        const grid = () =>
          page.$eval('#own .own-map [role=grid]', ({ ariaLabel, ariaRowCount, ariaColCount }) => [ariaLabel, ariaRowCount, ariaColCount].join());
        assert.equal(await grid(), 'Layer 1, head 1, where [class] looks,3,3', 'patches of 4 pixels in a picture of 12');
        assert.equal(await page.$$eval('.own-classes li', (list) => list.length), 4);
        assert.equal(await page.$eval('.own-field', (box) => box.checkVisibility()), false);
        const listed = () => page.$$eval('#own .own-map .map-cell', (list) => list.map(({ ariaLabel }) => ariaLabel).join());
        const drawn = await listed();
        assert.match(await page.$eval('#own .own-map .map-cell', (cell) => cell.ariaLabel), /^head 1, row 1, column 1, 0\.\d{3}$/);
        await page.focus('#own .own-map .map-cell');
        for (const key of ['ArrowDown', 'ArrowRight', 'Enter']) await page.keyboard.press(key);
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel === 'Layer 1, head 1, where patch 2, 2 looks');
        assert.match(await page.evaluate(() => location.hash), /ownQuery=6/);
        await page.click('#own-class-token');
        await until(page, () => document.querySelector('#own .own-map [role=grid]').ariaLabel === 'Layer 1, head 1, where [class] looks');
        // Another picture: half black, half white.
        const bytes = await page.evaluate(async () => {
          const canvas = new OffscreenCanvas(40, 40);
          const pen = canvas.getContext('2d');
          pen.fillRect(0, 0, 40, 40);
          pen.fillStyle = 'white';
          pen.fillRect(0, 0, 20, 40);
          const blob = await canvas.convertToBlob();
          return [...new Uint8Array(await blob.arrayBuffer())];
        });
        await (await page.$('#own-picture')).uploadFile(...(await write({ 'half.png': Uint8Array.from(bytes) })));
        await eventually(async () => (await listed()) !== drawn, 'other weights');
        assert.equal(
          await page.$eval('.own-preview', (canvas) => [...canvas.getContext('2d').getImageData(20, 100, 1, 1).data].join()),
          '255,255,255,255',
        );
        await (await page.$('#own-picture')).uploadFile(...(await write({ 'broken.png': 'hello' })));
        await until(page, () => /^The browser cannot read this picture: /.test(document.querySelector('.own-picture-box [role=status]').textContent));
        assert.deepEqual(await seriousFindings(page, '#own'), []);
        await close();
      }),
  },
  {
    name: 'while a model is read a bar says how far, and a button stops it; the page stays as it was',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await slowServer();
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        await give(page, await write(model(), 'small'));
        await mapShown(page);
        const before = await page.$eval('#own .own-map [role=grid]', (grid) => grid.ariaRowCount);
        // A vocabulary of 32 MB is read in several pieces.
        const large = { ...tensors, 'wte.weight': { shape: [700_000, width], data: new Float32Array(700_000 * width) } };
        const config = JSON.stringify({ ...JSON.parse(gpt2Config), vocab_size: 700_000 });
        const paths = await write({ 'config.json': config, 'large.safetensors': safetensors(large) }, 'large');
        await give(page, paths);
        await until(
          page,
          () => document.querySelector('.own-progress').value > 0 && /^\d+ MB of 34 MB$/.test(document.querySelector('.own-loaded').textContent),
        );
        await page.$eval('#own-abort', (button) => {
          button.focus();
          button.click();
        });
        await until(
          page,
          () => document.querySelector('.own-status').textContent === 'Stopped: large.safetensors was not opened. Your earlier model stays open.',
        );
        assert.equal(await page.$eval('.own-loading', ({ hidden }) => hidden), true);
        assert.equal(await page.evaluate(() => document.activeElement.id), 'model-files', 'the focus is not lost');
        assert.equal(await page.$eval('#own .own-map [role=grid]', (grid) => grid.ariaRowCount), before);
        // Another choice takes the place of a model that is being read.
        await give(page, paths);
        await until(page, () => document.querySelector('.own-progress').value > 0);
        await give(page, await write(model({ 'tokenizer.json': null }), 'other'));
        await until(
          page,
          () => /no tokenizer/.test(document.querySelector('.own-facts').textContent) && document.querySelector('.own-status').textContent === '',
        );
        await until(page, () => document.querySelector('.own-loading').hidden);
        await close();
        await server.close();
      }),
  },
  {
    name: 'a model that does not fit into the memory is refused before it is read, with a type of weights that would fit',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#source=rules`);
        // The GPT-2 with 64 columns and a large vocabulary.
        const tokens = 100_000_000;
        const wider = new Map([
          [width, 64],
          [3 * width, 3 * 64],
          [4 * width, 4 * 64],
          [vocabulary, tokens],
        ]);
        const shapes = Object.fromEntries(
          Object.entries(tensors).map(([name, { shape }]) => [name, shape.map((extent) => wider.get(extent) ?? extent)]),
        );
        const { header, bytes } = safetensorsHeader(shapes);
        const config = JSON.stringify({ ...JSON.parse(gpt2Config), n_embd: 64, n_head: 4, vocab_size: tokens });
        const paths = await write({ 'config.json': config, 'huge.safetensors': header });
        // A file with a hole, which takes no room on the disk.
        await truncate(paths[1], bytes);
        await give(page, paths);
        const said = (text) => eventually(async () => (await statusOf(page)) === text, text);
        const needs = (size) =>
          `huge.safetensors needs more memory than this page gets: weights: the model needs ${size} MiB for the weights, and WebAssembly has at most 4095 MiB; weights: 'int4' would fit`;
        // 6.4 billion weights: 34 bytes for 32 of them as int8, which is chosen for files above 100 MB, and 128 as f32.
        await said(needs(6485));
        await page.select('#own-weights', 'f32');
        await said(needs(24414));
        assert.equal(await page.$eval('.own-body', ({ hidden }) => hidden), true);
        await page.select('#own-weights', 'auto');
        await give(page, await write(model(), 'small'));
        await mapShown(page);
        await give(page, paths);
        await said(`${needs(6485)}. The model that is open takes 18 kB of it. Your earlier model stays open.`);
        await close();
      }),
  },
  {
    name: 'the worker of a model ends while it reads the file or a sentence: the page says so, and the next file opens',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await startBrokenServer(async (folder, assets) => {
          const file = join(
            folder,
            'assets',
            assets.find((name) => /^model_worker.*\.js$/.test(name)),
          );
          const end = `addEventListener('message', (event) => {
            const [given] = event.data.values;
            if (!String(given?.name ?? given).includes('fatal')) return;
            event.stopImmediatePropagation();
            setTimeout(close, 300);
          });`;
          await writeFile(file, `${end}\n${await readFile(file, 'utf8')}`);
        });
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        const good = await write(model());
        await give(page, await write(model({ 'model.safetensors': null, 'fatal.safetensors': safetensors(tensors) }), 'fatal'));
        await until(page, () => /^fatal\.safetensors cannot be used: its worker has ended/.test(document.querySelector('.own-status').textContent));
        assert.equal(await page.$eval('.own-loading', ({ hidden }) => hidden), true);
        await give(page, good);
        await mapShown(page);
        await setSentence(page, 'a fatal sentence');
        await until(page, () => /worker of model\.safetensors has ended/.test(document.querySelector('.own-status').textContent));
        assert.equal(await page.$eval('.own-body', ({ hidden }) => hidden), true);
        assert.equal(await page.$eval('#sentence', ({ value }) => value), 'a fatal sentence');
        await setSentence(page, 'the mat');
        await give(page, good);
        await mapShown(page);
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
        await give(page, await write(model()));
        await until(page, () => /^A file of this page did not arrive\./.test(document.querySelector('.own-status').textContent));
        await page.click('#run-speed');
        await until(page, () => /^The measurement could not start: /.test(document.querySelector('.speed-controls [role=status]').textContent));
        await setSentence(page, 'another one');
        assert.deepEqual((await snapshot(page)).tokens, ['another', 'one']);
        await close({ expected: /404|Failed to load|error loading|MIME|dynamically imported/i });
        await server.close();
      }),
  },
  {
    name: 'the little Llama: fetched when chosen, its heads, sorted too, and likeliest tokens, and without a network',
    async run({ browser }) {
      const server = await startServer();
      const { page, origins, close } = await openPage(browser, server.url);
      await offlineCopyReady(page);
      const ofEnglish = () => server.requested.filter((path) => path.startsWith('/english/'));
      assert.deepEqual(ofEnglish(), [], 'nothing of it is fetched unasked');
      const tryIt = async () => {
        await page.$eval('#own-english', (button) => button.click());
        await mapShown(page);
      };
      await tryIt();
      assert.deepEqual(
        ofEnglish().sort(),
        ['config.json', 'heads.json', 'model.safetensors', 'tokenizer.json'].map((name) => `/english/${name}`),
      );
      assert.match(await factsOf(page), /^llama: 2 layers of 4 heads, /);
      const rows = await page.$$eval('.own-row', (list) => list.map((row) => row.querySelectorAll('.own-cell').length));
      assert.deepEqual(rows, [4, 4]);

      // Heads sorted by what they do: the first is the one with most weight on the token before, and a press opens it.
      assert.match(await page.$eval('.own-about', (about) => about.textContent), /Trained with this library on 1\.1 million tokens/);
      await page.$$eval('.own-sort button', (list) => list.find(({ textContent }) => textContent === 'Token before').click());
      await until(page, () => /^Heads by the weight on the token before/.test(document.querySelector('.own-overview .hint').textContent));
      const sorted = await page.$$eval('.own-cell', (list) => list.map(({ ariaLabel }) => ariaLabel));
      const percents = sorted.map((label) => Number(/^Layer \d, head \d: (\d+)\u00a0%$/.exec(label)[1]));
      assert.equal(percents.length, 8);
      assert.deepEqual(
        percents,
        [...percents].sort((a, b) => b - a),
      );
      await page.$$eval('.own-cell', (list) => list[0].click());
      await eventually(async () => sorted[0].startsWith(await page.$eval('#own [role=grid][aria-rowcount]', (map) => map.ariaLabel)));

      const tokensOf = () => page.$$eval('.own-token', (list) => list.map(({ textContent }) => textContent));
      const continued = async () => {
        await page.$eval('#own-continue', (button) => button.click());
        await until(page, () => /^24 new tokens; /.test(document.querySelector('#own-pace').textContent));
        return tokensOf();
      };
      const first = await continued();
      assert.equal(await page.$$eval('.own-likely li', (list) => list.length), 5);
      const widths = await page.$$eval('.own-likely .effect-bar > *', (list) => list.map((bar) => bar.getBoundingClientRect().width));
      assert.ok(widths.length === 5 && widths[0] > 0, widths.join(' '));
      assert.deepEqual(
        widths,
        [...widths].sort((a, b) => b - a),
      );

      assert.deepEqual(await seriousFindings(page, '#own'), []);
      await setViewport(page, { width: 360, height: 740 });
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing scrolls sideways');

      // A text of the visitor's own.
      await page.$eval('#own-input', (field) => {
        field.value = 'She was';
        field.dispatchEvent(new Event('input', { bubbles: true }));
      });
      await until(page, () => document.querySelector('#own [role=grid][aria-rowcount]').ariaRowCount === '2');
      const second = await continued();
      assert.notDeepEqual(second, first);
      assert.deepEqual([...origins], [new URL(server.url).origin]);

      await eventually(async () => {
        const kept = await page.evaluate(async () => {
          const caught = await Promise.all((await caches.keys()).map(async (name) => (await caches.open(name)).keys()));
          return caught.flat().filter(({ url }) => url.includes('/english/')).length;
        });
        return kept === 4;
      });
      const looksInside = async () => {
        await page.$eval('.lab-place', (place) => place.scrollIntoView());
        await until(page, () => document.querySelector('.lab-lens .map-cell') !== null);
      };
      await looksInside();
      await server.close();
      await page.reload();
      await settled(page);
      // The address names it, so that it opens by itself.
      await mapShown(page);
      assert.deepEqual(await continued(), second, 'with the same text');
      await looksInside();
      await close({ expected: /ERR_CONNECTION_REFUSED|Failed to load resource/ });
    },
  },
  {
    name: 'what runs a model is kept for use without a network before the first model',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await startServer();
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        await offlineCopyReady(page);
        const isOfModels = (path) => /multihead-models-.*\.wasm|models?_worker|tokenizers/.test(path);
        const kept = await page.evaluate(async () => {
          const [name] = await caches.keys();
          return (await (await caches.open(name)).keys()).map(({ url }) => url);
        });
        assert.equal(kept.filter(isOfModels).length, 4, 'one of the two builds of the WebAssembly, two workers and the tokenizer');
        await server.close();
        await page.reload();
        await settled(page);
        await give(page, await write(model()));
        await mapShown(page);
        await close({ expected: /ERR_CONNECTION_REFUSED|Failed to load resource/ });
      }),
  },
  {
    name: 'without a network and without a copy, a model is not opened, and the page says why',
    run: ({ browser }) =>
      withFiles(async (write) => {
        const server = await startBrokenServer(async (folder, assets) => {
          for (const name of assets) if (/^multihead-models-.*\.wasm$/.test(name)) await rm(join(folder, 'assets', name));
        });
        const { page, close } = await openPage(browser, `${server.url}#${sentence}`);
        await give(page, await write(model()));
        await until(page, () => document.querySelector('.own-status').textContent.startsWith('A file of this page did not arrive.'));
        await close({ expected: /404|Failed to load/i });
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
        /^This address was made with a model named "Your session has expired\\", log in at evi…", which is not part of it:/,
      );
      await close();
    },
  },
  {
    name: 'files that are no model, corrupt, incomplete or contradictory: the page says so in a sentence and goes on',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#${sentence}`);
        const whole = safetensors(tensors);
        let count = 0;
        /** Gives files and checks the page's answer. */
        const say = async (contents, pattern) => {
          await page.$eval('.own-status', (line) => (line.textContent = ''));
          await give(page, await write(contents, String((count += 1))));
          await eventually(async () => !/^(Reading .*)?$/.test(await statusOf(page)), `an answer to ${Object.keys(contents)}`);
          assert.match(await statusOf(page), pattern);
        };
        await say(
          { 'notes.txt': 'hello' },
          /^There is no file of a model among notes\.txt\. Choose config\.json and \.safetensors, or a \.gguf file\.$/,
        );
        await say({ 'cut.safetensors': whole.subarray(0, 999) }, /^cut\.safetensors needs config\.json too\. Choose it, or the whole folder\.$/);
        await say({ 'config.json': gpt2Config }, /^cut\.safetensors cannot be used: /);
        await say({ 'config.json': gpt2Config, 'short.safetensors': whole.subarray(0, whole.length - 99) }, /^short\.safetensors cannot be used: /);
        const other = safetensors({ weight: tensors['ln_f.bias'] });
        await say(
          { 'config.json': gpt2Config, 'other.safetensors': other },
          /^other\.safetensors cannot be used: weights: expected the tensors of gpt2, got /,
        );
        await say(
          { 'config.json': '{"model_type":"mamba"}', 'a.safetensors': whole },
          /^a\.safetensors cannot be used: config\.json: model_type: expected one of .*, got "mamba"$/,
        );
        await say({ 'config.json': 'hello', 'a.safetensors': whole }, /^a\.safetensors cannot be used: config\.json: /);
        const { 'model-00003-of-00003.safetensors': _, ...rest } = goldenFiles('qwen3');
        await say(rest, /^model-00003-of-00003\.safetensors is missing\. Choose all files of the model together\.$/);
        await say(model({ 'tokenizer.json': '{"model":{}}' }), /^model\.safetensors cannot be used: tokenizer\.json: /);
        const foreign = wordTokenizer(['the', 'black', ...Array.from({ length: 30 }, (__, i) => `w${i}`), 'cat', 'sat', 'on', 'mat']);
        await say(
          model({ 'tokenizer.json': foreign }),
          /^tokenizer\.json is of another model: it has a token \d+, and this model knows those from 0 to 23\.$/,
        );
        await drop(page, Object.fromEntries(Array.from({ length: 522 }, (__, i) => [`${i}\u202e.txt`, 'x'])));
        await until(page, () =>
          /^There is no file of a model among 0\\u202e\.txt, 1\\u202e\.txt, .*, 9\\u202e\.txt and 512 more\. /.test(
            document.querySelector('.own-status').textContent,
          ),
        );
        await drop(page, { 'config.json': gpt2Config, [`x\n\u202e${'y'.repeat(1000)}.safetensors`]: 'x' });
        await until(page, () => /^x\\u000a\\u202ey{77}… cannot be used: /.test(document.querySelector('.own-status').textContent));
        const name = 'y\n'.repeat(500_000);
        const header = Buffer.from(JSON.stringify({ [name]: { dtype: 'Q9' } }));
        const length = Buffer.alloc(8);
        length.writeBigUInt64LE(BigInt(header.length));
        await say(
          { 'config.json': gpt2Config, 'names.safetensors': Buffer.concat([length, header]) },
          /^names\.safetensors cannot be used: (y\\u000a)+[y\\u0]*…: expected a dtype of .{0,300}$/,
        );

        const good = await write(model(), 'good');
        await give(page, good);
        await mapShown(page);
        await Promise.all(good.map((path) => rm(path)));
        await page.select('#own-weights', 'f16');
        await until(page, () =>
          /^The browser could not read the files of model\.safetensors: .* Your earlier model stays open\.$/.test(
            document.querySelector('.own-status').textContent,
          ),
        );
        await page.click('#undo');
        await until(page, () => !location.hash.includes('ownWeights'));
        await page.evaluate(() => {
          FileSystemFileHandle.prototype.createWritable = () => Promise.reject(new DOMException('full', 'QuotaExceededError'));
        });
        await page.click('#own-keep');
        await until(page, () => /cannot keep the files: it has too little room/.test(document.querySelector('.own-kept').textContent));
        assert.equal(await page.$eval('#own-keep', (button) => button.textContent), 'Keep it in this browser');
        await say(
          { 'config.json': gpt2Config, 'bad.safetensors': whole.subarray(0, 999) },
          /^bad\.safetensors cannot be used: .* Your earlier model stays open\.$/,
        );
        assert.equal((await page.$$('#own .own-cell')).length, 6);
        const damaged = { ...tensors, 'h.1.ln_1.weight': { shape: [width], data: new Float32Array(width).fill(NaN) } };
        await say(
          model({ 'model.safetensors': safetensors(damaged) }),
          /^From layer 2 on this model computes no numbers \(NaN\): its file is damaged\.$/,
        );
        assert.equal(await page.$eval('.own-picture', ({ hidden }) => hidden), true);
        await close();
      }),
  },
  ...['light', 'dark'].map((scheme) => ({
    name: `an open model is whole at 320 to 1280 px, has nothing serious for axe-core, and prints without its buttons, ${scheme}`,
    thorough: scheme === 'light',
    run: ({ browser, url }) =>
      withFiles(async (write) => {
        const { page, close } = await openPage(browser, `${url}#${sentence}`, { scheme });
        await give(page, await write(model()));
        await mapShown(page);
        await page.click('#own-continue');
        await until(page, () => /^24 new/.test(document.querySelector('#own-pace').textContent));
        for (const across of [320, 360, 768, 1280]) {
          await setViewport(page, { width: across, height: 800 });
          const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(over <= 0, `${across} px: the page is ${over} px too wide`);
          const small = await page.$$eval('#own :is(button, select)', (list) =>
            list
              .filter((button) => button.checkVisibility() && Math.min(button.offsetWidth, button.offsetHeight) < 24)
              .map(({ className }) => className),
          );
          assert.deepEqual(small, [], `${across} px`);
        }
        assert.deepEqual(await seriousFindings(page, '#own'), []);
        await give(page, await write({ ...goldenFiles('bert'), 'tokenizer.json': wordTokenizer(['the', 'black', 'cat']) }, 'bert'));
        await until(page, () => document.querySelectorAll('.own-similar tbody tr').length === 3);
        assert.deepEqual(await seriousFindings(page, '#own'), []);
        await page.emulateMediaType('print');
        await until(page, () => matchMedia('print').matches);
        const shown = (selector) => page.$$eval(`#own ${selector}`, (list) => list.filter((element) => element.checkVisibility()).length);
        assert.deepEqual([await shown('.own-grid'), await shown('.own-map .map canvas'), await shown('.own-similar')], [1, 1, 1]);
        assert.deepEqual([await shown('.secondary'), await shown('.drop-zone'), await shown('progress'), await shown('select')], [0, 0, 0, 0]);
        await close();
      }),
  })),
];
