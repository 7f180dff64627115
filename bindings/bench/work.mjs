// The operations of the benchmarks, as calls of the package. Each returns `run` (the timed call), `output` (a copy of
// its result), `error` (the largest difference from the float64 oracle, on a sample), and the ideal cost of a run.

import { inputsOf, maskOptions, randomArray, randomFloats, SEEDS, visiblePairs } from './inputs.mjs';
import { attentionError, crossEntropy, gradientError, linearError, moduleError, slopeError, stepError } from './oracle.mjs';

/** Makes the work of a case; call it in a scope, which owns its tensors. */
export function makeWork(mh, which) {
  const { op } = which;
  return (WORKS[op] ?? attentionWork)(mh, which);
}

/** Ideal floating-point operations of one run. */
export function operationsOf({ op, shape, mask }) {
  const { batch, heads, queries, width } = shape;
  if (op === 'append' || op === 'merge') return 0;
  if (op === 'gemm') return 2 * queries * width * shape.keys;
  if (op === 'train') return trainOperations(shape);
  if (op === 'step') return 2 * (matrixElements(shape) + keptElements(shape));
  // Matrix products: two in the forward pass, five in the backward pass.
  const products = op === 'backward' ? 7 : 2;
  const attention = 2 * products * batch * heads * width * visiblePairs(shape, mask);
  const embed = heads * width;
  return attention + (op === 'module' ? 4 * 2 * queries * embed * embed : 0);
}

const tensorOf = (mh, { shape, data }, options) => mh.tensor(data, shape, options);
const numbersOf = (tensor) => (tensor.data instanceof Float32Array ? tensor.data : tensor.toFloat32());

function attentionWork(mh, { shape, mask, dtype }) {
  const [q, k, v] = inputsOf(shape).map((input) => tensorOf(mh, input, { dtype }));
  const out = mh.zeros(q.shape);
  const options = maskOptions(shape, mask);
  for (const name of ['mask', 'bias']) {
    if (options[name]) options[name] = tensorOf(mh, options[name]);
  }
  const slope = mask === 'alibi' ? mh.alibiSlopes(shape.heads).at(-1) : 0;
  return {
    run: shape.name === 'tiny' ? preparedOr(mh, { q, k, v, out, options }) : plain(mh, { q, k, v, out, options }),
    output: () => out.data.slice(),
    bytes: shape.queries === 1 ? k.data.byteLength + v.data.byteLength : 0,
    error: () => attentionError({ shape, mask, slope }, ...[q, k, v].map(numbersOf), out.data),
  };
}

function plain(mh, { q, k, v, out, options }) {
  if (!options.return) return () => void mh.attention(q, k, v, { ...options, out });
  return () => mh.attention(q, k, v, { ...options, out }).weights.dispose();
}

/** Uses a prepared operation if the package has one, as a loop over small calls would. */
function preparedOr(mh, { q, k, v, out, options }) {
  if (typeof mh.prepare !== 'function') return plain(mh, { q, k, v, out, options });
  const operation = mh.prepare({ q: q.shape, numKvHeads: k.shape[1], ...options });
  return () => void operation.run(q, k, v, out);
}

function cacheWork(mh, { shape, dtype }) {
  const { batch, heads, numKvHeads, keys, width } = shape;
  const [query, key, value] = inputsOf(shape);
  const q = tensorOf(mh, query);
  const cache = mh.createCache({ batch, numKvHeads, headDim: width, capacity: keys, dtype });
  // Append in steps, so that no second copy of a long cache is needed.
  const kept = [key, value].map(() => new Float32Array(key.data.length));
  const step = 1024;
  for (let first = 0; first < keys; first += step) {
    mh.scope(() => cache.append(...[key, value].map((from, at) => part(mh, from, first, step, dtype, kept[at]))));
  }
  const out = mh.zeros([batch, heads, 1, width]);
  return {
    run: () => void cache.attend(q, { out }),
    output: () => out.data.slice(),
    bytes: cache.bytes,
    error: () => attentionError({ shape, mask: 'full', slope: 0 }, query.data, ...kept, out.data),
  };
}

/** Measures appending all tokens, as floats, to an empty cache. */
function appendWork(mh, { shape, dtype }) {
  const { batch, heads, numKvHeads, keys, width } = shape;
  const [query, ...given] = inputsOf(shape);
  const [k, v] = given.map((input) => tensorOf(mh, input));
  const cache = mh.createCache({ batch, numKvHeads, headDim: width, capacity: keys, dtype });
  const kept = given.map(({ data }) => new Float32Array(data.length));
  mh.scope(() => given.forEach((from, at) => part(mh, from, 0, keys, dtype, kept[at])));
  return {
    run: () => {
      for (let entry = 0; entry < batch; entry += 1) cache.truncate(0, entry);
      cache.append(k, v);
    },
    output: () => new Float32Array(0),
    bytes: k.data.byteLength + v.data.byteLength + cache.bytes,
    error: () =>
      mh.scope(() => {
        const out = mh.zeros([batch, heads, 1, width]);
        cache.attend(tensorOf(mh, query), { out });
        return attentionError({ shape, mask: 'full', slope: 0 }, query.data, ...kept, out.data);
      }),
  };
}

/** Merges the same result again and again into another: the work does not depend on the numbers. */
function mergeWork(mh, { shape: { batch, heads, queries, width } }) {
  const rows = [batch, heads, queries];
  const tensor = (extents, seed) => tensorOf(mh, randomArray(extents, seed));
  const a = { out: tensor([...rows, width], SEEDS.q), lse: tensor(rows, SEEDS.k) };
  const b = { out: tensor([...rows, width], SEEDS.v), lse: tensor(rows, SEEDS.dOut) };
  return {
    run: () => void mh.mergeAttention(a, b),
    output: () => a.out.data.slice(),
    bytes: 3 * a.out.data.byteLength,
    error: () => {
      const [before, of] = [a, b].map(({ out, lse }) => ({ out: out.data.slice(), weight: lse.data.map(Math.exp) }));
      mh.mergeAttention(a, b);
      const expected = (at) => {
        const row = Math.floor(at / width);
        const [ofA, ofB] = [before.weight[row], of.weight[row]];
        return (ofA * before.out[at] + ofB * of.out[at]) / (ofA + ofB);
      };
      return a.out.data.reduce((most, value, at) => Math.max(most, Math.abs(value - expected(at))), 0);
    },
  };
}

/** Tokens first … first + count − 1 as a tensor; their values after the cache's rounding go to `kept`. */
function part(mh, { shape: [batch, heads, tokens, width], data }, first, step, dtype, kept) {
  const count = Math.min(step, tokens - first);
  const rows = new Float32Array(batch * heads * count * width);
  const each = (visit) => {
    for (let head = 0; head < batch * heads; head += 1) {
      visit(head * count * width, (head * tokens + first) * width, count * width);
    }
  };
  each((to, from, length) => rows.set(data.subarray(from, from + length), to));
  const tensor = mh.tensor(rows, [batch, heads, count, width], dtype === 'int8' ? {} : { dtype });
  const rounded = dtype === 'int8' ? roundedToInt8(rows, width) : numbersOf(tensor);
  each((from, to, length) => kept.set(rounded.subarray(from, from + length), to));
  return tensor;
}

/** Rounds as the cache does: one scale, largest magnitude / 127, per row. */
function roundedToInt8(values, width) {
  const rounded = new Float32Array(values.length);
  for (let at = 0; at < values.length; at += width) {
    let largest = 0;
    for (let c = 0; c < width; c += 1) largest = Math.max(largest, Math.abs(values[at + c]));
    const factor = Math.fround(largest / 127);
    for (let c = 0; c < width; c += 1) rounded[at + c] = Math.round(Math.fround(values[at + c] / factor)) * factor;
  }
  return rounded;
}

function moduleWork(mh, { shape, mask }) {
  const { heads, queries: tokens, width } = shape;
  const embed = heads * width;
  const x = tensorOf(mh, randomArray([1, tokens, embed], 1));
  // Uses the scale of trained weights, so that the softmax is neither flat nor one-hot.
  const weights = [2, 3, 4, 5].map((seed) => randomFloats(embed * embed, seed).map((value) => value * Math.fround(0.05)));
  const names = ['q_proj_weight', 'k_proj_weight', 'v_proj_weight', 'out_proj.weight'];
  const layer = mh.multiHeadAttention({ embedDim: embed, numHeads: heads, bias: false });
  layer.loadStateDict(Object.fromEntries(names.map((name, at) => [name, { shape: [embed, embed], data: weights[at] }])));
  const options = mask === 'weights' ? { return: ['weights'] } : {};
  const output = () => {
    const result = layer.forward(x).output;
    const copy = result.data.slice();
    result.dispose();
    return copy;
  };
  return {
    run: () => {
      const { output: result, weights: shares } = layer.forward(x, options);
      result.dispose();
      shares?.dispose();
    },
    output,
    bytes: 0,
    error: () => moduleError({ tokens, embed, width }, x.data, weights, output()),
  };
}

/** GPT-2 small with the attention of the case; native/bench/step_work.cc has the same model. */
const STEP = { layers: 12, mlp: 3072, vocabulary: 50257, token: 464 };

const matrixElements = ({ heads, width }) => {
  const embed = heads * width;
  return STEP.layers * embed * (4 * embed + 2 * STEP.mlp) + STEP.vocabulary * embed;
};

/** Number of elements in the keys and values of all layers. */
const keptElements = ({ heads, width, keys }) => 2 * STEP.layers * keys * heads * width;

/** All parameters except the gains of norms are slices of one array, with GPT-2's initial standard deviation. */
function stepParameters({ heads, width, keys }) {
  const embed = heads * width;
  const numbers = randomFloats(STEP.vocabulary * embed, SEEDS.k).map((value) => value * Math.fround(0.03));
  const dict = {};
  let next = 0;
  const add = (name, ...shape) => {
    const count = shape.reduce((a, b) => a * b);
    if (next + count > numbers.length) next = 0;
    dict[name] = { shape, data: numbers.subarray(next, next + count) };
    next += count;
  };
  const addNorm = (name) => {
    dict[`${name}.weight`] = { shape: [embed], data: new Float32Array(embed).fill(1) };
    add(`${name}.bias`, embed);
  };
  const addLinear = (name, out, from) => {
    add(`${name}weight`, out, from);
    add(`${name}bias`, out);
  };
  add('embedding.weight', STEP.vocabulary, embed);
  add('position.weight', keys, embed);
  for (let layer = 0; layer < STEP.layers; layer += 1) {
    const prefix = `layers.${layer}.`;
    addNorm(`${prefix}norm1`);
    addLinear(`${prefix}self_attn.in_proj_`, 3 * embed, embed);
    addLinear(`${prefix}self_attn.out_proj.`, embed, embed);
    addNorm(`${prefix}norm2`);
    addLinear(`${prefix}linear1.`, STEP.mlp, embed);
    addLinear(`${prefix}linear2.`, embed, STEP.mlp);
  }
  addNorm('norm');
  return dict;
}

/** Returns the model of the step, its parameters, the previous tokens, and the token of the step. */
export function stepModel(shape) {
  const { heads, keys, width } = shape;
  return {
    config: {
      ...{ numLayers: STEP.layers, vocabSize: STEP.vocabulary, maxPositions: keys },
      ...{ embedDim: heads * width, numHeads: heads, mlpDim: STEP.mlp, activation: 'geluTanh', tiedOutput: true },
    },
    dict: stepParameters(shape),
    capacity: keys,
    before: Int32Array.from({ length: keys - 1 }, (_, at) => (at * 49) % STEP.vocabulary),
    token: Int32Array.of(STEP.token),
  };
}

/** Measures a transformer's step for the next token, which fills the last place of its cache. */
function stepWork(mh, { shape }) {
  const { keys } = shape;
  const { config, dict, capacity, before, token } = stepModel(shape);
  const model = mh.transformer(config);
  model.loadStateDict(dict);
  const cache = model.createCache({ capacity });
  const { traces } = model.step(before, cache, { return: [], trace: ['kHeads', 'vHeads'] });
  const out = mh.zeros([1, 1, STEP.vocabulary]);
  const run = () => {
    model.step(token, cache, { out });
    cache.truncate(keys - 1);
  };
  return {
    run,
    output: () => out.data.slice(),
    // Excludes biases, norms, activations, one row of each embedding and the logits, which are small.
    bytes: 4 * (matrixElements(shape) + keptElements(shape)),
    error: () => stepError({ ...shape, token: STEP.token }, dict, traces, out.data),
  };
}

/** The rows of x are the shape's queries; the outputs are its keys. */
function gemmWork(mh, { shape: { queries: rows, keys: outputs, width } }) {
  const [x, weight, bias] = [[rows, width], [outputs, width], [outputs]].map((extents, at) => tensorOf(mh, randomArray(extents, at + 1)));
  const out = mh.zeros([rows, outputs]);
  return {
    run: () => void mh.linear(x, weight, { bias, out }),
    output: () => out.data.slice(),
    bytes: rows > 1 ? 0 : weight.data.byteLength,
    error: () => linearError({ rows, outputs, width }, x.data, weight.data, bias.data, out.data),
  };
}

/** Measures attention() followed by attentionBackward(). */
function backwardWork(mh, { shape, mask }) {
  const [q, k, v] = inputsOf(shape).map((input) => tensorOf(mh, input));
  const dOut = tensorOf(mh, randomArray(q.shape, SEEDS.dOut));
  const out = mh.zeros(q.shape);
  const gradients = { dQ: mh.zeros(q.shape), dK: mh.zeros(k.shape), dV: mh.zeros(v.shape) };
  const options = maskOptions(shape, mask);
  return {
    run: () => {
      const { lse } = mh.attention(q, k, v, { ...options, out, return: ['lse'] });
      mh.attentionBackward({ q, k, v, out, lse, dOut }, { ...options, out: gradients });
      lse.dispose();
    },
    output: () => gradients.dQ.data.slice(),
    error: () => gradientError({ shape, mask }, ...[q, k, v, dOut, gradients.dQ].map(numbersOf)),
  };
}

/** Sizes of the models' other parts; native/bench/train_work.cc has the same. */
const TRAIN = {
  'four-jobs': { layers: 1, vocabulary: 24, readouts: 4 },
  induction: { layers: 2, vocabulary: 32, readouts: 1 },
};

/** Counts three products for each matrix, and seven products of attention for each pair of tokens. */
function trainOperations({ name, batch, heads, queries, width }) {
  const { layers, vocabulary, readouts } = TRAIN[name];
  const [tokens, embed] = [batch * queries, heads * width];
  const matrices = layers * 4 * embed * embed + embed * readouts * vocabulary;
  return 6 * tokens * matrices + layers * 14 * embed * ((tokens * (queries + 1)) / 2);
}

const randomWords = (count, vocabulary, seed) =>
  Int32Array.from(randomFloats(count, seed), (number) => Math.min(Math.fround((Math.fround(number + 1) / 2) * vocabulary), vocabulary - 1));

/** Measures a whole training step: forward, cross-entropy, backward and AdamW, on random tokens. */
function trainWork(mh, { shape: { name, batch, heads, queries, width } }) {
  const { layers, vocabulary, readouts } = TRAIN[name];
  const config = {
    ...{ numLayers: layers, vocabSize: vocabulary, numReadouts: readouts, embedDim: heads * width },
    ...{ numHeads: heads, bias: false, rope: { style: 'half' }, norm: 'rmsNorm' },
  };
  const model = mh.transformer(config);
  model.initialize({ seed: 1 });
  // A tiny rate leaves the parameters almost unchanged, so that all runs are alike.
  const trainer = mh.trainer(model, { learningRate: 1e-12 });
  const tokens = randomWords(batch * queries, vocabulary, SEEDS.q);
  const targets = randomWords(batch * queries * readouts, vocabulary, SEEDS.dOut);
  const options = { batch };
  let last = { loss: 0, gradientNorm: 0 };
  const lossOf = (dict) =>
    mh.scope(() => {
      const moved = mh.transformer(config);
      moved.loadStateDict(dict);
      return crossEntropy(moved.forward(tokens, options).logits.data, targets, vocabulary);
    });
  return {
    run: () => void (last = trainer.step(tokens, targets, options)),
    output: () => Float32Array.of(last.loss, last.gradientNorm),
    error: () => {
      trainer.accumulate(tokens, targets, options);
      const [dict, gradients] = [model.stateDict(), trainer.gradients()];
      trainer.update();
      return slopeError(dict, gradients, last.gradientNorm, targets.length, lossOf);
    },
  };
}

const WORKS = {
  backward: backwardWork,
  module: moduleWork,
  step: stepWork,
  train: trainWork,
  append: appendWork,
  cache: cacheWork,
  merge: mergeWork,
  gemm: gemmWork,
};
