// The heads of one layer of a model, as the page's own pass computes them: the layer's projections, read from the model's
// files, and the rows that they read. The families below compute attention just as the page does; others do more.

import { openSafetensors, type RopeRotation, type SafetensorsTensor } from 'multihead';
import type { ModelInfo } from 'multihead/models';
import { transposed, type Matrix } from '../attention/matrix.js';
import { mostHeads, type LayerHeads } from '../attention/messages.js';
import type { ModuleWeights } from '../attention/patterns.js';
import type { GivenFiles } from './messages.js';

/** Largest width of a model: the matrices of a layer travel between the page and its workers. */
const mostEmbedDim = 1024;

type Config = Readonly<Record<string, unknown>>;
type Numbers = Float32Array<ArrayBuffer>;
type Read = (name: string) => Promise<Numbers>;

interface Layer {
  readonly weights: ModuleWeights;
  readonly rope?: RopeRotation;
  /** The norm before attention. */
  readonly norm: (row: Float32Array) => Float32Array;
}

const isGpt2 = ({ model_type: type }: Config): boolean => type === 'gpt2';
const ropeOf = (config: Config): Config => (config['rope_parameters'] ?? config['rope_scaling'] ?? {}) as Config;

/** Reason why the page cannot follow a model's heads, with `tokens` tokens; empty if it can. */
export function whyNot({ modelType, embedDim, numHeads, takesPixels }: ModelInfo, config: Config, tokens: number): string {
  const name = takesPixels ? 'A model of pictures' : `A model of the type ${modelType}`;
  if (!['gpt2', 'llama', 'mistral', 'qwen2'].includes(modelType)) {
    return `${name} shows its heads in “Your own model” only; the steps follow GPT-2, Llama, Mistral and Qwen2`;
  }
  if (embedDim > mostEmbedDim || numHeads > mostHeads) {
    return `This model has ${embedDim} columns and ${numHeads} heads, more than the steps show (${mostEmbedDim} and ${mostHeads})`;
  }
  const { rope_type: kind, type } = ropeOf(config);
  const slides = config['use_sliding_window'] !== false && Number(config['sliding_window'] ?? Infinity) < tokens;
  const isOther = config['scale_attn_by_inverse_layer_idx'] === true || config['scale_attn_weights'] === false;
  return slides || isOther || (kind ?? type ?? 'default') !== 'default'
    ? 'This model changes its scores or positions in a way that the steps do not show'
    : '';
}

export async function configOf({ files }: GivenFiles): Promise<Config> {
  const found = files.find(({ path }) => path === 'config.json');
  return found ? (JSON.parse(await found.file.text()) as Config) : {};
}

/** Reads tensors by the end of their names: some files begin all names with "model." or "transformer.". */
async function readerOf({ files }: GivenFiles): Promise<Read> {
  const weights = files.filter(({ path }) => path.endsWith('.safetensors'));
  const readers = await Promise.all(weights.map(({ file }) => openSafetensors(file))).catch((cause: unknown) => {
    throw new Error('The files of the model can no longer be read', { cause });
  });
  return async (name) => {
    for (const reader of readers) {
      const whole = Object.keys(reader.entries).find((each) => each === name || each.endsWith(`.${name}`));
      if (whole !== undefined) return floatsOf(await reader.read(whole));
    }
    throw new Error(`The model's files have no ${name}.`);
  };
}

/** The value of an f16 (IEEE 754 binary16). */
function halfToFloat(bits: number): number {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 1024 + fraction : fraction) * 2 ** (Math.max(exponent, 1) - 25);
}

function floatsOf({ dtype, data }: SafetensorsTensor): Numbers {
  if (dtype === 'bf16') return new Float32Array(Uint32Array.from(data, (bits) => bits << 16).buffer);
  if (dtype === 'f16') return Float32Array.from(data, halfToFloat);
  if (dtype === 'f32' || dtype === 'f64') return Float32Array.from(data);
  throw new Error(`The model's weights have the type ${dtype}, which the steps do not show`);
}

/** Repeats the rows of each key or value head for the query heads that share it. */
function repeated(data: Numbers, { numHeads, numKvHeads }: ModelInfo): Numbers {
  const size = data.length / numKvHeads;
  const result = new Float32Array(size * numHeads);
  for (let head = 0; head < numHeads; head += 1) {
    const from = Math.floor((head * numKvHeads) / numHeads) * size;
    result.set(data.subarray(from, from + size), head * size);
  }
  return result;
}

async function gpt2Layer(read: Read, config: Config, { embedDim }: ModelInfo, layer: number): Promise<Layer> {
  const of = (name: string): Promise<Numbers> => read(`h.${layer}.${name}`);
  const stacked = transposed(await of('attn.c_attn.weight'), embedDim, 3 * embedDim);
  const size = stacked.length / 3;
  const [gain, shift] = [await of('ln_1.weight'), await of('ln_1.bias')];
  return {
    weights: {
      ...{ qProj: stacked.slice(0, size), kProj: stacked.slice(size, 2 * size), vProj: stacked.slice(2 * size) },
      ...{
        inBias: await of('attn.c_attn.bias'),
        outProj: transposed(await of('attn.c_proj.weight'), embedDim, embedDim),
        outBias: await of('attn.c_proj.bias'),
      },
    },
    norm(row) {
      const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
      const variance = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
      const scale = 1 / Math.sqrt(variance + Number(config['layer_norm_epsilon'] ?? 1e-5));
      return row.map((value, col) => (value - mean) * scale * gain[col]! + shift[col]!);
    },
  };
}

async function llamaLayer(read: Read, config: Config, info: ModelInfo, layer: number): Promise<Layer> {
  const of = (name: string): Promise<Numbers> => read(`layers.${layer}.${name}`);
  const [q, k, v, o] = await Promise.all(['q', 'k', 'v', 'o'].map((name) => of(`self_attn.${name}_proj.weight`)));
  const biases = await Promise.all(['q', 'k', 'v'].map((name) => of(`self_attn.${name}_proj.bias`).catch(() => undefined)));
  const outBias = await of('self_attn.o_proj.bias').catch(() => undefined);
  const gain = await of('input_layernorm.weight');
  const [qBias, kBias, vBias] = biases;
  const base = Number(ropeOf(config)['rope_theta'] ?? config['rope_theta'] ?? 10000);
  return {
    rope: { style: 'half', base },
    weights: {
      ...{ qProj: q!, kProj: repeated(k!, info), vProj: repeated(v!, info), outProj: o! },
      ...(qBias &&
        kBias &&
        vBias && {
          inBias: Float32Array.from([...qBias, ...repeated(kBias, info), ...repeated(vBias, info)]),
          outBias: outBias ?? new Float32Array(info.embedDim),
        }),
    },
    norm(row) {
      const square = row.reduce((sum, value) => sum + value ** 2, 0) / row.length;
      const scale = 1 / Math.sqrt(square + Number(config['rms_norm_eps'] ?? 1e-6));
      return row.map((value, col) => value * scale * gain[col]!);
    },
  };
}

/** Reads one layer. The result makes its heads from tokens and hidden states, (layers + 1, N, embedDim). */
export async function readLayer(files: GivenFiles, info: ModelInfo, layer: number) {
  const read = await readerOf(files);
  const config = await configOf(files);
  const { weights, rope, norm } = await (isGpt2(config) ? gpt2Layer : llamaLayer)(read, config, info, layer);
  return (tokens: readonly string[], { data }: Matrix): LayerHeads => {
    const { embedDim, headDim, numLayers: layers } = info;
    const x = new Float32Array(tokens.length * embedDim);
    for (let row = 0; row < tokens.length; row += 1) {
      const at = (layer * tokens.length + row) * embedDim;
      x.set(norm(data.subarray(at, at + embedDim)), row * embedDim);
    }
    return { tokens, x, embedDim, headDim, weights, rope, layer, layers };
  };
}
