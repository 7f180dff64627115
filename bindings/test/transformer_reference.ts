// Transformer blocks and transformers in float64, written from their definitions and with module_reference.ts.

import type { PlainTensor, Transformer, TransformerBlock } from 'multihead';
import { module } from './module_reference.ts';
import type { Plain } from './reference.ts';
import * as reference from './reference.ts';

type Dict = Readonly<Record<string, PlainTensor>>;
type BlockConfig = TransformerBlock['config'];

/** The parameters whose names begin with `prefix`, without the prefix. */
export const under = (dict: Dict, prefix: string): Dict =>
  Object.fromEntries(
    Object.entries(dict)
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, tensor]) => [name.slice(prefix.length), tensor]),
  );

function normalized(x: Plain, dict: Dict, name: string, config: BlockConfig): Plain {
  const { [`${name}.weight`]: gain, [`${name}.bias`]: bias } = dict;
  if (config.norm === 'none') return x;
  const width = config.embedDim;
  const y = Float64Array.from(x.data);
  for (let from = 0; from < y.length; from += width) {
    const row = y.subarray(from, from + width);
    const mean = config.norm === 'layerNorm' ? row.reduce((a, b) => a + b, 0) / width : 0;
    const squares = row.reduce((sum, each) => sum + (each - mean) ** 2, 0);
    const factor = 1 / Math.sqrt(squares / width + Math.fround(config.normEps));
    row.forEach((each, c) => {
      row[c] = (each - mean) * factor * (gain?.data[c] ?? 1) + (bias?.data[c] ?? 0);
    });
  }
  return { shape: x.shape, data: y };
}

/** Abramowitz and Stegun, 7.1.5: the series of erf, which converges for all x that appear here. */
function erf(x: number): number {
  let sum = x;
  for (let n = 1, term = x; n < 200; n += 1) {
    term *= (-x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

const activations = {
  relu: (u: number) => Math.max(u, 0),
  gelu: (u: number) => (u / 2) * (1 + erf(u / Math.SQRT2)),
  geluTanh: (u: number) => (u / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3))),
  silu: (u: number) => u / (1 + Math.exp(-u)),
};

function linear(x: Plain, dict: Dict, name: string): Plain {
  const weight = dict[`${name}.weight`] as PlainTensor;
  const data = reference.linear(x, weight, dict[`${name}.bias`]);
  return { shape: [...x.shape.slice(0, -1), weight.shape[0] as number], data };
}

const sum = (a: Plain, b: Plain): Plain => ({
  shape: a.shape,
  data: Float64Array.from(a.data, (value, i) => value + (b.data[i] as number)),
});

/** x (B, N, embedDim); parameters under PyTorch's names. */
export function block(config: BlockConfig, dict: Dict, x: Plain, causal: boolean): { out: Plain; attentionOut: Plain } {
  const { normFirst: first, mlpDim, gated, activation } = config;
  const { embedDim: width } = config;
  const attentionConfig = { ...config, kdim: width, vdim: width, outDim: width, batchFirst: true };
  const attended = module({
    config: attentionConfig,
    dict: under(dict, 'self_attn.'),
    query: first ? normalized(x, dict, 'norm1', config) : x,
    options: { causal: causal ? 'topLeft' : false },
  }).output;
  const attentionOut = { shape: x.shape, data: attended };
  let out = sum(x, attentionOut);
  if (!first) out = normalized(out, dict, 'norm1', config);
  if (mlpDim === undefined) return { out, attentionOut };

  const into = first ? normalized(out, dict, 'norm2', config) : out;
  const inner = linear(into, dict, 'linear1');
  const act = activations[activation];
  const gate = gated ? linear(into, dict, 'linear_gate') : undefined;
  const data = Float64Array.from(inner.data, (value, i) => (gate === undefined ? act(value) : act(gate.data[i] as number) * value));
  out = sum(out, linear({ shape: inner.shape, data }, dict, 'linear2'));
  return { out: first ? out : normalized(out, dict, 'norm2', config), attentionOut };
}

/** tokens (batch · N). `hidden` is the output of each layer. */
export function model(config: Transformer['config'], dict: Dict, tokens: Int32Array, batch: number): { logits: Plain; hidden: Plain[] } {
  const { embedDim: width, numLayers } = config;
  const length = tokens.length / batch;
  const row = (name: string, index: number, c: number): number => dict[name]?.data[index * width + c] ?? 0;
  const data = Float64Array.from({ length: tokens.length * width }, (_, i) => {
    const [at, c] = [Math.floor(i / width), i % width];
    return row('embedding.weight', tokens[at] as number, c) + row('position.weight', at % length, c);
  });
  let x: Plain = { shape: [batch, length, width], data };
  const hidden: Plain[] = [];
  for (let index = 0; index < numLayers; index += 1) {
    x = block(config, under(dict, `layers.${index}.`), x, config.causal).out;
    hidden.push(x);
  }
  if (config.finalNorm) x = normalized(x, dict, 'norm', config);
  const output = config.tiedOutput ? 'embedding' : 'output';
  return { logits: linear(x, { ...dict, 'output.bias': undefined as never }, output), hidden };
}
