// Prints the figures of the page's ready experiments (web/src/sections/own/ready_experiments.ts): measured on the ends of the novels, which
// the small English model has not seen. Downloads the novels.
//
//   node tests/support/english_experiments.mjs

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openModel } from '../../bindings/dist/models_node.js';
import { readText } from '../../native/dev/english/text.mjs';

const folder = fileURLToPath(new URL('../../web/public/english/', import.meta.url));
const place = await mkdtemp(join(tmpdir(), 'multihead-novels-'));
const { heldOut } = await readText(place).finally(() => rm(place, { recursive: true }));
const model = await openModel(folder);
const { numLayers, numHeads } = model.info;
const { ids: all } = await model.encode(heldOut.join('\n'));
const idOf = async (word) => (await model.encode(` ${word}`, { addSpecialTokens: false })).ids[0];
const nameOf = (at) => `layer ${Math.floor(at / numHeads) + 1}, head ${(at % numHeads) + 1}`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

// A head that a prediction needs: the word after "Mr." and "Mrs.", with each head muted.
const titles = [await idOf('Mr'), await idOf('Mrs')];
const point = (await model.encode(' Mr.')).ids[1];
const spots = [...all.keys()].filter((at) => at >= 64 && at + 1 < all.length && all[at] === point && titles.includes(all[at - 1]));
async function namesRight(edits) {
  let [right, sum] = [0, 0];
  for (const at of spots) {
    const ids = all.slice(at - 40, at + 1);
    const { ids: top, tokenProbabilities } = await model.lens(ids, { layers: [numLayers], top: 1, tokens: [all[at + 1]], edits });
    right += top.at(-1) === all[at + 1];
    sum += Math.log(tokenProbabilities.at(-1));
  }
  return `likeliest in ${percent(right / spots.length)}, mean ln p ${(sum / spots.length).toFixed(2)}`;
}
console.log(`After Mr. and Mrs., ${spots.length} places: ${await namesRight([])}`);
for (let head = 0; head < numLayers * numHeads; head += 1) {
  const muted = { site: 'z', layer: Math.floor(head / numHeads), heads: [head % numHeads], scale: 0 };
  console.log(`  without ${nameOf(head)}: ${await namesRight([muted])}`);
}

// A head that copies: the one word for a woman or man before "she" or "he" is exchanged.
const pairs = [
  ['she', 'he'],
  ['She', 'He'],
  ['her', 'his'],
  ['Her', 'His'],
  ['herself', 'himself'],
];
const other = new Map();
const women = new Set();
for (const words of pairs) {
  const [woman, man] = await Promise.all(words.map(idOf));
  other.set(woman, man).set(man, woman);
  women.add(woman);
}
const [she, he, him] = await Promise.all(['she', 'he', 'him'].map(idOf));
const passages = [];
for (let at = 24; at < all.length && passages.length < 250; at += 1) {
  const ids = all.slice(at - 24, at);
  const found = ids.filter((id) => other.has(id));
  if ([she, he].includes(all[at]) && found.length === 1 && !ids.includes(him)) passages.push({ ids, sign: women.has(found[0]) ? 1 : -1 });
}
const effects = [];
for (const { ids, sign } of passages) {
  const { clean, corrupt, values } = await model.patch(
    ids,
    ids.map((id) => other.get(id) ?? id),
    { token: she, against: he },
  );
  effects.push([corrupt, ...values.data].map((value) => sign * (clean - value)));
}
const meanOf = (list) => list.reduce((sum, value) => sum + value, 0) / list.length;
const effectOf = (at) => `${meanOf(effects.map((each) => each[at])).toFixed(3)}, right in ${percent(meanOf(effects.map((each) => +(each[at] > 0))))}`;
console.log(`she − he, ${passages.length} passages: ${effectOf(0)}`);
for (let head = 0; head < numLayers * numHeads; head += 1) console.log(`  ${nameOf(head)}: ${effectOf(head + 1)}`);

// A direction that steers, before layer 2.
const meanBefore = async (text) => {
  const { ids } = await model.encode(text);
  const { shape, data } = (await model.run(ids, { capture: [{ site: 'resid_pre', layer: 1 }], logits: 'none' })).captures[0];
  const [count, width] = shape;
  return Float32Array.from({ length: width }, (_, col) => meanOf(Array.from({ length: count }, (__, row) => data[row * width + col])));
};
const [toward, away] = [await meanBefore('She was sure that she had seen her'), await meanBefore('He was sure that he had seen his')];
const prompts = heldOut
  .filter(({ length }) => length > 200)
  .filter((_, at) => at % 3 === 1)
  .slice(0, 60)
  .map((text) => text.split(' ').slice(0, 12).join(' '));
for (const factor of [-4, -2, 0, 2, 4]) {
  let [woman, man] = [0, 0];
  for (const prompt of prompts) {
    const add = toward.map((value, at) => factor * (value - away[at]));
    const { text } = await model.complete(prompt, { maxNewTokens: 24, edits: [{ site: 'resid_pre', layer: 1, add }] });
    woman += text.match(/\b(she|her|hers|herself)\b/gi)?.length ?? 0;
    man += text.match(/\b(he|his|him|himself)\b/gi)?.length ?? 0;
  }
  console.log(`${factor} times the direction, ${prompts.length} continuations: ${woman} words for a woman, ${man} for a man`);
}
model.dispose();
