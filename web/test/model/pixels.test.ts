import { describe, expect, it } from 'vitest';
import { normalizationOf, normalized } from '../../src/model/pixels.js';

// Red, and a gray that is half transparent.
const bytes = Uint8ClampedArray.of(255, 0, 0, 255, 51, 51, 51, 128, 0, 0, 0, 255, 255, 255, 255, 255);

describe('a picture for a model', () => {
  it('has a plane for each channel, from −1 to 1', () => {
    const pixels = normalized(bytes, { imageSize: 2, channels: 3 }, normalizationOf(undefined, 3));
    [1, -0.6, -1, 1, -1, -0.6, -1, 1, -1, -0.6, -1, 1].forEach((value, i) => expect(pixels[i]).toBeCloseTo(value, 6));
  });

  it('is normalized as preprocessor_config.json says', () => {
    const normalization = normalizationOf('{"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.5]}', 3);
    const pixels = normalized(bytes, { imageSize: 2, channels: 3 }, normalization);
    expect([pixels[0], pixels[4], pixels[8]]).toEqual([3, -2, -1.2].map((value) => Math.fround(value)));
    const usual = normalizationOf(undefined, 3);
    for (const wrong of ['{', '[]', 'null', '{"image_mean": 3}', '{"image_std": [0, 0, 0]}', '{"image_mean": ["a", 1, 2]}']) {
      expect(normalizationOf(wrong, 3)).toEqual(usual);
    }
  });

  it('is gray for one channel', () => {
    const pixels = normalized(bytes, { imageSize: 2, channels: 1 }, { mean: [0], deviation: [1] });
    [0.299, 0.2, 0, 1].forEach((value, i) => expect(pixels[i]).toBeCloseTo(value, 6));
  });
});
