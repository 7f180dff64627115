// The modules of golden cases by the operations of a GPU: products, attention and rotation are its calls. What is between them is here: it
// arranges heads, joins masks, and computes norms and activations, which models on a GPU have kernels for.

import { product } from '../../bindings/conformance_case.mjs';

/** A tensor whose element at (i0, i1, …) is `value(i0, i1, …)`. */
function filled(shape, value) {
  const data = new Float32Array(product(shape));
  const at = shape.map(() => 0);
  for (let index = 0; index < data.length; index += 1) {
    data[index] = value(...at);
    for (let axis = shape.length - 1; axis >= 0 && ++at[axis] === shape[axis]; axis -= 1) at[axis] = 0;
  }
  return { shape, data };
}

const added = (a, b) => ({ shape: a.shape, data: a.data.map((x, at) => x + b.data[at % b.data.length]) });
const mapped = (x, f) => ({ shape: x.shape, data: x.data.map(f) });
const reshaped = ({ data }, shape) => ({ shape, data });
const rowsOf = ({ shape, data }, first, count) => {
  const width = product(shape.slice(1));
  return { shape: [count, ...shape.slice(1)], data: data.slice(first * width, (first + count) * width) };
};
const swapped = ({ shape, data }) => filled([shape[1], shape[0], shape[2]], (b, n, c) => data[(n * shape[1] + b) * shape[2] + c]);
const transposed = ({ shape: [rows, columns], data }) => filled([columns, rows], (c, r) => data[r * columns + c]);

/** Columns from `first` on of (B, N, …) as (B, H, N, d). */
const headsOf = ({ shape: [batch, rows, width], data }, heads, d, first = 0) =>
  filled([batch, heads, rows, d], (b, h, n, c) => data[(b * rows + n) * width + first + h * d + c]);
/** (B, H, N, d) as (B, N, H · d). */
const merged = ({ shape: [batch, heads, rows, d], data }) =>
  filled([batch, rows, heads * d], (b, n, c) => data[((b * heads + Math.floor(c / d)) * rows + n) * d + (c % d)]);

/** `mh.multiHeadAttention()` of the cases, and its forward(). */
function multiHeadAttention({ attention, linear }, config) {
  const { embedDim, numHeads: heads, headDim: d = embedDim / heads, outProj = true, batchFirst = true, addBiasKv, addZeroAttn } = config;
  let dict;
  const weightOf = (name, at) => dict[`${name}_proj_weight`] ?? rowsOf(dict.in_proj_weight, at * embedDim, embedDim);
  const biasOf = (at) => dict.in_proj_bias && rowsOf(dict.in_proj_bias, at * embedDim, embedDim);
  const dense = (x, weight, bias) => linear(x, weight, bias === undefined ? {} : { bias });

  /** Keys or values with the rows that options add. */
  function continued(x, more) {
    const [batch, rows, width] = x.shape;
    const count = (more === undefined ? 0 : 1) + (addZeroAttn ? 1 : 0);
    const value = (b, n, c) => (n < rows ? x.data[(b * rows + n) * width + c] : n === rows && more !== undefined ? more.data[c] : 0);
    return filled([batch, rows + count, width], value);
  }

  return {
    loadStateDict: (given) => (dict = given),
    forward(tokens, { attnMaskBlocked, bias, keyPaddingBlocked, keyPaddingBias, causal, return: wanted = [] }) {
      const { query, key = query, value = key } = tokens.data === undefined ? tokens : { query: tokens };
      const [isOne, isSwapped] = [query.shape.length === 2, query.shape.length === 3 && !batchFirst];
      const [x, y, z] = [query, key, value].map((each) => (isSwapped ? swapped(each) : isOne ? reshaped(each, [1, ...each.shape]) : each));
      const q = dense(x, weightOf('q', 0), biasOf(0));
      const k = continued(dense(y, weightOf('k', 1), biasOf(1)), addBiasKv ? dict.bias_k : undefined);
      const v = continued(dense(z, weightOf('v', 2), biasOf(2)), addBiasKv ? dict.bias_v : undefined);
      const [batch, rows] = q.shape;
      const [keys, all] = [y.shape[1], k.shape[1]];
      // Masks are joined; rows that options add are visible.
      const part = (given, index) => (given === undefined ? 0 : given.data[index % given.data.length]);
      const scores = filled([batch, heads, rows, all], (b, h, i, j) => {
        if (j >= keys) return 0;
        const hidden = part(attnMaskBlocked, ((b * heads + h) * rows + i) * keys + j) || part(keyPaddingBlocked, b * keys + j) || (causal && j > i);
        return hidden ? -Infinity : part(bias, ((b * heads + h) * rows + i) * keys + j) + part(keyPaddingBias, b * keys + j);
      });
      const valueDim = v.shape[2] / heads;
      const result = attention(headsOf(q, heads, d), headsOf(k, heads, d), headsOf(v, heads, valueDim), { bias: scores, return: ['weights'] });
      const out = outProj ? dense(merged(result.out), dict['out_proj.weight'], dict['out_proj.bias']) : merged(result.out);
      const { data } = result.weights;
      const mean = filled([batch, rows, all], (b, i, j) => {
        let sum = 0;
        for (let h = 0; h < heads; h += 1) sum += data[((b * heads + h) * rows + i) * all + j];
        return sum / heads;
      });
      const ofBatch = (given) => (isOne ? reshaped(given, given.shape.slice(1)) : given);
      const output = isSwapped ? swapped(out) : ofBatch(out);
      return {
        output,
        ...(wanted.includes('weights') && { weights: ofBatch(result.weights) }),
        ...(wanted.includes('meanWeights') && { meanWeights: ofBatch(mean) }),
      };
    },
  };
}

/** `mh.transformer()` of the cases: attention alone, without norms. */
function transformer({ attention, linear }, { embedDim, numHeads, numKvHeads, headDim, numLayers, rope }) {
  let dict;
  return {
    loadStateDict: (given) => (dict = given),
    forward(ids, { batch }) {
      const rows = ids.length / batch;
      const embedding = (name, row, c) => dict[name]?.data[row * embedDim + c] ?? 0;
      let x = filled([batch, rows, embedDim], (b, n, c) => embedding('embedding.weight', ids[b * rows + n], c) + embedding('position.weight', n, c));
      const states = [];
      for (let layer = 0; layer < numLayers; layer += 1) {
        const name = `layers.${layer}.self_attn.`;
        const qkv = linear(x, dict[`${name}in_proj_weight`]);
        const [q, k, v] = [
          headsOf(qkv, numHeads, headDim),
          headsOf(qkv, numKvHeads, headDim, numHeads * headDim),
          headsOf(qkv, numKvHeads, headDim, (numHeads + numKvHeads) * headDim),
        ];
        const { out } = attention(q, k, v, { causal: 'topLeft', ...(rope && { rope }) });
        x = added(x, linear(merged(out), dict[`${name}out_proj.weight`]));
        states.push(x);
      }
      const hidden = { shape: [numLayers, ...x.shape], data: Float32Array.from(states.flatMap(({ data }) => [...data])) };
      return { logits: linear(x, dict['output.weight']), hidden };
    },
  };
}

/** `mh.transformerBlock()` with the names of GPT-2, whose matrices are (in, out). */
function transformerBlock({ attention, linear }, { embedDim, numHeads, normEps }) {
  let dict;
  const norm = (x, name) => {
    const [weight, shift] = [dict[`${name}.weight`].data, dict[`${name}.bias`].data];
    const y = new Float32Array(x.data.length);
    for (let at = 0; at < y.length; at += embedDim) {
      const row = Float64Array.from(x.data.subarray(at, at + embedDim));
      const mean = row.reduce((sum, each) => sum + each, 0) / embedDim;
      const variance = row.reduce((sum, each) => sum + (each - mean) ** 2, 0) / embedDim;
      row.forEach((each, c) => (y[at + c] = ((each - mean) / Math.sqrt(variance + normEps)) * weight[c] + shift[c]));
    }
    return reshaped({ data: y }, x.shape);
  };
  const dense = (x, name) => linear(x, transposed(dict[`${name}.weight`]), { bias: dict[`${name}.bias`] });
  const gelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
  return {
    loadStateDict: (given) => (dict = given),
    forward(x) {
      const qkv = dense(norm(x, 'ln_1'), 'attn.c_attn');
      const [q, k, v] = [0, 1, 2].map((at) => headsOf(qkv, numHeads, embedDim / numHeads, at * embedDim));
      const attentionOut = dense(merged(attention(q, k, v, { causal: 'topLeft' }).out), 'attn.c_proj');
      const sum = added(x, attentionOut);
      const hidden = mapped(dense(norm(sum, 'ln_2'), 'mlp.c_fc'), gelu);
      return { output: added(sum, dense(hidden, 'mlp.c_proj')), attentionOut };
    },
  };
}

/** The modules, by calls that give their results at once. */
export const modulesOf = (calls) => ({
  multiHeadAttention: (config) => multiHeadAttention(calls, config),
  transformer: (config) => transformer(calls, config),
  transformerBlock: (config) => transformerBlock(calls, config),
});
