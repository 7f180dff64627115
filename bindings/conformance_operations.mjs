// The operations of golden cases by calls of the package, and how their results are compared: for conformance.mjs, and in a page for
// the browser's GPU (tests/gpu).

import { swapMiddle } from './bench/inputs.mjs';
import { note, NotSupported, pick, product } from './conformance_case.mjs';

/** Describes how `actual` differs from the golden tensor; undefined if it agrees. */
function difference(name, actual, golden, { atol, rtol }) {
  if (actual === undefined) return `${name} was not computed`;
  if (actual.shape.join() !== golden.shape.join()) {
    return `${name} has shape (${actual.shape}), expected (${golden.shape})`;
  }
  let worst = 0;
  let text;
  for (let i = 0; i < golden.data.length; i += 1) {
    const r = actual.data[i];
    const g = golden.data[i];
    if (r === g) continue;
    const error = Number.isFinite(g) && Number.isFinite(r) ? Math.abs(r - g) : Infinity;
    note(name, error / Math.max(1, Math.abs(g)));
    const excess = error / (atol + rtol * Math.abs(g));
    if (excess > 1 && excess > worst) {
      worst = excess;
      text = `${name}[${i}] is ${r}, expected ${g} (${excess.toPrecision(3)} times the tolerance)`;
    }
  }
  return text;
}

/** A printed number may be off by one in its last place: one of them was computed from scores with more digits. */
function differenceFromPrinted(weights, printed, attrs) {
  const { printed_decimals: decimals } = attrs;
  if (printed.shape.join() !== weights.shape.join()) {
    return `printed_weights has shape (${printed.shape}), expected (${weights.shape})`;
  }
  const width = printed.shape.at(-1);
  const rows = printed.shape.at(-2);
  const unit = 10 ** -decimals;
  for (let i = 0; i < printed.data.length; i += 1) {
    const row = Math.floor(i / width) % rows;
    if (attrs.printed_rows_wrong?.includes(row)) continue;
    const error = Math.abs(weights.data[i] - printed.data[i]);
    if (!(error <= 1.01 * unit)) {
      return `weights[${i}] is ${weights.data[i]}, printed as ${printed.data[i]}`;
    }
  }
  return undefined;
}

// ---- Operations: (mh, attrs, inputs, wanted outputs) → { output name: { shape, data } } ----

const float = ({ shape, data }) => ({ shape, data });

/** Reads attributes that say what the shapes and types of the tensors say, too: reading an attribute marks it as used. */
const implied = (..._attributes) => {};

/** Keeps (N_q, N_k); aligns any other shape at its end with (B, H, N_q, N_k). */
function maskLike({ shape, data }) {
  if (shape.length === 2 || shape.length === 4) return { shape, data };
  return { shape: [...Array(4 - shape.length).fill(1), ...shape], data };
}

const alignments = {
  top_left: 'topLeft',
  bottom_right: 'bottomRight',
  bottom_right_kv_len: 'bottomRightOfLength',
};

function alignmentOf({ align = 'top_left', offset }) {
  if (align === 'explicit') return { offset };
  if (alignments[align] === undefined) throw new NotSupported(`align ${align}`);
  return alignments[align];
}

/** Reads the alignment. It must be valid even if it has no effect. */
function causalOf(attrs) {
  const alignment = alignmentOf(attrs);
  return attrs.causal ? alignment : false;
}

/** The options that attention over a batch and over packed sequences share. */
function scoringOptions(attrs, { alibi_slopes, sinks }) {
  const { window_left: left = -1, window_right: right = -1, alibi, alibi_max_bias: bias = 8, softcap, scale, rope } = attrs;
  implied(attrs.enable_gqa, attrs.mask_kind);
  if (bias !== 8) throw new NotSupported(`alibi_max_bias ${bias}`);
  const options = { causal: causalOf(attrs) };
  if (left >= 0 || right >= 0) {
    options.window = { left, right };
    if (!attrs.causal) options.window.align = alignmentOf(attrs);
  }
  if (alibi_slopes !== undefined) options.alibi = alibi_slopes.data;
  else if (alibi) options.alibi = true; // with the slopes of the paper
  if (softcap) options.softcap = softcap;
  if (scale !== undefined) options.scale = scale;
  if (sinks !== undefined) options.sinks = sinks.data;
  if (rope) options.rope = { style: rope.style, base: rope.base, rotaryDim: rope.rotary_dim };
  return options;
}

/** Positions 0 … count − 1. */
const upTo = (count) => Int32Array.from({ length: count }, (_, index) => index);

/** The options of attention over a batch, forward and backward. */
function batchOptions(attrs, inputs) {
  const { mask, kv_len, q_positions, k_positions } = inputs;
  const options = scoringOptions(attrs, inputs);
  if (mask !== undefined) options[mask.dtype === 'bool' ? 'mask' : 'bias'] = maskLike(mask);
  if (kv_len !== undefined) options.kvLengths = kv_len.data;
  if (q_positions !== undefined) options.rope = { ...options.rope, qPositions: q_positions.data };
  if (k_positions !== undefined) options.rope = { ...options.rope, kPositions: k_positions.data };
  return options;
}

function attention(mh, attrs, inputs, wanted) {
  const [q, k, v] = [float(inputs.q), float(inputs.k), float(inputs.v)];
  const { q_positions, k_positions } = inputs;
  const options = batchOptions(attrs, inputs);
  const { rope } = scoringOptions(attrs, inputs); // without positions, which are a separate argument of rotate()

  const returned = wanted.filter((name) => name === 'lse' || name === 'weights');
  const result = { ...mh.attention(q, k, v, { ...options, return: returned }) };
  if (wanted.includes('lse_no_sink')) {
    const { sinks: _, ...withoutSinks } = options;
    result.lse_no_sink = mh.attention(q, k, v, { ...withoutSinks, return: ['lse'] }).lse;
  }
  if (wanted.includes('q_rotated')) {
    result.q_rotated = mh.rotate(q, q_positions?.data ?? upTo(q.shape[2]), rope);
  }
  if (wanted.includes('k_rotated')) {
    result.k_rotated = mh.rotate(k, k_positions?.data ?? upTo(k.shape[2]), rope);
  }
  return result;
}

/** d_mask has the shape of the mask, which may have fewer axes than the bias that it becomes. */
function attentionGrad(mh, attrs, inputs) {
  const [q, k, v] = [float(inputs.q), float(inputs.k), float(inputs.v)];
  const { mask, sinks, d_out } = inputs;
  const options = batchOptions(attrs, inputs);
  const { out, lse } = mh.attention(q, k, v, { ...options, return: ['lse'] });
  const gradients = mh.attentionBackward({ q, k, v, out, lse, dOut: float(d_out) }, options);
  const { dQ: d_q, dK: d_k, dV: d_v, dBias, dSinks } = gradients;
  return {
    ...{ out, lse, d_q, d_k, d_v },
    d_mask: dBias && { shape: mask.shape, data: dBias.data },
    d_sinks: dSinks && { shape: sinks.shape, data: dSinks },
  };
}

function attentionVarlen(mh, attrs, inputs, wanted) {
  const { q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sinks } = inputs;
  return mh.attentionVarlen(float(q), float(k), float(v), {
    ...scoringOptions(attrs, { alibi_slopes, sinks }),
    cuQ: cu_seqlens_q.data,
    cuK: cu_seqlens_k.data,
    return: wanted.filter((name) => name === 'lse'),
  });
}

/** (B, S, H · D) → (B, S, H, D) → (B, H, S, D); a tensor with four axes stays. */
function splitHeads({ shape, data }, heads) {
  if (shape.length === 4) return { shape, data };
  const [batch, rows, merged] = shape;
  const width = merged / heads;
  return {
    shape: [batch, heads, rows, width],
    data: swapMiddle(data, [batch, rows, heads, width]),
  };
}

/** (B, H, S, D) → (B, S, H · D). */
function mergeHeads({ shape, data }) {
  const [batch, heads, rows, width] = shape;
  return { shape: [batch, rows, heads * width], data: swapMiddle(data, shape) };
}

/** Concatenates `past` and `present` along the third of four axes. */
function concatenate(past, present) {
  if (past === undefined) return present;
  const [batch, heads, before, width] = past.shape;
  const rows = present.shape[2];
  const data = new Float32Array(batch * heads * (before + rows) * width);
  for (let i = 0; i < batch * heads; i += 1) {
    const at = i * (before + rows) * width;
    data.set(past.data.subarray(i * before * width, (i + 1) * before * width), at);
    data.set(present.data.subarray(i * rows * width, (i + 1) * rows * width), at + before * width);
  }
  return { shape: [batch, heads, before + rows, width], data };
}

/** Extends a mask that is shorter than the keys with "do not attend". Before opset 24, a last axis of 1 broadcasts. */
function continued(mask, keys, opset) {
  const { shape, data } = maskLike(mask);
  const reach = shape.at(-1);
  if (reach >= keys || (reach === 1 && opset < 24)) return { shape, data };
  const rows = product(shape.slice(0, -1));
  const hidden = mask.dtype === 'bool' ? 0 : -Infinity;
  const longer = new data.constructor(rows * keys).fill(hidden);
  for (let row = 0; row < rows; row += 1) {
    longer.set(data.subarray(row * reach, (row + 1) * reach), row * keys);
  }
  return { shape: [...shape.slice(0, -1), keys], data: longer };
}

/** https://onnx.ai/onnx/operators/onnx__Attention.html, opsets 23 and 24. */
function onnxAttention(mh, attrs, inputs, wanted) {
  const { Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen } = inputs;
  const { opset = 23, qk_matmul_output_mode: mode = 0 } = attrs;
  const q = splitHeads(Q, attrs.q_num_heads);
  const newKeys = splitHeads(K, attrs.kv_num_heads);
  const k = concatenate(past_key, newKeys);
  const v = concatenate(past_value, splitHeads(V, attrs.kv_num_heads));
  const [pastLength, keys] = [k.shape[2] - newKeys.shape[2], k.shape[2]];

  const options = { causal: attrs.is_causal ? { offset: pastLength } : false };
  if (attrs.scale !== undefined) options.scale = attrs.scale;
  if (nonpad_kv_seqlen !== undefined) {
    options.kvLengths = Int32Array.from(nonpad_kv_seqlen.data, Number);
  }
  if (attn_mask !== undefined) {
    const name = attn_mask.dtype === 'bool' ? 'mask' : 'bias';
    options[name] = continued(attn_mask, keys, opset);
  }
  if (attrs.softcap) {
    if (attn_mask !== undefined || nonpad_kv_seqlen !== undefined || attrs.is_causal) {
      throw new NotSupported('a mask with softcap, which ONNX applies after the mask');
    }
    options.softcap = attrs.softcap;
  }
  if (wanted.includes('qk_matmul_output')) {
    // Mode 2 is the value after soft cap and mask; the only stage after both is 'masked'.
    const stage = ['raw', 'masked', 'masked', 'weights'][mode];
    options.capture = [{ stage }];
  }
  const { out, captures } = mh.attention(q, float(k), float(v), options);
  return {
    Y: Q.shape.length === 3 ? mergeHeads(out) : out,
    present_key: k,
    present_value: v,
    qk_matmul_output: captures?.[0],
  };
}

/** Queries and keys are zero, and the scores are passed as the bias: 0 + bias equals the score exactly. */
function softmaxMasked(mh, attrs, { scores }) {
  const [n, m] = scores.shape.slice(-2);
  const matrices = product(scores.shape.slice(0, -2));
  const zeros = (length) => ({
    shape: [1, matrices, length, 1],
    data: new Float32Array(matrices * length),
  });
  const { weights, lse } = mh.attention(zeros(n), zeros(m), zeros(m), {
    bias: { shape: [1, matrices, n, m], data: scores.data },
    causal: causalOf(attrs),
    return: ['weights', 'lse'],
  });
  return {
    weights: { shape: scores.shape, data: weights.data },
    lse: { shape: scores.shape.slice(0, -1), data: lse.data },
  };
}

/** Transposes each matrix of a stack, (rows, columns) → (columns, rows); the stack becomes one matrix. */
function transpose({ shape, data }) {
  const [rows, columns] = shape.slice(-2);
  const stack = product(shape.slice(0, -2));
  return { shape: [stack * columns, rows], data: swapMiddle(data, [stack, rows, columns, 1]) };
}

function headsConcat(mh, attrs, { x, w_q, w_k, w_v, w_o }) {
  const [numHeads, embedDim, headDim] = w_q.shape;
  implied(attrs.num_heads);
  const projects = w_o !== undefined;
  const layer = mh.multiHeadAttention({
    ...{ embedDim, numHeads, headDim, bias: false, outProj: projects },
    ...(projects && { outDim: w_o.shape[1] }),
  });
  layer.loadStateDict({
    q_proj_weight: transpose(w_q),
    k_proj_weight: transpose(w_k),
    v_proj_weight: transpose(w_v),
    ...(projects && { 'out_proj.weight': transpose(w_o) }),
  });
  const causal = attrs.causal ? 'topLeft' : false;
  const { output, weights } = layer.forward(float(x), { causal, return: ['weights'] });
  return { out: output, weights };
}

/** Converts the masks of nn.MultiheadAttention: true means "may not attend"; floats are added to the scores. */
function blockingOptions(attn_mask, key_padding_mask, heads) {
  const options = {};
  if (attn_mask?.dtype === 'bool') options.attnMaskBlocked = float(attn_mask);
  else if (attn_mask !== undefined) {
    const { shape, data } = attn_mask;
    const [rows, ...rest] = shape;
    options.bias = { shape: shape.length === 2 ? shape : [rows / heads, heads, ...rest], data };
  }
  if (key_padding_mask !== undefined) {
    const blocks = key_padding_mask.dtype === 'bool';
    options[blocks ? 'keyPaddingBlocked' : 'keyPaddingBias'] = float(key_padding_mask);
  }
  return options;
}

/**
 * Makes the module of a case, its inputs and its options. Every tensor that is neither a token nor a mask is a
 * parameter under its own name.
 */
function multiheadModule(mh, attrs, inputs) {
  const { query, key, value, attn_mask, key_padding_mask, d_out: _, ...parameters } = inputs;
  implied(attrs.unbatched, attrs.self_attention);
  const { embed_dim: embedDim, num_heads: numHeads, kdim, vdim, bias = true } = attrs;
  const layer = mh.multiHeadAttention({
    ...{ embedDim, numHeads, kdim, vdim, bias: Boolean(bias) },
    addBiasKv: Boolean(attrs.add_bias_kv),
    addZeroAttn: Boolean(attrs.add_zero_attn),
    batchFirst: Boolean(attrs.batch_first),
  });
  const dict = Object.entries(parameters).map(([name, tensor]) => [name, float(tensor)]);
  layer.loadStateDict(Object.fromEntries(dict));

  const tokens = { query: float(query) };
  if (key !== undefined) tokens.key = float(key);
  if (value !== undefined) tokens.value = float(value);
  const options = {
    ...blockingOptions(attn_mask, key_padding_mask, numHeads),
    causal: attrs.is_causal ? 'topLeft' : false,
  };
  return { layer, tokens, options };
}

function forwardOf({ layer, tokens, options }, attrs) {
  const returned = attrs.average_attn_weights ? 'meanWeights' : 'weights';
  const { output, ...others } = layer.forward(tokens, {
    ...options,
    return: attrs.need_weights ? [returned] : [],
  });
  return { out: output, weights: others[returned] };
}

const multiheadAttention = (mh, attrs, inputs) => forwardOf(multiheadModule(mh, attrs, inputs), attrs);

/** Names of parameter gradients are `d_` and the parameter's name. */
function multiheadAttentionGrad(mh, attrs, inputs) {
  const module = multiheadModule(mh, attrs, inputs);
  const { layer, tokens, options } = module;
  const { dQuery, dKey, dValue, parameters } = layer.backward(tokens, float(inputs.d_out), options);
  const ofParameters = Object.entries(parameters).map(([name, tensor]) => [`d_${name}`, tensor]);
  return {
    ...forwardOf(module, attrs),
    ...{ d_query: dQuery, d_key: dKey, d_value: dValue },
    ...Object.fromEntries(ofParameters),
  };
}

const positionsOf = {
  learned: {},
  rope_half: { style: 'half' },
  rope_interleaved: { style: 'interleaved' },
};

/** Weights of these cases are (in, out); `hidden_l` is x after layer l. */
function attentionOnlyTransformer(mh, attrs, inputs) {
  const { tokens, tok_emb, pos_emb, unembed } = inputs;
  const { layers, num_heads: numHeads, head_dim: headDim, positions, rope_base: base } = attrs;
  implied(attrs.vocab);
  const learned = positions === 'learned';
  const [vocabSize, embedDim] = tok_emb.shape;

  const dict = { 'embedding.weight': float(tok_emb), 'output.weight': transpose(unembed) };
  if (learned) dict['position.weight'] = float(pos_emb);
  for (let layer = 0; layer < layers; layer += 1) {
    const weight = (name) => transpose(inputs[`layers.${layer}.${name}`]);
    const parts = ['w_q', 'w_k', 'w_v'].map(weight);
    const to = `layers.${layer}.self_attn.`;
    dict[`${to}in_proj_weight`] = {
      shape: [parts.reduce((rows, { shape }) => rows + shape[0], 0), parts[0].shape[1]],
      data: Float32Array.from(parts.flatMap(({ data }) => [...data])),
    };
    dict[`${to}out_proj.weight`] = weight('w_o');
  }
  const model = mh.transformer({
    ...{ embedDim, numHeads, headDim, vocabSize, numLayers: layers, bias: false, norm: 'none' },
    numKvHeads: attrs.num_kv_heads ?? numHeads,
    ...(learned ? { maxPositions: pos_emb.shape[0] } : { rope: { ...positionsOf[positions], base } }),
  });
  model.loadStateDict(dict);

  const [batch, length] = tokens.shape;
  const { logits, hidden } = model.forward(tokens.data, { batch, return: ['logits', 'hidden'] });
  const shape = [batch, length, embedDim];
  const after = Array.from({ length: layers }, (_, layer) => {
    const data = hidden.data.subarray(layer * product(shape), (layer + 1) * product(shape));
    return [`hidden_${layer}`, { shape, data }];
  });
  return { logits, ...Object.fromEntries(after) };
}

function gpt2Block(mh, attrs, { x, ...parameters }) {
  const { num_heads: numHeads, eps: normEps = 1e-5, gelu = 'tanh' } = attrs;
  if (gelu !== 'tanh') throw new NotSupported(`gelu ${gelu}`);
  const block = mh.transformerBlock({
    ...{ embedDim: x.shape[2], numHeads, normEps, activation: 'geluTanh' },
    mlpDim: parameters['mlp.c_fc.weight'].shape[1],
  });
  const dict = Object.entries(parameters).map(([name, tensor]) => [name, float(tensor)]);
  block.loadStateDict(Object.fromEntries(dict), { names: 'gpt2' });
  const options = { causal: 'topLeft', return: ['attentionOut'] };
  const { output, attentionOut } = block.forward(float(x), options);
  return { out: output, attn_out: attentionOut };
}

const operations = {
  attention,
  attention_grad: attentionGrad,
  attention_varlen: attentionVarlen,
  onnx_attention: onnxAttention,
  softmax_masked: softmaxMasked,
  heads_concat: headsConcat,
  multihead_attention: multiheadAttention,
  multihead_attention_grad: multiheadAttentionGrad,
  attention_only_transformer: attentionOnlyTransformer,
  gpt2_block: gpt2Block,
};

// ---- Running ----

/** A manifest uses null, false, 0 and -1 for attributes without effect. */
const isUnset = (value) => [null, false, 0, -1].includes(value);

/** The attributes or inputs of a case, and a check that the operation read all of them. */
function watched(kind, table) {
  const read = new Set();
  const get = (target, name) => {
    read.add(name);
    return target[name];
  };
  const checkAllRead = () => {
    for (const [name, value] of Object.entries(table)) {
      if (!read.has(name) && !isUnset(value)) throw new NotSupported(`${kind} ${name}`);
    }
  };
  return [new Proxy(table, { get }), checkAllRead];
}

/** Returns the reason why a case fails, or undefined. */
export function runCase(mh, entry, tensors) {
  const run = operations[entry.op];
  if (run === undefined) throw new NotSupported(`op ${entry.op}`);
  const set = Object.entries(entry.attrs).filter(([, value]) => value !== null);
  const [attrs, checkAttributes] = watched('attribute', Object.fromEntries(set));
  const [inputs, checkInputs] = watched('input', pick(entry.inputs, tensors));
  const goldens = Object.entries(pick(entry.outputs, tensors));
  if (goldens.every(([, { data }]) => data.length === 0)) throw new Error('outputs: nothing to compare');

  return mh.scope(() => {
    const actual = run(mh, attrs, inputs, Object.keys(entry.outputs));
    for (const [name, golden] of goldens) {
      const tolerance = entry.output_tolerance?.[name] ?? entry.tolerance;
      const reason = difference(name, actual[name], golden, tolerance);
      if (reason !== undefined) return reason;
    }
    const { printed_weights: printed } = inputs;
    const reason = printed && differenceFromPrinted(actual.weights, printed, attrs);
    checkAttributes();
    checkInputs();
    return reason;
  });
}
