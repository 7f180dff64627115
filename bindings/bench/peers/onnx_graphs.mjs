// Several ways to express attention in ONNX. None is the fastest everywhere, so each case measures all of them, and the
// fastest is the peer.

import { inputsOf, maskOptions, randomFloats, swapMiddle } from '../inputs.mjs';
import { onnxModel } from './onnx_bytes.mjs';

const MICROSOFT = 'com.microsoft';
/** Larger masks are left out: reading them would take ONNX Runtime longer than everything else. */
const MOST_MASK_ELEMENTS = 2 ** 24;

/** The additive mask (N_q, N_k), for operators without boolean masks; null for none. */
export function additiveMask(shape, mask) {
  const { queries, keys } = shape;
  if (mask === 'full') return null;
  if (queries * keys > MOST_MASK_ELEMENTS) return undefined;
  const { mask: booleans, bias } = maskOptions(shape, mask);
  if (bias) return bias.data;
  const data = new Float32Array(queries * keys);
  for (let i = 0; i < queries; i += 1) {
    for (let j = 0; j < keys; j += 1) {
      const sees = booleans ? booleans.data[i * keys + j] : j <= i + keys - queries;
      if (!sees) data[i * keys + j] = -Infinity;
    }
  }
  return data;
}

/** The Attention operator of opset 23, which takes multihead's layout. */
function attentionOp({ shape, mask }, [q, k, v]) {
  const { queries, keys } = shape;
  const { mask: booleans, bias } = maskOptions(shape, mask);
  const feeds = { q, k, v };
  if (bias) feeds.mask = bias;
  if (booleans) feeds.mask = { shape: [queries, keys], data: booleans.data, type: 'bool' };
  return {
    feeds,
    graph: {
      nodes: [{ op: 'Attention', inputs: Object.keys(feeds), attributes: { is_causal: mask === 'causal' ? 1 : 0 } }],
    },
    outShape: q.shape,
  };
}

/** Attention as three nodes; the query heads of a group are stacked as rows of one product. */
function products({ shape, mask }, [q, k, v]) {
  const { batch, heads, numKvHeads, queries, width } = shape;
  const added = additiveMask(shape, mask);
  if (added === undefined || (added && heads !== numKvHeads)) return null;
  const outShape = [batch, numKvHeads, (heads / numKvHeads) * queries, width];
  const scale = { name: 'scale', shape: [1], data: Float32Array.of(1 / Math.sqrt(width)) };
  return {
    feeds: {
      q: { ...q, shape: outShape },
      k,
      v,
      ...(added && { mask: { shape: [queries, shape.keys], data: added } }),
    },
    graph: {
      nodes: [
        { op: 'Transpose', inputs: ['k'], outputs: ['kt'], attributes: { perm: [0, 1, 3, 2] } },
        { op: 'MatMul', inputs: ['q', 'kt'], outputs: ['products'] },
        { op: 'Mul', inputs: ['products', 'scale'], outputs: ['scores'] },
        ...(added ? [{ op: 'Add', inputs: ['scores', 'mask'], outputs: ['masked'] }] : []),
        { op: 'Softmax', inputs: [added ? 'masked' : 'scores'], outputs: ['weights'], attributes: { axis: -1 } },
        { op: 'MatMul', inputs: ['weights', 'v'] },
      ],
      constants: [scale],
    },
    outShape,
  };
}

const tokensFirst = ({ shape: [batch, heads, tokens, width], data }) => ({
  shape: [batch, tokens, heads * width],
  data: swapMiddle(data, [batch, heads, tokens, width]),
});

const headsFirst = ({ batch, heads, queries, width }) => ({
  outShape: [batch, queries, heads * width],
  toOurs: (data) => swapMiddle(data, [batch, queries, heads, width]),
});

function multiHeadAttention({ shape, mask }, [q, k, v]) {
  if (shape.heads !== shape.numKvHeads || !['full', 'causal'].includes(mask)) return null;
  const attributes = { num_heads: shape.heads, unidirectional: mask === 'causal' ? 1 : 0 };
  return {
    feeds: { q: tokensFirst(q), k: tokensFirst(k), v: tokensFirst(v) },
    graph: { nodes: [{ op: 'MultiHeadAttention', domain: MICROSOFT, inputs: ['q', 'k', 'v'], attributes }] },
    ...headsFirst(shape),
  };
}

/** GroupQueryAttention. Always causal; its cache holds all keys except the newest, which comes with the query. */
function groupQueryAttention({ op, shape, mask }, [q, k, v]) {
  const { batch, heads, numKvHeads, queries, keys, width } = shape;
  if (op === 'decode' ? queries !== 1 : mask !== 'causal') return null;
  const past = op === 'decode' ? keys - 1 : 0;
  const piece = ({ data }, first, count) => {
    const part = new Float32Array(batch * numKvHeads * count * width);
    for (let head = 0; head < batch * numKvHeads; head += 1) {
      const from = (head * keys + first) * width;
      part.set(data.subarray(from, from + count * width), head * count * width);
    }
    return { shape: [batch, numKvHeads, count, width], data: part };
  };
  const newest = (tensor) => tokensFirst(piece(tensor, past, keys - past));
  const feeds = { q: tokensFirst(q), k: newest(k), v: newest(v) };
  const older = past ? { pastKey: piece(k, 0, past), pastValue: piece(v, 0, past) } : {};
  const lengths = { shape: [batch], data: new Int32Array(batch).fill(keys - 1), type: 'int32' };
  const total = { shape: [], data: Int32Array.of(keys), type: 'int32' };
  const inputs = ['q', 'k', 'v', past ? 'pastKey' : '', past ? 'pastValue' : '', 'lengths', 'total'];
  const attributes = { num_heads: heads, kv_num_heads: numKvHeads };
  return {
    feeds: { ...feeds, ...older, lengths, total },
    graph: {
      nodes: [{ op: 'GroupQueryAttention', domain: MICROSOFT, inputs, outputs: ['out', 'newKeys', 'newValues'], attributes }],
    },
    ...headsFirst(shape),
  };
}

/** The module; its weights are constants, so that ONNX Runtime can pack them in advance. */
function module({ shape }) {
  const { heads, queries, width } = shape;
  const embed = heads * width;
  const names = ['wq', 'wk', 'wv', 'wo'];
  const constants = names.map((name, at) => {
    const rows = randomFloats(embed * embed, 2 + at).map((value) => value * Math.fround(0.05));
    return { name, shape: [embed, embed], data: swapMiddle(rows, [1, embed, embed, 1]) };
  });
  const x = { shape: [1, queries, embed], data: randomFloats(queries * embed, 1) };
  return {
    feeds: { x },
    graph: {
      nodes: [
        ...['q', 'k', 'v'].map((name) => ({ op: 'MatMul', inputs: ['x', `w${name}`], outputs: [name] })),
        {
          op: 'MultiHeadAttention',
          domain: MICROSOFT,
          inputs: ['q', 'k', 'v'],
          outputs: ['merged'],
          attributes: { num_heads: heads },
        },
        { op: 'MatMul', inputs: ['merged', 'wo'] },
      ],
      constants,
    },
    outShape: x.shape,
  };
}

const WAYS = {
  Attention: attentionOp,
  MatMul: products,
  MultiHeadAttention: multiHeadAttention,
  GroupQueryAttention: groupQueryAttention,
};

/** True if ONNX Runtime has a counterpart of the case. */
export const isOffered = ({ op, mask, dtype }) =>
  dtype === 'f32' && !['append', 'cache', 'gemm', 'merge', 'step'].includes(op) && ['full', 'causal', 'boolean', 'bias'].includes(mask);

/**
 * @param {object} which one of CASES
 * @returns {{ way: string, model: () => Uint8Array, feeds: object, outShape: number[], toOurs?: (data) => data }[]}
 *   empty if the case has no counterpart
 */
export function onnxWays(which) {
  if (!isOffered(which)) return [];
  const inputs = which.op === 'module' ? [] : inputsOf(which.shape);
  const ways = which.op === 'module' ? { MultiHeadAttention: module } : WAYS;
  return Object.entries(ways).flatMap(([way, make]) => {
    const made = make(which, inputs);
    if (!made) return [];
    const { feeds, graph, outShape, toOurs } = made;
    const nodes = graph.nodes.map((node) => ({ outputs: ['out'], ...node }));
    const described = Object.entries(feeds).map(([name, { type, shape }]) => ({ name, type, shape }));
    const outputs = [...nodes.at(-1).outputs].map((name) => ({ name, ...(name === 'out' && { shape: outShape }) }));
    return [{ way, feeds, outShape, toOurs, model: () => onnxModel({ ...graph, nodes, inputs: described, outputs }) }];
  });
}
