// A picture as the numbers that a model of pictures wants.

import type { PictureFormat } from './messages.js';

/** By channel. */
export interface Normalization {
  readonly mean: readonly number[];
  readonly deviation: readonly number[];
}

/** ViT's: from −1 to 1. */
const usual = 0.5;

const numbersOf = (value: unknown, count: number): readonly number[] | undefined =>
  Array.isArray(value) && value.length === count && value.every((each) => Number.isFinite(each)) ? (value as number[]) : undefined;

/** Reads preprocessor_config.json; without it, or without its fields, the usual numbers of ViT. */
export function normalizationOf(json: string | undefined, channels: number): Normalization {
  let config: { image_mean?: unknown; image_std?: unknown } = {};
  try {
    config = Object(JSON.parse(json ?? '{}'));
  } catch {
    // A file that is no JSON says nothing.
  }
  const same = Array.from({ length: channels }, () => usual);
  const deviation = numbersOf(config.image_std, channels);
  return { mean: numbersOf(config.image_mean, channels) ?? same, deviation: deviation?.every((each) => each > 0) ? deviation : same };
}

/** From (size, size, 4) bytes of red, green, blue and alpha to (channels, size, size) numbers; one channel is gray. */
export function normalized(
  bytes: Uint8ClampedArray,
  { imageSize, channels }: PictureFormat,
  { mean, deviation }: Normalization,
): Float32Array<ArrayBuffer> {
  const count = imageSize ** 2;
  const pixels = new Float32Array(channels * count);
  for (let at = 0; at < count; at += 1) {
    const [red, green, blue] = bytes.subarray(4 * at, 4 * at + 3) as unknown as [number, number, number];
    for (let channel = 0; channel < channels; channel += 1) {
      // Luma of ITU-R BT.601.
      const value = channels === 1 ? 0.299 * red + 0.587 * green + 0.114 * blue : bytes[4 * at + channel]!;
      pixels[channel * count + at] = (value / 255 - mean[channel]!) / deviation[channel]!;
    }
  }
  return pixels;
}
