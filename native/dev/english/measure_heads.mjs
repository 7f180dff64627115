// Measures the attention weights of each head of the small English model, with the statistics of multihead/lab.
import { load } from '../../../bindings/dist/index_node.js';
import { headStatistics } from '../../../bindings/dist/lab.js';

const LENGTH = 64;
/** Number of passages, evenly spread over the text. */
const PASSAGES = 100;

const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

/** Passages of `length` tokens. */
function passages(ids, length) {
  const last = ids.length - length;
  return Array.from({ length: PASSAGES }, (_, i) => ids.slice(...[0, length].map((end) => Math.floor((last * i) / (PASSAGES - 1)) + end)));
}

/** The weights (N, N) of a head that prefers nothing: each query has equal weights on all keys that it sees. */
const equalWeights = (length) =>
  Float32Array.from({ length: length ** 2 }, (_, at) => (at % length <= Math.floor(at / length) ? 1 / (Math.floor(at / length) + 1) : 0));

/** Mean weight on keys whose tokens `counts`, of all queries, for each head of weights (heads, N, N). */
function weightOn(weights, heads, ids, counts) {
  const n = ids.length;
  return Array.from({ length: heads }, (_, head) => {
    let sum = 0;
    for (let key = 0; key < n; key += 1) {
      if (!counts(ids[key])) continue;
      for (let query = key; query < n; query += 1) sum += weights[(head * n + query) * n + key];
    }
    return sum / n;
  });
}

/** Mean weight on the query's own token, for each head. */
const weightOnItself = (weights, heads, n) =>
  Array.from({ length: heads }, (_, head) => mean(Array.from({ length: n }, (_, at) => weights[(head * n + at) * n + at])));

/**
 * The mean weight of each head on the token before the query, on the first token, on the query's own token and on
 * punctuation, in passages of the text; and on the token that followed the query's token last time (`induction`), in passages
 * that repeat after half of their tokens. `chance`: the same of equal weights.
 * @param {{ numLayers: number, numHeads: number, attentions: (passage: Int32Array, layer: number) => Promise<Float32Array>,
 *   ids: Int32Array, isPunctuation: (id: number) => boolean }} of the weights of a layer (heads, N, N), and a text that the
 *   model was not trained on
 */
export async function measureHeads({ numLayers, numHeads, attentions, ids, isPunctuation }) {
  const mh = await load();
  const plain = passages(ids, LENGTH);
  const repeated = passages(ids, LENGTH / 2).map((part) => Int32Array.from([...part, ...part]));

  const statistics = (weights, heads, options) => mh.scope(() => headStatistics(mh, mh.tensor(weights, [heads, LENGTH, LENGTH]), options));

  /** The scores of a head by name; `weightsOf` gives the weights of all heads on a passage, (heads, N, N). */
  async function scores(heads, weightsOf) {
    const lists = { previous: [], first: [], itself: [], punctuation: [], induction: [] };
    for (const passage of plain) {
      const weights = await weightsOf(passage);
      const { previousToken, firstToken } = statistics(weights, heads);
      lists.previous.push(previousToken);
      lists.first.push(firstToken);
      lists.itself.push(weightOnItself(weights, heads, LENGTH));
      lists.punctuation.push(weightOn(weights, heads, passage, isPunctuation));
    }
    for (const passage of repeated) {
      const weights = await weightsOf(passage);
      lists.induction.push(statistics(weights, heads, { tokens: passage }).induction);
    }
    return (head) => Object.fromEntries(Object.entries(lists).map(([name, list]) => [name, rounded(mean(list.map((of) => of[head])))]));
  }

  const heads = [];
  for (let layer = 0; layer < numLayers; layer += 1) {
    const of = await scores(numHeads, (passage) => attentions(passage, layer));
    for (let head = 0; head < numHeads; head += 1) heads.push({ layer, head, ...of(head) });
  }
  const chance = (await scores(1, () => equalWeights(LENGTH)))(0);
  return { passages: PASSAGES, length: LENGTH, chance, heads };
}

export const rounded = (value) => Number(value.toFixed(4));
