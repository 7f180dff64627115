// Images as models take them: grey values of Pillow, and numbers of transformers' image processors that use it.

import { readdirSync, readFileSync } from 'node:fs';
import { readSafetensors, type SafetensorsTensor } from 'multihead';
import { type Model, type OpenModelOptions, openModel, saveModel } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { pixelsOf, resizeImage } from '../src/models/image.ts';
import { copyImage } from '../src/models/inputs.ts';
import { builds, rejectionOf } from './builds.ts';

interface Case {
  readonly kind: 'resize' | 'process';
  readonly image: string;
  readonly width: number;
  readonly height: number;
  readonly resample: number;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly out: string;
}

const folder = new URL('../../tests/conformance/images/', import.meta.url);
const { cases } = JSON.parse(readFileSync(new URL('cases.json', folder), 'utf8')) as { cases: Case[] };
const { tensors } = readSafetensors(readFileSync(new URL('expected.safetensors', folder)));
const tensor = (name: string): SafetensorsTensor => tensors[name] as SafetensorsTensor;

function imageOf(name: string): { data: Uint8Array; width: number; height: number } {
  const { shape, data } = tensor(name);
  return { data: (data as Uint8Array).slice(), width: shape[1] as number, height: shape[0] as number };
}

/** With an alpha of its own for each pixel, which changes nothing. */
function withAlpha({ data, width, height }: ReturnType<typeof imageOf>): { data: Uint8ClampedArray; width: number; height: number } {
  const rgba = Uint8ClampedArray.from({ length: 4 * width * height }, (_, at) => (at % 4 === 3 ? at : (data[3 * (at >> 2) + (at % 4)] as number)));
  return { data: rgba, width, height };
}

const infoOf = (side: number) => ({ imageSize: side, channels: 3 }) as Parameters<typeof pixelsOf>[2];
const refusal = (settings: object, side = 16): string => {
  try {
    pixelsOf(imageOf('wide'), JSON.stringify(settings), infoOf(side));
  } catch (error) {
    return (error as Error).message;
  }
  return 'none';
};

describe('images', () => {
  it.each(cases.filter(({ kind }) => kind === 'resize'))('$out has the grey values of Pillow', ({ image, width, height, resample, out }) => {
    const whole = { left: 0, top: 0, width, height };
    const given = imageOf(image);
    const got = resizeImage(given, width, height, resample, whole);
    expect(got).toEqual(tensor(out).data);
    expect(resizeImage(withAlpha(given), width, height, resample, whole)).toEqual(got);
  });

  it.each(cases.filter(({ kind }) => kind === 'process'))('$out is what transformers prepares', ({ image, settings, out }) => {
    const { data, shape } = tensor(out);
    const got = pixelsOf(imageOf(image), JSON.stringify(settings), infoOf(shape[1] as number));
    expect(got.length).toBe(data.length);
    const worst = got.reduce((most, value, at) => Math.max(most, Math.abs(value - (data[at] as number)) / Math.max(1, Math.abs(value))), 0);
    expect(worst).toBeLessThanOrEqual(2 ** -22);
  });

  it('does not compute what is cut off', () => {
    const line = { data: new Uint8Array(3 * 200_000).fill(7), width: 200_000, height: 1 };
    const pixels = pixelsOf(line, '{"image_processor_type":"CLIPImageProcessor"}', infoOf(224));
    expect(new Set(pixels).size).toBe(3);
  });

  it('refuses settings that it does not know, and says which', () => {
    const size = { height: 16, width: 16 };
    expect(refusal({ size })).toBe('none');
    expect(refusal({ image_processor_type: 'ConvNextImageProcessor' })).toMatch(/image_processor_type: expected ViTImageProcessor or .*, got "Conv/);
    expect(refusal({ size, resample: 6 })).toMatch(/resample: expected a whole number from 0 to 5, got 6/);
    expect(refusal({ size, do_pad: true })).toMatch(/do_pad: expected none, got true/);
    expect(refusal({ size, do_pad: false, crop_pct: null, do_reduce_labels: false })).toBe('none');
    expect(refusal({ size: { shortest_edge: 16, longest_edge: 99 } })).toMatch(/size\.longest_edge: expected none, got 99/);
    expect(refusal({ size: { max_pixels: 99 } })).toMatch(/size\.max_pixels/);
    expect(refusal({ size, do_resize: 'yes' })).toMatch(/do_resize: expected true or false, got "yes"/);
    expect(refusal({ size, image_mean: [0.5, 'x', 0] })).toMatch(/image_mean\.1: expected a number/);
    expect(refusal({ size, image_std: [1, 0, 1] })).toMatch(/image_std\.1/);
    expect(refusal({ size }, 32)).toMatch(/images of 32 × 32 pixels, as config\.json says, got 16 × 16/);
    expect(() => pixelsOf(imageOf('wide'), undefined, infoOf(16))).toThrow(/preprocessor_config\.json: expected a file of this name/);
    expect(() => pixelsOf(imageOf('wide'), '{}', { ...infoOf(16), channels: 1 })).toThrow(/none for a model of 1 channels/);
  });

  it('refuses what is no image', () => {
    const { data, width, height } = imageOf('small');
    expect(copyImage({ data, width, height }, 'image')).toEqual({ data, width, height });
    for (const wrong of [
      undefined,
      null,
      5,
      'cat.jpg',
      {},
      { data: new Float32Array(105), width, height },
      { data, width: 0, height },
      { data, width: 2.5, height },
    ])
      expect(() => copyImage(wrong, 'image')).toThrow(/image: expected an ImageData, or bytes with width and height/);
    expect(() => copyImage({ data, width, height: 8 }, 'image')).toThrow(/image\.data: expected 120 bytes of RGB or 160 of RGBA, got 105/);
  });
});

/** A golden model with files of a page, and with a preprocessor_config.json. */
function openGolden(name: string, preprocessor: object | undefined, options: OpenModelOptions, more: readonly File[] = []): Promise<Model> {
  const at = new URL(`../models/${name}/`, folder);
  const files = readdirSync(at).map((file) => new File([readFileSync(new URL(file, at))], file));
  const settings = preprocessor === undefined ? [] : [new File([JSON.stringify(preprocessor)], 'preprocessor_config.json')];
  return openModel([...files, ...settings, ...more], options);
}

describe.each(builds)('models, %s', (simd) => {
  const settings = { image_processor_type: 'ViTImageProcessor', size: { height: 12, width: 12 } };

  it('take an image as its pixels', async () => {
    using model = await openGolden('vit', settings, { simd });
    const image = imageOf('wide');
    const pixels = pixelsOf(image, JSON.stringify(settings), model.info);
    const wanted = await model.forward([], { pixels });
    const running = model.forward([], { image });
    image.data.fill(0);
    expect(await running).toEqual(wanted);
    const map = await model.attentions([], { image: imageOf('wide'), layer: 1, head: 0 });
    expect(map).toEqual(await model.attentions([], { pixels, layer: 1, head: 0 }));
  });

  it.each(['clip', 'siglip'])('of texts and images compare both: %s', async (name) => {
    using model = await openGolden(name, undefined, { simd });
    const vision = model.vision as Model;
    expect([model.info.hasImages, vision.info.takesPixels, vision.vision]).toEqual([true, true, undefined]);
    const texts = [
      [5, 6, 7, 95],
      [8, 95],
    ];
    const images = ['wide', 'tall', 'small'].map(imageOf);
    const preprocessor = readFileSync(new URL(`../models/${name}/preprocessor_config.json`, folder), 'utf8');
    const running = model.similarity(texts, images);
    const pixels = images.map((image) => pixelsOf(image, preprocessor, vision.info));
    images.forEach(({ data }) => data.fill(0));
    const { shape, data } = await running;
    expect(shape).toEqual([3, 2]);
    expect(await model.similarity(texts, pixels)).toEqual({ shape, data });
    const [alone] = await vision.embedImages(pixels.slice(1, 2), { normalize: false });
    const length = Math.hypot(...(alone as Float32Array));
    const [one] = (await model.embedImages(pixels)).slice(1);
    one?.forEach((value, at) => expect(value).toBeCloseTo(((alone as Float32Array)[at] as number) / length, 5));
    const map = await vision.attentions([], { pixels: pixels[0], layer: 0, head: 0 });
    expect(map.shape).toEqual([vision.info.maxTokens, vision.info.maxTokens]);
    for (const tower of [model, vision]) expect(() => saveModel(tower)).toThrow(/model: expected one of one tower, got (clip|siglip), with two/);
    model.dispose();
    expect(vision.disposed).toBe(true);
  });

  it('take settings of images that are among those of a processor', async () => {
    const images = { image_processor_type: 'ViTImageProcessor', size: settings.size };
    const processor = new File([JSON.stringify({ processor_class: 'CLIPProcessor', image_processor: images })], 'processor_config.json');
    using model = await openGolden('vit', undefined, { simd }, [processor]);
    using other = await openGolden('vit', settings, { simd });
    const image = imageOf('tall');
    expect(await model.embedImages([image])).toEqual(await other.embedImages([image]));
  });

  it('of texts and images need files that can be read twice', async () => {
    const at = new URL('../models/clip/', folder);
    const responses = ['config.json', 'model.safetensors'].map((file) =>
      Object.defineProperty(new Response(readFileSync(new URL(file, at))), 'url', { value: `https://example.org/clip/${file}` }),
    );
    expect((await rejectionOf(openModel(responses, { simd }))).message).toMatch(/source: expected another source than responses/);
  });

  it('pad texts for SigLIP with what its tokenizer says', async () => {
    const tokenizer = {
      encode: (text: string) => ({ ids: text === '<pad>' ? [4] : [5, 6], tokens: [] }),
      decode: () => '',
    };
    const config = new File(['{"pad_token":{"content":"<pad>"}}'], 'tokenizer_config.json');
    using model = await openGolden('siglip', undefined, { simd, tokenizer }, [config]);
    const [byText, whole, other] = await model.embed(['two', [5, 6, ...Array<number>(18).fill(4)], [5, 6, ...Array<number>(18).fill(1)]]);
    const near = (a: Float32Array | undefined, b: Float32Array | undefined) => a?.every((value, at) => Math.abs(value - (b?.[at] ?? 9)) < 1e-6);
    expect([near(byText, whole), near(byText, other)]).toEqual([true, false]);
    using plain = await openGolden('siglip', undefined, { simd });
    expect(near(await plain.embed([5, 6]), other)).toBe(true);
  });

  it('say why they take none', async () => {
    const image = imageOf('wide');
    using without = await openGolden('vit', undefined, { simd });
    expect((await rejectionOf(without.forward([], { image }))).message).toMatch(/preprocessor_config\.json: expected a file/);
    using vit = await openGolden('vit', { ...settings, size: 32 }, { simd });
    expect((await rejectionOf(vit.forward([], { image }))).message).toMatch(/images of 12 × 12 pixels/);
    const both = { image, pixels: new Float32Array(3 * 12 ** 2) };
    expect((await rejectionOf(vit.forward([], both))).message).toMatch(/image: expected none beside pixels/);
    expect((await rejectionOf(vit.similarity([[1]], [image]))).message).toMatch(/model: expected one of texts and images, got vit/);
    expect((await rejectionOf(vit.embedImages([image, {} as typeof image]))).message).toMatch(/images\[1\]: expected an ImageData/);
    expect((await rejectionOf(vit.embedImages([new Float32Array(5)]))).message).toMatch(/images\[0\]: expected 432 numbers, got 5/);
    for (const input of [[5], 'a text']) {
      const { message } = await rejectionOf(vit.run(input));
      expect(message).toBe('pixels: expected the pixels of an image for vit, or an image, got neither');
    }
    using bert = await openGolden('bert', undefined, { simd });
    expect((await rejectionOf(bert.embedImages([image]))).message).toMatch(/model: expected one that takes images, got bert/);
    expect((await rejectionOf(bert.forward([1], { image }))).message).toMatch(/image: expected none for a model of token ids/);
  });
});
