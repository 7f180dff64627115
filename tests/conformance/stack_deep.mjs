// Writes stack_deep.json and stack_deep.safetensors: deeper transformers than in stack.json, computed here in
// float64 from the definition of attention_only_transformer, without using the library.
//
//   node tests/conformance/stack_deep.mjs
import { writeFileSync } from 'node:fs';

const cases = [
  { name: 'stack_3_rope_half_gqa', layers: 3, heads: 4, numKvHeads: 2, width: 4, positions: 'rope_half', base: 10000 },
  { name: 'stack_3_learned', layers: 3, heads: 2, numKvHeads: 2, width: 4, positions: 'learned', base: null },
  { name: 'stack_12_rope_interleaved', layers: 12, heads: 2, numKvHeads: 1, width: 4, positions: 'rope_interleaved', base: 100 },
];
const [embed, vocab, batch, length] = [8, 11, 2, 6];

// Mulberry32 with a fixed seed, so that every run writes the same bytes.
let state = 13;
function uniform() {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const random = (rows, columns, size) => ({
  shape: [rows, columns],
  data: Float32Array.from({ length: rows * columns }, () => size * (2 * uniform() - 1)),
});

/** x · w, for rows of numbers. */
const times = (x, { shape: [rows, columns], data }) =>
  x.map((row) =>
    Array.from({ length: columns }, (_, c) => {
      let sum = 0;
      for (let r = 0; r < rows; r += 1) sum += row[r] * data[r * columns + c];
      return sum;
    }),
  );

/** One head's part of a row, after RoPE at its position. */
function rotated(head, position, { positions, base }) {
  if (positions === 'learned') return head;
  const half = head.length / 2;
  const turned = [...head];
  for (let pair = 0; pair < half; pair += 1) {
    const [a, b] = positions === 'rope_half' ? [pair, pair + half] : [2 * pair, 2 * pair + 1];
    const angle = position * base ** (-pair / half);
    turned[a] = head[a] * Math.cos(angle) - head[b] * Math.sin(angle);
    turned[b] = head[a] * Math.sin(angle) + head[b] * Math.cos(angle);
  }
  return turned;
}

/** Causal attention of one sequence, and the residual addition. */
function layer(x, { w_q, w_k, w_v, w_o }, options) {
  const { heads, numKvHeads, width } = options;
  const part = (row, head) => row.slice(head * width, (head + 1) * width);
  const [q, k, v] = [times(x, w_q), times(x, w_k), times(x, w_v)];
  const merged = q.map((row, i) =>
    Array.from({ length: heads }, (_, head) => {
      const shared = Math.floor(head / (heads / numKvHeads));
      const query = rotated(part(row, head), i, options);
      const exponentials = k.slice(0, i + 1).map((other, j) => {
        const key = rotated(part(other, shared), j, options);
        return Math.exp(query.reduce((sum, each, c) => sum + each * key[c], 0) / Math.sqrt(width));
      });
      const total = exponentials.reduce((a, b) => a + b);
      return Array.from({ length: width }, (_, c) => exponentials.reduce((sum, each, j) => sum + (each / total) * part(v[j], shared)[c], 0));
    }).flat(),
  );
  const added = times(merged, w_o);
  return x.map((row, i) => row.map((each, c) => each + added[i][c]));
}

const tensors = {};
const entries = cases.map((options) => {
  const { name, layers, heads, numKvHeads, width, positions } = options;
  const tokens = Int32Array.from({ length: batch * length }, () => Math.floor(uniform() * vocab));
  const inputs = { tokens: { shape: [batch, length], data: tokens }, tok_emb: random(vocab, embed, 1) };
  if (positions === 'learned') inputs.pos_emb = random(length + 1, embed, 1);
  const weights = Array.from({ length: layers }, (_, index) => {
    const ofLayer = {
      w_q: random(embed, heads * width, 0.8),
      w_k: random(embed, numKvHeads * width, 0.8),
      w_v: random(embed, numKvHeads * width, 0.5),
      w_o: random(heads * width, embed, 0.3),
    };
    for (const [part, tensor] of Object.entries(ofLayer)) inputs[`layers.${index}.${part}`] = tensor;
    return ofLayer;
  });
  inputs.unembed = random(embed, vocab, 0.5);

  const row = ({ data }, index) => [...data.subarray(index * embed, (index + 1) * embed)];
  let sequences = Array.from({ length: batch }, (_, b) =>
    Array.from({ length }, (_, i) => {
      const position = inputs.pos_emb ? row(inputs.pos_emb, i) : [];
      return row(inputs.tok_emb, tokens[b * length + i]).map((each, c) => each + (position[c] ?? 0));
    }),
  );
  const golden = (numbers, last) => ({ shape: [batch, length, last], data: Float32Array.from(numbers.flat(2)) });
  const outputs = {};
  for (const [index, ofLayer] of weights.entries()) {
    sequences = sequences.map((x) => layer(x, ofLayer, options));
    outputs[`hidden_${index}`] = golden(sequences, embed);
  }
  outputs.logits = golden(
    sequences.map((x) => times(x, inputs.unembed)),
    vocab,
  );

  const stored = (part) =>
    Object.fromEntries(
      Object.entries(part).map(([argument, tensor]) => {
        tensors[`${name}/${argument}`] = tensor;
        return [argument, `${name}/${argument}`];
      }),
    );
  return {
    name,
    op: 'attention_only_transformer',
    attrs: { layers, num_heads: heads, num_kv_heads: numKvHeads, head_dim: width, vocab, positions, rope_base: options.base },
    inputs: stored(inputs),
    outputs: stored(outputs),
    tolerance: { atol: 2e-5, rtol: 2e-5 },
    source: 'tests/conformance/stack_deep.mjs, float64',
  };
});

const header = {};
let end = 0;
for (const [name, { shape, data }] of Object.entries(tensors)) {
  const dtype = data instanceof Int32Array ? 'I32' : 'F32';
  header[name] = { dtype, shape, data_offsets: [end, (end += data.byteLength)] };
}
const text = JSON.stringify(header);
const encoded = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
const size = Buffer.alloc(8);
size.writeBigUInt64LE(BigInt(encoded.length));
const numbers = Object.values(tensors).map(({ data }) => Buffer.from(data.buffer));
const here = (name) => new URL(name, import.meta.url);
writeFileSync(here('stack_deep.safetensors'), Buffer.concat([size, encoded, ...numbers]));
const lines = entries.map((entry) => `  ${JSON.stringify(entry)}`).join(',\n');
writeFileSync(here('stack_deep.json'), `{\n "file": "stack_deep.safetensors",\n "cases": [\n${lines}\n ]\n}\n`);
