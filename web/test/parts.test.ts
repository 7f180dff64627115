import { describe, expect, it } from 'vitest';
import { colorScale, type ScaleName, type Theme } from '../src/parts/color_scale.js';
import { formatMilliseconds, formatNumber, formatShape } from '../src/parts/format.js';

describe('formatNumber', () => {
  it.each([
    [0.4129, 2, '0.41'],
    [-0.5, 3, '−0.500'],
    [-0.0001, 3, '0.000'],
    [-Infinity, 3, '−∞'],
    [Infinity, 3, '∞'],
    [NaN, 3, 'NaN'],
  ])('%d with %d digits is %s', (value, digits, text) => expect(formatNumber(value, digits)).toBe(text));

  it('writes times and shapes', () => {
    expect(formatMilliseconds(0.001)).toBe('< 0.01 ms');
    expect(formatMilliseconds(0.456)).toBe('0.46 ms');
    expect(formatMilliseconds(12.34)).toBe('12.3 ms');
    expect(formatShape([1, 8, 7, 16])).toBe('(1, 8, 7, 16)');
  });
});

/** The lightness L of OKLab, of a colour "rgb(r g b)". */
function lightness(fill: string): number {
  const [r, g, b] = fill.match(/\d+/g)!.map((text) => {
    const u = Number(text) / 255;
    return u <= 0.04045 ? u / 12.92 : ((u + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return 0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s;
}

const scales = (['light', 'dark'] as Theme[]).flatMap((theme) =>
  (['weights', 'signed'] as ScaleName[]).map((name) => [theme, name] as const),
);

describe.each(scales)('the %s scale of %s', (theme, name) => {
  const color = colorScale(theme, name);

  it('has lightness in even steps', () => {
    for (const sign of name === 'signed' ? [1, -1] : [1]) {
      const at = (t: number) => lightness(color(sign * t).fill);
      const whole = at(1) - at(0);
      for (let i = 0; i < 10; i += 1) expect((at((i + 1) / 10) - at(i / 10)) / whole).toBeCloseTo(0.1, 1);
    }
  });

  it('has ink that can be read on it', () => {
    const luminance = (fill: string) => lightness(fill) ** 3;
    for (let t = 0; t <= 1; t += 0.05) {
      const { fill, ink } = color(t);
      const [a, b] = [luminance(fill), ink === '#ffffff' ? 1 : 0.006];
      expect((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)).toBeGreaterThan(4);
    }
  });
});
