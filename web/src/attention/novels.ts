// The words model of the first screen, two layers of attention without MLPs: reads the file that `npm run train-english -- --model
// words` makes, gives the heads of a layer, and predicts the next word from the output of that layer's attention, so that whatever is
// bent there counts.

import type { Multihead, PlainTensor } from 'multihead';
import type { Matrix } from './matrix.js';
import type { GivenHeads, NextWords } from './messages.js';
import { classes, vocabularyOf } from './vocabulary.js';

interface Shape {
  readonly numLayers: number;
  readonly numHeads: number;
  readonly embedDim: number;
  /** The names of all heads, by layer. */
  readonly names: readonly string[];
  readonly lines: readonly string[];
}

type Numbers = Float32Array<ArrayBuffer>;

const shown = 5;

/** Each row divided by its root mean square, times the gains. */
function normed(rows: Numbers, gains: Numbers): Numbers {
  const width = gains.length;
  return rows.map((value, i) => {
    const start = i - (i % width);
    let square = 0;
    for (let at = start; at < start + width; at += 1) square += rows[at]! ** 2;
    return (value / Math.sqrt(square / width + 1e-5)) * gains[i % width]!;
  });
}

/** Reads the matrices and gains of a file; native/dev/english/packed.mjs describes it. */
function unpack(text: string) {
  const [header = '', list = '', gainsLine = '', packed = ''] = text.split('\n');
  const shape = JSON.parse(header) as Shape;
  const words = list.split(' ');
  const { numLayers, embedDim: width } = shape;
  const gains = gainsLine.split(' ').map(Number);
  let row = 0;
  let at = classes.length + words.length + numLayers * 4 * width;
  const matrix = (rows: number, columns: number): { data: Numbers; shape: number[] } => {
    const data = new Float32Array(rows * columns);
    for (let i = 0; i < data.length; i += 2) {
      const scale = 2 ** ((packed.charCodeAt(row + Math.floor(i / columns)) - 126) / 4);
      const pair = packed.charCodeAt(at) - 35;
      data[i] = scale * (Math.floor(pair / 5) - 2);
      data[i + 1] = scale * ((pair % 5) - 2);
      at += 1;
    }
    row += rows;
    return { data, shape: [rows, columns] };
  };
  const vector = () => ({ data: Float32Array.from(gains.splice(0, width)), shape: [width] });
  const embedding = matrix(classes.length + words.length, width).data;
  const layers = Array.from({ length: numLayers }, () => ({
    'norm1.weight': vector(),
    'self_attn.in_proj_weight': matrix(3 * width, width),
    'self_attn.out_proj.weight': matrix(width, width),
  }));
  return { shape, words, embedding, layers, norm: vector().data };
}

export function createNovels(mh: Multihead, text: string) {
  const { shape, words, embedding, layers, norm } = unpack(text);
  const { numLayers, numHeads, embedDim: width, names, lines } = shape;
  const rope = { style: 'half', base: 10000 } as const;
  const idOf = vocabularyOf(words);
  const block = (weights: Record<string, PlainTensor>) => {
    const made = mh.transformerBlock({ embedDim: width, numHeads, bias: false, norm: 'rmsNorm', rope });
    made.loadStateDict(weights);
    return (rows: Numbers): Numbers =>
      mh.scope(
        () => new Float32Array(made.forward({ data: rows, shape: [1, rows.length / width, width] }, { causal: 'topLeft' }).output.toFloat32()),
      );
  };
  const blocks = layers.map(block);

  function nextWords(hidden: Numbers): NextWords {
    const last = normed(hidden.slice(-width), norm);
    const logits = Float32Array.from({ length: embedding.length / width }, (_, id) =>
      last.reduce((sum, value, i) => sum + value * embedding[id * width + i]!, 0),
    );
    const largest = Math.max(...logits);
    const sizes = logits.map((logit) => Math.exp(logit - largest));
    const sum = sizes.reduce((a, b) => a + b);
    const best = words.map((word, i) => ({ word, share: sizes[classes.length + i]! / sum })).sort((a, b) => b.share - a.share);
    return { words: best.slice(0, shown), unknown: sizes.subarray(0, classes.length).reduce((a, b) => a + b) / sum };
  }

  return {
    /** The heads of a layer on these tokens. `next` takes the output of that layer's attention. */
    read(tokens: readonly string[], layer: number) {
      let hidden = new Float32Array(tokens.length * width);
      tokens.forEach((token, i) => hidden.set(embedding.subarray(idOf(token) * width, (idOf(token) + 1) * width), i * width));
      for (const run of blocks.slice(0, layer)) hidden = run(hidden);
      const weights = layers[layer]!;
      const packed = weights['self_attn.in_proj_weight'].data;
      const ofLayer = (all: readonly string[]) => all.slice(layer * numHeads, (layer + 1) * numHeads);
      const part = (i: number): Numbers => packed.slice(i * width ** 2, (i + 1) * width ** 2);
      const given: GivenHeads = {
        ...{ key: `novels ${layer} ${tokens.join(' ')}`, tokens, x: normed(hidden, weights['norm1.weight'].data) },
        ...{ embedDim: width, headDim: width / numHeads, rope, layer, layers: numLayers },
        weights: { qProj: part(0), kProj: part(1), vProj: part(2), outProj: weights['self_attn.out_proj.weight'].data },
        ...{ names: ofLayer(names), lines: ofLayer(lines), line: '' },
        unknown: [...tokens.keys()].filter((at) => idOf(tokens[at]!) < classes.length),
      };
      return {
        given,
        next: ({ data }: Matrix): NextWords => {
          const after = hidden.map((value, i) => value + data[i]!);
          return nextWords(blocks.slice(layer + 1).reduce((rows, run) => run(rows), after));
        },
      };
    },
  };
}
