// Sparse autoencoders as SAELens writes them. JavaScript computes: a feature is one product of vectors.

import { abortable } from '../runtime/abort.js';
import { disposedError, optionError, shapeError } from '../runtime/errors.js';
import { halfToFloats } from '../runtime/half.js';
import { onJavaScriptHeap } from '../runtime/memory.js';
import { type Names, plain, readOptions } from '../runtime/options.js';
import { elements, formatShape } from '../runtime/shape.js';
import { makeDisposable } from '../runtime/symbol_dispose.js';
import { describe } from '../runtime/tensor.js';
import { cutOff, formatError, inWords } from '../safetensors/format.js';
import { asParameter, inFileOrder, tensorOf } from '../safetensors/read.js';
import { openHeader } from '../safetensors/source.js';
import type { PlatformAbortSignal } from '../types/platform.js';
import type { ModelArray, ModelSource, SessionEdit, Site } from '../types/models.js';
import type { OpenSparseAutoencoderOptions, Rows, SparseAutoencoder, SparseAutoencoderInfo } from '../types/sparse_autoencoder.js';
import { flatten, parseObject, type Settings } from './config.js';
import { cleanPath, type Folder, isAbsent, missingFile, readText } from './folder.js';
import { findFolder } from './find_folder.js';
import { numbersOf } from './sites.js';

const architectures = ['standard', 'jumprelu', 'topk', 'gated'] as const;
const norms = ['none', 'layer_norm', 'constant_norm_rescale'] as const;

interface Config {
  readonly info: SparseAutoencoderInfo;
  readonly norm: (typeof norms)[number];
  readonly k: number;
  readonly subtractsBias: boolean;
  readonly byNorms: boolean;
}

/** Reads the settings of all versions. Throws `E_OPTION`, `E_FORMAT`. */
function readConfig(text: string): Config {
  const file = 'cfg.json';
  const settings: Settings = new Map();
  flatten(file, parseObject(file, text), settings);
  const fail = (name: string, expected: string, got: unknown) => optionError(`${file}: ${name}`, expected, inWords(got));
  /** The first of several names under which a setting is not null; else the last. */
  const first = (...names: string[]): string => names.find((name) => (settings.get(name) ?? null) !== null) ?? (names.at(-1) as string);
  const choice = <N extends string>(name: string, value: unknown, names: readonly N[], expected: string): N => {
    const found = names.find((each) => each === value);
    if (found === undefined) throw fail(name, expected, settings.get(name));
    return found;
  };
  const size = (name: string, most: number): number => {
    const value = settings.get(name);
    if (Number.isInteger(value) && (value as number) >= 1 && (value as number) <= most) return value as number;
    throw fail(name, `an integer from 1 to ${most}`, value);
  };
  const flag = (name: string, absent: boolean): boolean => {
    const value = settings.get(name) ?? (settings.has(name) ? false : absent);
    if (value === Boolean(value)) return value;
    throw fail(name, 'true or false', value);
  };
  const width = size('d_in', 2 ** 20);
  const features = size('d_sae', 2 ** 22);
  const named = first('activation_fn_str', 'activation_fn');
  const isTop = choice(named, settings.get(named) ?? 'relu', ['relu', 'topk'], 'relu or topk') === 'topk';
  const given = isTop ? 'topk' : (settings.get('architecture') ?? 'standard');
  const architecture = choice('architecture', given, architectures, 'standard, jumprelu, topk or gated');
  const k = architecture === 'topk' ? size(first('activation_fn_kwargs.k', 'k'), features) : 0;
  const byNorms = architecture === 'topk' && flag('rescale_acts_by_decoder_norm', false);
  // Older files have false or true.
  const norm = choice('normalize_activations', settings.get('normalize_activations') || 'none', norms, 'none, layer_norm or constant_norm_rescale');
  const subtractsBias = flag('apply_b_dec_to_input', true);
  const head = settings.get(first('hook_point_head_index', 'metadata.hook_head_index', 'hook_head_index'));
  if ((head ?? null) !== null) throw fail('hook_head_index', 'null', head);
  const hook = settings.get(first('hook_point', 'metadata.hook_name', 'hook_name'));
  const found = /^blocks\.(\d{1,15})\.(?:hook_(resid_pre|resid_mid|resid_post|attn_out|mlp_out)|attn\.hook_(z))$/.exec(String(hook));
  if (found === null) {
    const hooks = 'hook_resid_pre, hook_resid_mid, hook_resid_post, hook_attn_out, hook_mlp_out or attn.hook_z after blocks.N.';
    throw fail('hook_name', hooks, hook);
  }
  const info = { architecture, site: (found[2] ?? found[3]) as Site, layer: Number(found[1]), width, features };
  return { info: Object.freeze(info), norm, k, subtractsBias, byNorms };
}

/** Reads tensors of these shapes as floats, and `scaling_factor` if it is there. Throws `E_FORMAT`, `E_LOAD`, `E_MEMORY`. */
async function readTensors(
  folder: Folder,
  name: string,
  shapes: Readonly<Record<string, readonly number[]>>,
  signal: PlatformAbortSignal | undefined,
): Promise<Map<string, Float32Array>> {
  const file = await folder.open(name);
  if (isAbsent(file)) throw await missingFile(folder, name, file);
  try {
    const { entries, first } = await openHeader(file.bytes);
    const floats = entries.filter(({ dtype }) => ['f32', 'f16', 'bf16', 'f64'].includes(dtype));
    for (const [each, shape] of Object.entries(shapes)) {
      const found = floats.find((entry) => entry.name === each)?.shape;
      if (found?.join() !== shape.join()) throw formatError(each, formatShape(shape), found === undefined ? 'none' : formatShape(found));
    }
    const tensors = new Map<string, Float32Array>();
    for (const entry of inFileOrder(floats)) {
      if (!(entry.name in shapes) && entry.name !== 'scaling_factor') continue;
      const count = entry.end - entry.begin;
      const bytes = await abortable(file.bytes.read(first + entry.begin, count), signal, 'openSparseAutoencoder');
      if (bytes.length < count) throw formatError(entry.name, `${count} bytes in ${name}`, `${bytes.length}${cutOff}`);
      const parameter = asParameter(tensorOf(entry, bytes));
      if (parameter === undefined) continue;
      const data = parameter.dtype === 'f32' ? parameter.data : halfToFloats(parameter.data, parameter.dtype);
      if (!data.every(Number.isFinite)) throw formatError(entry.name, 'finite numbers', 'NaN or an infinity');
      tensors.set(entry.name, data);
    }
    return tensors;
  } finally {
    await file.close();
  }
}

/** The encoder reads (x - shift) / divisor; decoded numbers are multiplied by `factor` before `shift` is added. */
function scaleOf(row: Float32Array, norm: Config['norm']): { shift: number; divisor: number; factor: number } {
  if (norm === 'none') return { shift: 0, divisor: 1, factor: 1 };
  const isLayer = norm === 'layer_norm';
  const shift = isLayer ? row.reduce((sum, x) => sum + x, 0) / row.length : 0;
  const squares = row.reduce((sum, x) => sum + (x - shift) ** 2, 0);
  const factor = Math.sqrt(squares / (isLayer ? Math.max(row.length - 1, 1) : row.length));
  return { shift, factor, divisor: isLayer ? factor + 1e-5 : factor || 1 };
}

/** Writes the products of four rows of `matrix` with a vector. V8 keeps the four sums in registers. */
function fourProducts(matrix: Float32Array, from: number, x: Float64Array, out: Float64Array): void {
  const width = x.length;
  const [b, c, d] = [from + width, from + 2 * width, from + 3 * width];
  let [p, q, r, s] = [0, 0, 0, 0];
  for (let i = 0; i < width; i += 1) {
    const value = x[i] as number;
    p += value * (matrix[from + i] as number);
    q += value * (matrix[b + i] as number);
    r += value * (matrix[c + i] as number);
    s += value * (matrix[d + i] as number);
  }
  out.set([p, q, r, s]);
}

/** Sets all but the k largest numbers to 0, and negative ones; the first of equal ones are kept. */
function keepLargest(row: Float32Array, k: number): void {
  const least = row.slice().sort()[row.length - k] as number;
  let equal = k - row.reduce((count, x) => count + Number(x > least), 0);
  row.forEach((x, at) => {
    const isKept = x > least || (x === least && (equal -= 1) >= 0);
    if (!isKept || x < 0) row[at] = 0;
  });
}

interface Weights {
  /** (F, E), with zeros up to a multiple of four rows. */
  readonly encoder: Float32Array;
  /** (F, E). */
  readonly decoder: Float32Array;
  readonly decoderBias: Float32Array;
  /** `b_enc` or `b_mag`. */
  readonly bias: Float32Array;
  /** `threshold` or `b_gate`. */
  readonly gate: Float32Array | undefined;
  /** exp(`r_mag`). */
  readonly gain: Float32Array | undefined;
}

async function readWeights(folder: Folder, name: string, { info, byNorms }: Config, signal: PlatformAbortSignal | undefined): Promise<Weights> {
  const { architecture, width, features } = info;
  const own = { standard: ['b_enc'], topk: ['b_enc'], jumprelu: ['b_enc', 'threshold'], gated: ['b_mag', 'b_gate', 'r_mag'] }[architecture];
  const shapes = { W_enc: [width, features], W_dec: [features, width], b_dec: [width], ...Object.fromEntries(own.map((each) => [each, [features]])) };
  const tensors = await readTensors(folder, name, shapes, signal);
  if (tensors.get('scaling_factor')?.some((factor) => factor !== 1)) throw formatError('scaling_factor', 'ones', 'other numbers');
  const given = tensors.get('W_enc') as Float32Array;
  const rows = Math.ceil(features / 4) * 4;
  const encoder = onJavaScriptHeap(4 * rows * width, 'W_enc', () => new Float32Array(rows * width));
  for (let first = 0; first < features; first += 16) {
    // 16 floats of a row of the file are one cache line.
    for (let i = 0; i < width; i += 1)
      for (let f = first; f < Math.min(first + 16, features); f += 1) encoder[f * width + i] = given[i * features + f] as number;
  }
  const [bias, gate, gain] = own.map((each) => tensors.get(each)) as [Float32Array, Float32Array?, Float32Array?];
  const decoder = tensors.get('W_dec') as Float32Array;
  for (let f = 0; byNorms && f < features; f += 1) {
    const direction = decoder.subarray(f * width, (f + 1) * width);
    const length = Math.sqrt(direction.reduce((sum, x) => sum + x * x, 0));
    bias[f] = (bias[f] as number) * length;
    const column = encoder.subarray(f * width, (f + 1) * width);
    column.forEach((x, i) => (column[i] = x * length));
    if (length > 0) direction.forEach((x, i) => (direction[i] = x / length));
  }
  return { encoder, decoder, decoderBias: tensors.get('b_dec') as Float32Array, bias, gate, gain: gain?.map(Math.exp) };
}

class Autoencoder implements SparseAutoencoder {
  readonly info: SparseAutoencoderInfo;
  /** Defined on the prototype by the constructor: see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;
  readonly #config: Config;
  #weights: Weights | undefined;

  constructor(config: Config, weights: Weights) {
    makeDisposable(Autoencoder);
    this.info = config.info;
    this.#config = config;
    this.#weights = weights;
  }

  get disposed(): boolean {
    return this.#weights === undefined;
  }

  dispose(): void {
    this.#weights = undefined;
  }

  encode(rows: Rows): ModelArray {
    const { encoder, decoderBias, bias, gate, gain } = this.#live();
    const { norm, k, subtractsBias, info } = this.#config;
    const { architecture, width, features } = info;
    const { data, leading } = this.#rows(rows, 'rows', width, info.site === 'z');
    const count = elements(leading);
    const found = onJavaScriptHeap(4 * count * features, 'rows', () => new Float32Array(count * features));
    const inputs = Array.from({ length: count }, (_, at) => {
      const row = data.subarray(at * width, (at + 1) * width);
      const { shift, divisor } = scaleOf(row, norm);
      return Float64Array.from(row, (x, i) => (x - shift) / divisor - (subtractsBias ? (decoderBias[i] as number) : 0));
    });
    const products = new Float64Array(4);
    // Four rows of the encoder stay in the cache for all inputs.
    for (let first = 0; first < features; first += 4) {
      inputs.forEach((x, at) => {
        fourProducts(encoder, first * width, x, products);
        for (let f = first; f < Math.min(first + 4, features); f += 1) {
          const product = products[f - first] as number;
          const threshold = gate?.[f] ?? 0;
          const value = product * (gain?.[f] ?? 1) + (bias[f] as number);
          const isActive = architecture === 'gated' ? product + threshold > 0 : architecture !== 'jumprelu' || value > threshold;
          found[at * features + f] = isActive && (k > 0 || value > 0) ? value : 0;
        }
      });
    }
    for (let at = 0; k > 0 && at < count; at += 1) keepLargest(found.subarray(at * features, (at + 1) * features), k);
    return { shape: [...leading, features], data: found };
  }

  decode(features: Rows, encoded?: Rows): ModelArray {
    const { decoder, decoderBias } = this.#live();
    const { norm, info } = this.#config;
    const { width } = info;
    const { data, leading } = this.#rows(features, 'features', info.features, false);
    const count = elements(leading);
    const scaled = norm === 'none' ? undefined : this.#rows(encoded, 'encoded', width, info.site === 'z');
    if (scaled !== undefined && scaled.data.length !== count * width) throw shapeError('encoded', `${count} rows`, formatShape(scaled.leading));
    const rows = new Float32Array(count * width);
    for (let at = 0; at < count; at += 1) {
      const sums = Float64Array.from(decoderBias);
      data.subarray(at * info.features, (at + 1) * info.features).forEach((feature, f) => {
        if (feature !== 0) for (let i = 0; i < width; i += 1) sums[i] = (sums[i] as number) + feature * (decoder[f * width + i] as number);
      });
      const { shift, factor } = scaleOf(scaled?.data.subarray(at * width, (at + 1) * width) ?? decoderBias, norm);
      rows.set(
        sums.map((sum) => sum * factor + shift),
        at * width,
      );
    }
    return { shape: [...leading, width], data: rows };
  }

  edit(feature: number, strength: number, numHeads?: number): SessionEdit {
    const { decoder } = this.#live();
    const { site, layer, width, features } = this.info;
    if (!(Number.isInteger(feature) && feature >= 0 && feature < features)) throw optionError('feature', `0 to ${features - 1}`, describe(feature));
    if (!Number.isFinite(strength)) throw optionError('strength', 'a finite number', describe(strength));
    const shape = [width];
    if (site === 'z') {
      if (!(Number.isInteger(numHeads) && (numHeads as number) > 0 && width % (numHeads as number) === 0)) {
        throw optionError('numHeads', `a number of heads that divides ${width}`, describe(numHeads));
      }
      shape.splice(0, 1, numHeads as number, width / (numHeads as number));
    }
    const data = decoder.slice(feature * width, (feature + 1) * width).map((x) => x * strength);
    return { site, layer, add: { shape, data } };
  }

  #live(): Weights {
    if (this.#weights === undefined) throw disposedError('autoencoder', 'a sparse autoencoder');
    return this.#weights;
  }

  /** Copies rows, and returns their shape without the last axis, or with heads without the last two. */
  #rows(value: unknown, argument: string, width: number, mayHaveHeads: boolean): { data: Float32Array; leading: number[] } {
    const { data, shape } = numbersOf(value, argument);
    const last = shape.at(-1);
    if (shape.length > 0 && last === width) return { data, leading: shape.slice(0, -1) };
    if (mayHaveHeads && shape.length > 1 && (last as number) * (shape.at(-2) as number) === width) return { data, leading: shape.slice(0, -2) };
    throw shapeError(argument, `rows of ${width} numbers`, formatShape(shape));
  }
}

const openNames = {
  ...{ path: plain, revision: plain, host: plain, local: plain, onFetch: plain, signal: plain },
} satisfies Names<OpenSparseAutoencoderOptions>;

/** See {@link OpenSparseAutoencoder}. */
export async function openSparseAutoencoder(source: ModelSource, given: OpenSparseAutoencoderOptions = {}): Promise<SparseAutoencoder> {
  const { path = '', ...options } = readOptions(given, openNames, 'openSparseAutoencoder');
  const below = typeof path === 'string' ? cleanPath(path) : undefined;
  if (below === undefined) throw optionError('path', 'a folder below the source', describe(path));
  const folder = await findFolder(source, options);
  try {
    const base = below === '' ? '' : `${below}/`;
    const text = await readText(folder, `${base}cfg.json`, options.signal);
    if (typeof text !== 'string') throw await missingFile(folder, `${base}cfg.json`, text);
    const config = readConfig(text);
    return new Autoencoder(config, await readWeights(folder, `${base}sae_weights.safetensors`, config, options.signal));
  } finally {
    folder.end?.();
  }
}
