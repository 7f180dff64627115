// The switch "Heads: hand-built, trained here, your model" changes every section that shows heads. If the chosen heads do not
// exist, it gives the reason.

import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { seriousFindings } from './axe.mjs';
import { openPage, setSentence, settled, until } from './harness.mjs';
import { mapShown } from './own_model.tests.mjs';
import { bytePairTokenizer, gpt2, gpt2Config, gpt2Tensors, goldenFiles, safetensors } from './small_models.mjs';

const lineOf = (page) => page.$eval('#source-line', ({ textContent }) => textContent);
const pressed = (page) => page.$$eval('.source button[aria-pressed=true]', (buttons) => buttons.map(({ id }) => id).join());
const choose = async (page, source) => {
  await page.$eval(`#source-${source}`, (button) => button.click());
  await settled(page);
};

/** Returns the names, numbers and texts about the heads, from every section that follows the switch. */
const seen = (page) =>
  page.evaluate(() => {
    const texts = (selector) => [...document.querySelectorAll(selector)].map(({ textContent }) => textContent);
    return {
      words: texts('.token'),
      maps: texts('.live-name'),
      arcs: document.querySelectorAll('.arc').length,
      shapes: texts('.step-shape').join(' '),
      gallery: texts('button.card-title').map((title) => title.replace(/^\d+Head \d+: /, '')),
      bend: texts('#step-detail .head-name').join(),
      mutes: document.querySelectorAll('.mutes button').length,
      program: document.querySelector('#use-it code').textContent,
      rules: !document.querySelector('.choice').hidden,
    };
  });

async function train(page, { steps = 20 } = {}) {
  const once = async (step) => {
    await page.click('#train-step');
    for (let at = -1; at < step;) at = await page.evaluate(() => window.multiheadPage.training().step);
  };
  for (let step = 1; step <= steps; step += 1) await once(step);
}

/** Gives the page the files of a model. The returned function deletes them. */
async function openModel(page, files) {
  const folder = await mkdtemp(join(tmpdir(), 'multihead-heads-'));
  const paths = [];
  for (const [name, content] of Object.entries(files)) {
    paths.push(join(folder, name));
    await writeFile(paths.at(-1), content);
  }
  await (await page.$('#model-files')).uploadFile(...paths);
  await mapShown(page);
  return () => rm(folder, { recursive: true });
}
const words = ['the', ' black', ' cat', ' sat', ' on', ' the', ' mat'];
const small = {
  'config.json': gpt2Config,
  'model.safetensors': safetensors(gpt2Tensors()),
  'tokenizer.json': bytePairTokenizer(words, gpt2.vocabulary),
};

export const tests = [
  {
    name: 'heads: a source without heads stays disabled, and a sentence says how to get some',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=trained`);
      assert.match(await lineOf(page), /^No heads are trained here yet, so these heads are hand-built\. Train below first\.$/);
      assert.equal(await pressed(page), 'source-rules');
      const before = await seen(page);
      assert.deepEqual([before.words.length, before.rules], [8, true]);
      const disabled = await page.$$eval('.source button[aria-disabled=true]', (buttons) => buttons.map(({ id }) => id).join());
      assert.equal(disabled, 'source-trained,source-model');
      await page.focus('#source-model');
      await page.keyboard.press('Enter');
      assert.match(await lineOf(page), /^No model is open, so these heads are hand-built\. Open one below\.$/);
      assert.equal(await page.evaluate(() => location.hash), '#source=trained', 'a disabled choice changes nothing');
      assert.equal(await page.$eval('#bar-source', (list) => [...list.options].map(({ disabled: off }) => Number(off)).join('')), '0011');
      await page.click('#source-line a');
      await until(page, () => document.activeElement.id === 'own');
      await close();
    },
  },
  {
    name: 'heads: heads trained here drive arcs, maps, steps, gallery, bend and program; Undo goes back to the hand-built ones',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#text=I+saw+the+dog+and+the+dog+ran+`);
      const before = await seen(page);
      await page.$eval('#train', (section) => section.scrollIntoView());
      await train(page);
      assert.equal(await pressed(page), 'source-rules', 'training alone changes nothing above');
      await page.$eval('#train-watch', (button) => button.click());
      await until(page, () => document.querySelector('#source-trained').getAttribute('aria-pressed') === 'true');
      await settled(page);
      assert.equal(await page.evaluate(() => document.activeElement.id), 'your-sentence');
      const letters = [...'isathedogandthedogran'];
      const after = await seen(page);
      assert.deepEqual(
        after.words.map((word) => word.replace(/[₀-₉]+$/, '')),
        letters,
      );
      assert.match(await lineOf(page), /^Trained here for 20 steps\. They read letters: the 21 of your sentence that they know/);
      assert.deepEqual([before.maps[0], after.maps.length, after.gallery], ['Previous word', 4, after.maps]);
      assert.ok(after.arcs > 0);
      assert.match(after.shapes, /^\(1, 21, 64\).*\(1, 4, 21, 16\)/);
      assert.deepEqual([after.mutes, after.rules], [4, false]);
      assert.match(after.program, /bias: false, rope: \{ style: 'half', base: 10000 \}/);
      assert.match(after.program, /each of the 21 keys/);
      // The step of x, and a cell of q turned by its position.
      assert.match(await page.$eval('.layer.is-current .step-text', ({ textContent }) => textContent), /the state h before layer 1/);
      // Muting, the window and the mask work on these heads, too.
      await page.$$eval('.mutes button', ([first]) => first.click());
      await settled(page);
      const muted = await page.evaluate(() => {
        const { bend, trace } = window.multiheadPage.snapshot();
        return [bend.muted.join(), trace.merged.data.subarray(0, 16).every((value) => value === 0)];
      });
      assert.deepEqual(muted, ['0', true]);
      await setSentence(page, '你好');
      await until(page, () => /a training sequence/.test(document.querySelector('#source-line').textContent));
      assert.equal((await seen(page)).words.length, 32);
      for (let i = 0; i < 3; i += 1) {
        await page.click('#undo');
      }
      await until(page, () => !location.hash.includes('source'));
      await settled(page);
      assert.deepEqual(await seen(page), before);
      await page.click('#redo');
      await until(page, () => location.hash.includes('source=trained'));
      await settled(page);
      assert.equal(await pressed(page), 'source-trained');
      // Another run has no heads yet.
      await page.$eval('#train-another-seed', (button) => button.click()); // the page may move under a pointer
      await until(page, () => /^No heads are trained here yet/.test(document.querySelector('#source-line').textContent));
      await settled(page);
      assert.deepEqual((await seen(page)).maps, before.maps);
      await close();
    },
  },
  {
    name: 'heads: both layers of an induction run, chosen by number',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#train=induction`);
      await page.$eval('#train', (section) => section.scrollIntoView());
      await train(page, { steps: 2 });
      await choose(page, 'trained');
      const now = () => page.evaluate(() => window.multiheadPage.snapshot().given.layer);
      assert.deepEqual([await now(), (await seen(page)).words[0]], [1, 'I']);
      await page.select('#source-layer', '0');
      await settled(page);
      assert.equal(await now(), 0);
      assert.match(await page.evaluate(() => location.hash), /trainLayer=1/);
      await page.click('#undo');
      await until(page, () => !location.hash.includes('trainLayer'));
      await settled(page);
      assert.equal(await now(), 1);
      await close();
    },
  },
  {
    name: 'heads: the model that the visitor opened drives every section, with the layer that its own section shows',
    essential: true,
    async run({ browser, url }) {
      const { page, complaints, close } = await openPage(browser, `${url}#text=the+black+cat+sat+on+the+mat`);
      const remove = await openModel(page, small);
      await choose(page, 'model');
      assert.match(await page.$eval('#sentence', ({ value }) => value), /^When Mary and John went to the store/, 'a text of its own');
      await setSentence(page, 'the black cat sat on the mat');
      const shown = await seen(page);
      assert.deepEqual(shown.words, ['the', '·black', '·cat', '·sat', '·on', '·the', '·mat']);
      assert.deepEqual(shown.maps, ['head 1', 'head 2', 'head 3']);
      assert.match(await lineOf(page), /^Layer 1 of .*, on your sentence in its own tokens\.$/);
      assert.match(shown.shapes, /^\(1, 7, 12\).*\(1, 3, 7, 4\)/);
      assert.match(shown.program, /embedDim: 12, numHeads: 3, headDim: 4, bias: true/);
      // The layer of the picture below is the layer above.
      await page.$eval('#own .own-row:nth-child(2) .own-cell:nth-of-type(1)', (cell) => cell.click());
      await settled(page);
      assert.equal(await page.$eval('#source-layer', ({ value }) => value), '1');
      assert.match(await lineOf(page), /^Layer 2 of /);
      // The weights of another layer are read from files that are no longer there.
      await remove();
      await page.select('#source-layer', '0');
      await settled(page);
      assert.match(await lineOf(page), /^The files of the model can no longer be read, so these heads are hand-built\. Open one below\.$/);
      assert.equal((await seen(page)).maps[0], 'Previous word');
      await page.click('#undo');
      await until(page, () => location.hash.includes('ownLayer=2'));
      await settled(page);
      assert.equal(await pressed(page), 'source-model');
      assert.deepEqual(complaints, []);
      await close();
    },
  },
  {
    name: 'heads: the little Llama drives the first screen; a link that names it opens it, with its layer and text',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const rules = await seen(page);
      await page.$eval('#own-english', (button) => button.click());
      await mapShown(page);
      await choose(page, 'model');
      // It brings its own text, its second layer and the words that it would write next.
      assert.match(await lineOf(page), /^Layer 2 of the little Llama/);
      assert.match((await seen(page)).words.join(''), /^·Emma·walked/);
      const text = () => page.$eval('#sentence', ({ value }) => value);
      const bars = () => page.$$eval('.next:not([hidden]) .next-word', (list) => list.map(({ textContent }) => textContent));
      assert.equal(await page.$eval('.preset:not([hidden]):not(.is-own)', ({ textContent }) => textContent), await text());
      const nexts = await bars();
      const [next] = nexts;
      assert.match(next, /^·[A-Z]/, 'a name');
      const before = await text();
      await page.click('.next-bar');
      await settled(page);
      assert.equal(await text(), before + next.replace('·', ' '));
      assert.notDeepEqual(await bars(), nexts, 'the next ones follow');
      await page.click('#undo');
      await settled(page);
      await choose(page, 'rules');
      assert.deepEqual((await seen(page)).words, rules.words, 'hand-built heads have their example again');
      await page.goto('about:blank');
      await page.goto(`${url}#source=model&model=small+English+model&ownLayer=1&causal=1&text=She+was+very+glad+to+see+her`);
      await until(page, () => document.querySelector('#source-line')?.textContent.startsWith('Layer 1 of the little Llama'));
      await settled(page);
      const shown = await seen(page);
      assert.deepEqual([rules.maps[0], shown.maps], ['Previous word', ['head 1', 'head 2', 'head 3', 'head 4']]);
      assert.equal(shown.words.map((word) => word.replace('·', '')).join(' '), 'She was very glad to see her');
      assert.match(shown.shapes, /\(1, 7, 96\).*\(1, 4, 7, 24\)/);
      assert.match(shown.program, /embedDim: 96, numHeads: 4, headDim: 24, bias: false, rope: \{ style: 'half', base: 10000 \}/);
      await page.select('#source-layer', '1');
      await settled(page);
      assert.match(await lineOf(page), /^Layer 2 of the little Llama/);
      await close();
    },
  },
  {
    name: 'heads: a model whose heads the steps cannot follow stays in its section, and a sentence says so',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`);
      const remove = await openModel(page, goldenFiles('bert'));
      await page.$eval('#source-model', (button) => button.click());
      assert.match(await lineOf(page), /^A model of the type bert shows its heads in “Your own model” only; the steps follow GPT-2/);
      assert.equal(await pressed(page), 'source-rules');
      await remove();
      await close();
    },
  },
  {
    name: 'heads: the switch by keyboard at 360 px: nothing serious for axe, nothing sideways, and the focus stays',
    async run({ browser, url }) {
      const { page, close } = await openPage(browser, `${url}#source=rules`, { width: 360, height: 740 });
      await page.$eval('#train', (section) => section.scrollIntoView());
      await train(page, { steps: 3 });
      await page.evaluate(() => scrollTo(0, 0));
      await settled(page);
      await page.focus('#source-rules');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      await settled(page);
      assert.equal(await page.evaluate(() => document.activeElement.id), 'source-trained');
      assert.equal(await pressed(page), 'source-trained');
      assert.deepEqual(await seriousFindings(page, '#your-sentence', '.top'), []);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth), 0);
      await close();
    },
  },
];
