// Images as models with pixels take them: preprocessor_config.json applied to pixels of any size. Grey values are those of Pillow
// (libImaging/Resample.c), the numbers those of transformers' image processors that use it.

import { poolings } from '../generated/tables.js';
import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { optionError, shapeError } from '../runtime/errors.js';
import { checkCallback, checkChoice, checkFlag, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { formatError, inWords } from '../safetensors/format.js';
import type { EmbedImagesOptions, ModelImage, ModelInfo } from '../types/models.js';
import type { Count, Extents } from '../types/wire.js';
import { flatten, parseObject, type Settings } from './config.js';
import type { ModelEngine } from './core/engine.js';
import { nextTask } from './core/turns.js';
import { checkScales } from './inputs.js';

const file = 'preprocessor_config.json';

const sinc = (x: number): number => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

/** Pillow's bicubic kernel, with a = −0.5. */
function bicubic(x: number): number {
  const a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return (((x - 5) * x + 8) * x - 4) * a;
}

/** Half the width of each filter and its values at distances below that, by Pillow's numbers from 1 on; 0 is the nearest pixel. */
const filters: readonly (readonly [support: number, valueAt: (x: number) => number])[] = [
  [3, (x) => sinc(x) * sinc(x / 3)],
  [1, (x) => 1 - x],
  [2, bicubic],
  [0.5, () => 1],
  [1, (x) => sinc(x) * (0.54 + 0.46 * Math.cos(x * Math.PI))],
];

/** What one row or column of the result is made of: pixels from `first` on, with these weights · 2²². */
interface Taps {
  readonly first: number;
  readonly weights: Float64Array;
}

const precision = 2 ** 22;
const clear = { first: 0, weights: new Float64Array() };

/** Taps of places `begin` to `begin + count` of a side that becomes `to` instead of `from` pixels; none outside of it. */
function tapsOf(from: number, to: number, begin: number, count: number, resample: number): Taps[] {
  const scale = from / to;
  const taps: Taps[] = Array.from({ length: count }, () => clear);
  const filter = filters[resample - 1];
  if (filter === undefined) {
    // Pillow adds up these places, and so rounds them.
    for (let at = 0, place = scale * 0.5; at < to && at < begin + count; at += 1, place += scale) {
      if (at >= begin) taps[at - begin] = { first: Math.trunc(place), weights: Float64Array.of(precision) };
    }
    return taps;
  }
  const [halfWidth, valueAt] = filter;
  const stretch = Math.max(1, scale);
  const support = halfWidth * stretch;
  for (let at = Math.max(0, begin); at < to && at < begin + count; at += 1) {
    const center = (at + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const end = Math.min(from, Math.trunc(center + support + 0.5));
    const values = Float64Array.from({ length: end - first }, (_, i) => {
      const x = (first + i - center + 0.5) * (1 / stretch);
      // A box holds its end, but not its begin.
      if (halfWidth === 0.5) return x > -0.5 && x <= 0.5 ? 1 : 0;
      return Math.abs(x) < halfWidth ? valueAt(Math.abs(x)) : 0;
    });
    const sum = values.reduce((total, value) => total + value, 0);
    const weights = values.map((value) => Math.trunc((value / (sum || 1)) * precision + (value < 0 ? -0.5 : 0.5)));
    taps[at - begin] = { first, weights };
  }
  return taps;
}

/** A part of the resized image; beyond the image it is black. */
interface Window {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

/** An RGB or RGBA image as RGB, with its columns as rows. */
function transposed({ data, width, height }: ModelImage): ModelImage {
  const channels = data.length / (width * height);
  const at = (to: number): number => (Math.floor(to / 3) % height) * width + Math.floor(to / (3 * height));
  return {
    data: Uint8Array.from({ length: 3 * width * height }, (_, to) => data[at(to) * channels + (to % 3)] as number),
    width: height,
    height: width,
  };
}

/**
 * Resizes an image to width · height pixels and gives the window of it, RGB: columns first, then rows, each rounded to 8 bits. Rows first
 * where the height shrinks by more than twice what the width does, as in Pillow from version 13 on.
 */
export function resizeImage(image: ModelImage, width: number, height: number, resample: number, window: Window): Uint8Array<ArrayBuffer> {
  const { left, top, width: across, height: down } = window;
  const less = image.height - height;
  if (resample === 0 || less <= Math.max(0, 2 * (image.width - width))) return columnsFirst(image, width, height, resample, window);
  const data = columnsFirst(transposed(image), height, width, resample, { left: top, top: left, width: down, height: across });
  return transposed({ data, width: down, height: across }).data as Uint8Array<ArrayBuffer>;
}

function columnsFirst(image: ModelImage, width: number, height: number, resample: number, window: Window): Uint8Array<ArrayBuffer> {
  const channels = image.data.length / (image.width * image.height);
  const columns = tapsOf(image.width, width, window.left, window.width, resample);
  const rows = tapsOf(image.height, height, window.top, window.height, resample);
  const inside = rows.filter((row) => row !== clear);
  const firstRow = inside.reduce((least, { first }) => Math.min(least, first), Infinity);
  const endRow = inside.reduce((most, { first, weights }) => Math.max(most, first + weights.length), firstRow);
  const narrow = new Uint8ClampedArray(window.width * 3 * Math.max(0, endRow - firstRow));
  const bytes = image.data;
  /** Weighted pixels from `at` on; `step` is the distance between them. */
  const sumOf = (from: Uint8Array | Uint8ClampedArray, at: number, step: number, weights: Float64Array): number => {
    let sum = precision / 2;
    for (let i = 0; i < weights.length; i += 1) sum += (from[at + i * step] as number) * (weights[i] as number);
    return Math.floor(sum / precision);
  };
  let to = 0;
  for (let y = firstRow; y < endRow; y += 1) {
    for (const { first, weights } of columns) {
      const at = (y * image.width + first) * channels;
      for (let c = 0; c < 3; c += 1) narrow[to++] = weights.length === 0 ? 0 : sumOf(bytes, at + c, channels, weights);
    }
  }
  const result = new Uint8ClampedArray(window.width * window.height * 3);
  const step = window.width * 3;
  rows.forEach(({ first, weights }, y) => {
    if (weights.length === 0) return;
    const at = (first - firstRow) * step;
    for (let x = 0; x < step; x += 1) result[y * step + x] = sumOf(narrow, at + x, step, weights);
  });
  return new Uint8Array(result.buffer);
}

/** What a kind of image processor does unless the file says otherwise. */
interface Defaults {
  /** True if a size of one number is both sides, false if it is the shorter one. */
  readonly square: boolean;
  readonly size: number;
  readonly resample: number;
  readonly crop: boolean;
  readonly mean: readonly number[];
  readonly std: readonly number[];
}

const half = { mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] };
const openai = { mean: [0.48145466, 0.4578275, 0.40821073], std: [0.26862954, 0.26130258, 0.27577711] };
const processors: Readonly<Record<string, Defaults>> = {
  ViT: { square: true, size: 224, resample: 2, crop: false, ...half },
  DeiT: { square: true, size: 256, resample: 3, crop: true, ...half },
  CLIP: { square: false, size: 224, resample: 3, crop: true, ...openai },
  Bit: { square: false, size: 224, resample: 3, crop: true, ...openai },
  Siglip: { square: true, size: 224, resample: 3, crop: false, ...half },
};

/** Settings that change pixels, of which only some are read. */
const matters = /^(do_(?!convert_rgb$)|size\.|crop_pct|rescale_offset|size_divisor|pad_size)/;
const parts = /^size\.(height|width|shortest_edge)$/;

/** Reads the settings. */
class Preprocessor {
  readonly #settings: Settings = new Map();
  readonly #defaults: Defaults;
  readonly #known = new Set<string>();

  constructor(text: string) {
    flatten(file, parseObject(file, text), this.#settings);
    const types = ['image_processor_type', 'feature_extractor_type'].map((name) => this.#settings.get(name));
    const type = types.find((each) => typeof each === 'string') as string | undefined;
    const name = type?.replace(/(ImageProcessor(Fast|Pil)?|FeatureExtractor)$/, '') ?? 'ViT';
    if (!Object.hasOwn(processors, name)) {
      const known = Object.keys(processors).map((each) => `${each}ImageProcessor`);
      throw this.#refuse('image_processor_type', known.join(' or '), type);
    }
    this.#defaults = processors[name] as Defaults;
  }

  #refuse(name: string, expected: string, got: unknown) {
    return optionError(`${file}: ${name}`, expected, typeof got === 'string' ? `"${got}"` : inWords(got));
  }

  #get(name: string): unknown {
    this.#known.add(name);
    return this.#settings.get(name) ?? undefined;
  }

  #flag(name: string, absent: boolean): boolean {
    const value = this.#get(name) ?? absent;
    if (typeof value !== 'boolean') throw this.#refuse(name, 'true or false', value);
    return value;
  }

  #number(name: string, absent: number | undefined, least: number, most: number, whole: boolean): number {
    const value = this.#get(name) ?? absent;
    const fits = typeof value === 'number' && value >= least && value <= most && (!whole || Number.isInteger(value));
    if (fits) return value;
    throw this.#refuse(name, `a ${whole ? 'whole ' : ''}number from ${least} to ${most}`, value);
  }

  #has(name: string): boolean {
    return this.#settings.get(name) != null;
  }

  /** Height and width, of an object or one number. */
  #sides(name: string, absent: number): [height: number, width: number] {
    const side = (field: string, otherwise?: number): number => this.#number(field, otherwise, 1, 16384, true);
    if (this.#has(`${name}.height`) || this.#has(`${name}.width`)) return [side(`${name}.height`), side(`${name}.width`)];
    const both = side(name, absent);
    return [both, both];
  }

  /** Height and width of the resized image. */
  #resized({ width, height }: ModelImage): [height: number, width: number] {
    const { square, size } = this.#defaults;
    const isEdge = this.#has('size.shortest_edge');
    if (!isEdge && (square || this.#has('size.height'))) return this.#sides('size', size);
    const edge = this.#number(isEdge ? 'size.shortest_edge' : 'size', size, 1, 16384, true);
    const long = Math.trunc((edge * Math.max(width, height)) / Math.min(width, height));
    return width <= height ? [long, edge] : [edge, long];
  }

  /** The mean or the deviation of each channel. */
  #channels(name: string, absent: readonly number[], least: number): number[] {
    return absent.map((usual, channel) => {
      const has = this.#has(`${name}.0`);
      return this.#number(has ? `${name}.${channel}` : name, has ? undefined : usual, least, 1e6, false);
    });
  }

  /** The image as (3, height, width) numbers. */
  apply(image: ModelImage, side: number): Float32Array<ArrayBuffer> {
    const { resample, crop, mean, std } = this.#defaults;
    const filter = this.#number('resample', resample, 0, filters.length, true);
    const resizes = this.#flag('do_resize', true);
    const [height, width] = resizes ? this.#resized(image) : [image.height, image.width];
    const [cropHeight, cropWidth] = this.#flag('do_center_crop', crop) ? this.#sides('crop_size', 224) : [height, width];
    const scale = this.#flag('do_rescale', true) ? this.#number('rescale_factor', 1 / 255, 1e-6, 1e6, false) : 1;
    const normalizes = this.#flag('do_normalize', true);
    const means = this.#channels('image_mean', mean, -1e6).map((each) => (normalizes ? Math.fround(each) : 0));
    const stds = this.#channels('image_std', std, 1e-6).map((each) => (normalizes ? Math.fround(each) : 1));
    this.#refuseOthers();
    if (cropHeight !== side || cropWidth !== side) {
      throw formatError(file, `images of ${side} × ${side} pixels, as config.json says`, `${cropHeight} × ${cropWidth}`);
    }
    const window = { width: side, height: side, left: Math.floor((width - side) / 2), top: Math.floor((height - side) / 2) };
    const rgb = resizeImage(image, width, height, filter, window);
    const pixels = new Float32Array(rgb.length);
    const count = side * side;
    for (let c = 0; c < 3; c += 1) {
      const [m, s] = [means[c] as number, stds[c] as number];
      const numbers = Float32Array.from({ length: 256 }, (_, grey) => Math.fround(Math.fround(grey * scale) - m) / s);
      for (let i = 0; i < count; i += 1) pixels[c * count + i] = numbers[rgb[3 * i + c] as number] as number;
    }
    return pixels;
  }

  /** Throws for a setting that was not read, unless it is off. */
  #refuseOthers(): void {
    for (const [name, value] of this.#settings) {
      const isOff = value === null || value === false;
      if (matters.test(name) && !parts.test(name) && !this.#known.has(name) && !isOff) throw this.#refuse(name, 'none', value);
    }
  }
}

const embedNames = { pooling: plain, normalize: plain, headScales: plain, signal: plain, onProgress: plain } satisfies Names<EmbedImagesOptions>;

/** Most tokens of a batch, unless it is one image. */
const mostBatchTokens = 4096;

/** See {@link Model.embedImages} of types/models.ts. Images as they are, or pixels. */
export async function embedImages(
  engine: ModelEngine,
  preprocessor: string | undefined,
  images: readonly (ModelImage | Float32Array)[],
  given: EmbedImagesOptions,
): Promise<Float32Array<ArrayBuffer>[]> {
  const { info } = engine;
  const { signal, onProgress, headScales, ...options } = readOptions(given, embedNames, 'embedImages');
  checkSignal(signal);
  checkCallback(onProgress, 'onProgress');
  const scales = checkScales(headScales, info);
  const pooling = poolings[checkChoice(options.pooling ?? info.pooling, namesOf(poolings), 'pooling')];
  const normalize = options.normalize === undefined || checkFlag(options.normalize, 'normalize');
  const size = info.channels * info.imageSize ** 2;
  const most = Math.max(1, Math.floor(mostBatchTokens / info.maxTokens));
  const vectors: Float32Array<ArrayBuffer>[] = [];
  while (vectors.length < images.length) {
    const some = images.slice(vectors.length, vectors.length + most);
    const pixels = new Float32Array(some.length * size);
    some.forEach((image, at) => {
      const numbers = image instanceof Float32Array ? image : pixelsOf(image, preprocessor, info);
      if (numbers.length !== size) throw shapeError(`images[${vectors.length + at}]`, `${size} numbers`, String(numbers.length));
      pixels.set(numbers, at * size);
    });
    if (signal?.aborted) throw abortedError(signal, 'embedImages');
    engine.assertLive();
    const batch = { ids: new Int32Array(), batch: some.length as Count, tokens: 0 as Count, pixels };
    const outputs = [[some.length, info.vectorDim] as readonly number[] as Extents];
    const run = engine.run({ batch, headScales: scales, what: { kind: 'embed', pooling, normalize }, outputs });
    const [data] = await abortable(Promise.resolve(run), signal, 'embedImages');
    const all = data as Float32Array<ArrayBuffer>;
    for (let at = 0; at < some.length; at += 1) vectors.push(all.slice(at * info.vectorDim, (at + 1) * info.vectorDim));
    onProgress?.(vectors.length, images.length);
    await nextTask();
  }
  return vectors;
}

/** The pixels of an image for a model, by the text of the folder's preprocessor_config.json. Throws `E_OPTION`, `E_FORMAT`. */
export function pixelsOf(image: ModelImage, text: string | undefined, { imageSize, channels }: ModelInfo): Float32Array<ArrayBuffer> {
  if (text === undefined) throw formatError(file, 'a file of this name, for images', 'none: give pixels');
  if (channels !== 3) throw optionError('image', `none for a model of ${channels} channels: give pixels`, 'an image');
  return new Preprocessor(text).apply(image, imageSize);
}
