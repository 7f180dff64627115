// `npm run train-english`: reading the text and the vocabulary, and a short training that makes a folder which opens.
//
//   node --test tests/native/train_english.test.mjs        after a build

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { deflateSync, gzipSync } from 'node:zlib';
import { load } from '../../bindings/dist/index_node.js';
import { openModel } from '../../bindings/dist/models_node.js';
import { makeModel } from '../../native/dev/english/make_model.mjs';
import { rateAt, windows } from '../../native/dev/english/model.mjs';
import { openDatabase } from '../../native/dev/english/r_database.mjs';
import { paragraphsOf, split } from '../../native/dev/english/text.mjs';
import { encoded, joined, learnPairs } from '../../native/dev/english/vocabulary.mjs';
import { pageModule } from '../../native/dev/english/words.mjs';

const words = ['the cat', 'a dog', 'the old mouse', 'my aunt', 'saw', 'followed', 'did not see', 'the house', 'the café', 'a bird'];
const sentences = (count, seed) =>
  Array.from({ length: count }, (_, i) => {
    const pick = (from, to, step) => words[from + ((i * step + seed) % (to - from))];
    return `"${pick(0, 4, 3)} ${pick(4, 7, 5)} ${pick(7, 10, 7)}," said ${pick(0, 4, 11)}.`;
  });
const text = { version: '1', training: sentences(400, 1), heldOut: sentences(60, 3) };

test('a few steps lower the loss, and the folder opens, continues a text, and says what its heads do', async (t) => {
  const losses = [];
  const say = (line) => /^ +\d+ +\d/.test(line) && losses.push(Number(line.trim().split(/ +/)[2]));
  const options = { text, every: 10, recipe: { vocabulary: 300, steps: 20, batch: 2, warmupSteps: 5, decaySteps: 5 } };
  const files = await makeModel({ ...options, say });
  assert.equal(losses.length, 2);
  assert.ok(losses[1] < losses[0] && losses[1] < Math.log(300) - 1, `held out: ${losses}`);

  const folder = mkdtempSync(join(tmpdir(), 'multihead-english-'));
  t.after(() => rmSync(folder, { recursive: true }));
  for (const [name, content] of Object.entries(files)) writeFileSync(join(folder, name), content);
  const model = await openModel(folder);
  t.after(() => model.dispose());
  assert.deepEqual([model.info.modelType, model.info.vocabSize, model.info.numLayers, model.info.numHeads], ['llama', 300, 2, 4]);
  const next = [];
  for await (const { text: part } of model.generate('"the cat saw', { maxNewTokens: 4 })) next.push(part);
  assert.equal(next.length, 4);

  const { ids } = await model.encode(text.heldOut[0]);
  const pairs = learnPairs(joined(text.training), 300);
  assert.deepEqual([...encoded(` ${text.heldOut[0]}`, pairs)], [...ids], 'tokenizer.json gives the tokens of the training');
  const { heads, chance, heldOut } = JSON.parse(files['heads.json']);
  assert.equal(heads.length, 8);
  for (const scores of [chance, ...heads]) {
    for (const name of ['previous', 'first', 'itself', 'punctuation', 'induction']) assert.ok(scores[name] > 0 && scores[name] < 1, name);
  }
  assert.ok(Math.abs(Math.exp(heldOut.loss) - heldOut.perplexity) < 0.01 * heldOut.perplexity);
  assert.match(files['README.md'], /public domain[^]*\| layer 2, head 4 \|/);

  const again = await makeModel(options);
  assert.deepEqual(again['model.safetensors'], files['model.safetensors'], 'the same seed gives the same bits');
  const other = await makeModel({ ...options, recipe: { ...options.recipe, seed: 2 } });
  assert.notDeepEqual(other['model.safetensors'], files['model.safetensors']);
});

test('the words model: rounded weights, measured before and after, in a file that gives the same predictions in the page', async () => {
  const recipe = { vocabulary: 40, embedDim: 16, steps: 40, batch: 4, context: 16, warmupSteps: 5, decaySteps: 20, roundedSteps: 20 };
  const files = await makeModel({ text, kind: 'words', recipe, every: 40 });
  const { heads, unrounded, heldOut } = JSON.parse(files['heads.json']);
  assert.deepEqual([heads.length, unrounded.heads.length], [8, 8]);
  assert.ok(Math.abs(heldOut.loss - unrounded.loss) < 0.5, 'rounding costs little, because the training has seen it');
  assert.match(files['README.md'], /five levels[^]*It predicts/);
  const { names, lines } = JSON.parse(files['novels.txt'].split('\n')[0]);
  assert.deepEqual([names.length, lines.length], [8, 8]);
  assert.match(lines[7], /^\d.* % of its weight is on .* \(equal weights: .* %\)$/);

  // The page's own code reads the file. Both of its ways to the next word, from either layer, agree with the README's.
  const { createNovels } = await pageModule('attention/novels.ts');
  const mh = await load();
  const novels = createNovels(mh, files['novels.txt']);
  const at = (layer) => {
    const { given, next } = novels.read(['She', 'was', 'not'], layer);
    const attention = mh.multiHeadAttention({ embedDim: 16, numHeads: 4, bias: false, rope: given.rope });
    const matrix = (data) => ({ data, shape: [16, 16] });
    const { qProj, kProj, vProj, outProj } = given.weights;
    attention.loadStateDict({
      ...{ q_proj_weight: matrix(qProj), k_proj_weight: matrix(kProj), v_proj_weight: matrix(vProj), 'out_proj.weight': matrix(outProj) },
    });
    return mh.scope(() => next(attention.forward({ data: given.x, shape: [1, 3, 16] }, { causal: 'topLeft' }).output)).words;
  };
  const [first, second] = [at(0), at(1)];
  const written = first.slice(0, 4).map(({ word, share }) => `${word} ${(100 * share).toFixed(0)} %`);
  assert.ok(files['README.md'].includes(`She was not → ${written.join(', ')}`), `${written} in ${files['README.md'].slice(-300)}`);
  first.forEach(({ word, share }, i) => assert.ok(second[i].word === word && Math.abs(second[i].share - share) < 1e-5));
});

test('a sequence with a period repeats its first part, and each target is the next token', () => {
  const { tokens, targets } = windows(
    Int32Array.from({ length: 20 }, (_, i) => i),
    [2, 5],
    8,
    [3, undefined],
  );
  assert.deepEqual([...tokens], [2, 3, 4, 2, 3, 4, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]);
  assert.deepEqual([...targets], [3, 4, 2, 3, 4, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]);
});

test('the learning rate rises, stays and falls to 0', () => {
  const recipe = { steps: 100, learningRate: 1, warmupSteps: 10, decaySteps: 20 };
  assert.deepEqual(
    [1, 10, 50, 80, 91, 100].map((step) => rateAt(step, recipe)),
    [0.1, 1, 1, 1, 0.5, 0.05],
  );
});

test('byte pairs: the most frequent first, never across words, and any text has tokens', () => {
  const { tokens, merges } = learnPairs('aa aa aa ab', 258);
  assert.deepEqual(merges, [
    ['a', 'a'],
    ['Ġ', 'aa'],
  ]);
  assert.equal(tokens.length, 258);
  assert.deepEqual([...encoded('aa aa', { tokens, merges })], [256, 257]);
  assert.equal(encoded('é', { tokens, merges }).length, 2);
});

test('paragraphs: one line each, without titles, headings and underscores', () => {
  const lines = [
    'EMMA',
    '',
    'By Jane Austen',
    '',
    'VOLUME I',
    '',
    'CHAPTER IV',
    '',
    'She was _very_',
    'happy.',
    '',
    '* * *',
    '',
    '"Yes."',
    '',
    'FINIS',
    '',
    'A NOTE ON THE TEXT',
    '',
    'A note.',
  ];
  assert.deepEqual(paragraphsOf(lines), ['She was very happy.', '"Yes."']);
  const { training, heldOut } = split(Array.from({ length: 100 }, (_, i) => `paragraph ${i % 10}`));
  assert.deepEqual([training.length, heldOut.length], [95, 5]);
});

test('strings of a database of R', async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-r-'));
  t.after(() => rmSync(folder, { recursive: true }));
  mkdirSync(folder, { recursive: true });
  const number = (value) => {
    const bytes = Buffer.alloc(4);
    bytes.writeInt32BE(value);
    return bytes;
  };
  const numbers = (...values) => Buffer.concat(values.map(number));
  const string = (value) => (value === null ? numbers(9, -1) : Buffer.concat([numbers(0x40009, Buffer.byteLength(value)), Buffer.from(value)]));
  const strings = (...values) => Buffer.concat([numbers(16, values.length), ...values.map(string)]);
  const whole = (value) => Buffer.concat([Buffer.from('X\n'), numbers(3, 0x40201, 0x30500, 5), Buffer.from('UTF-8'), value]);
  const block = deflateSync(whole(strings('first line', 'café', null)));
  const named = (value, ...names) => Buffer.concat([value, numbers(0x402, 1), string('names'), strings(...names), number(254)]);
  const variables = named(Buffer.concat([numbers(0x213, 1), numbers(13, 2, 3, block.length + 4)]), 'lines');
  // The second list refers to the symbol `names` of the first one.
  const index = Buffer.concat([numbers(0x213, 1), variables, numbers(0x402, 0x1ff), strings('variables'), number(254)]);
  writeFileSync(join(folder, 'Rdata.rdx'), gzipSync(whole(index)));
  writeFileSync(join(folder, 'Rdata.rdb'), Buffer.concat([Buffer.from('abc'), number(0), block]));
  const linesOf = await openDatabase(folder);
  assert.deepEqual(linesOf('lines'), ['first line', 'café', null]);
});

test('wrong arguments are refused before anything is set up', () => {
  const program = fileURLToPath(new URL('../../native/dev/train_english.mjs', import.meta.url));
  for (const [args, message] of [
    [['--steps', 'many'], /--steps: expected a whole number, 1 or more, got many/],
    [['--steps', '0'], /got 0/],
    [['--model', 'wrods'], /expected pairs or words, got wrods/],
    [['--stpes', '5'], /stpes/],
    [['5'], /5/],
  ]) {
    const { status, stderr } = spawnSync(process.execPath, [program, ...args], { encoding: 'utf8' });
    assert.equal(status, 2, stderr);
    assert.match(stderr, message);
  }
});
