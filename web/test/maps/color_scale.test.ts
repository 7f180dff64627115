import { describe, expect, it } from 'vitest';
import type { Theme } from '../../src/dom/theme.js';
import { colorScale, weightScale, type ScaleName } from '../../src/maps/color_scale.js';

type Rgb = readonly [number, number, number];

/** The linear RGB channels of a color "rgb(r g b)". */
const linear = (fill: string): Rgb =>
  fill.match(/\d+/g)!.map((text) => {
    const u = Number(text) / 255;
    return u <= 0.04045 ? u / 12.92 : ((u + 0.055) / 1.055) ** 2.4;
  }) as unknown as Rgb;

/** The lightness L of OKLab. */
function lightnessOf([r, g, b]: Rgb): number {
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return 0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s;
}
const lightness = (fill: string) => lightnessOf(linear(fill));

/** Contrast ratio as defined by WCAG 2. */
function contrast(fill: string, ink: string): number {
  const [r, g, b] = linear(fill);
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const other = ink === '#ffffff' ? 1 : 0;
  return (Math.max(luminance, other) + 0.05) / (Math.min(luminance, other) + 0.05);
}

// Viénot, Brettel and Mollon 1999: linear red and green as seen without long-wave or medium-wave cones.
const protanopia = ([r, g, b]: Rgb): Rgb => {
  const yellow = 0.11238 * r + 0.88762 * g;
  return [yellow, yellow, Math.max(0, 0.00401 * (r - g) + b)];
};
const deuteranopia = ([r, g, b]: Rgb): Rgb => {
  const yellow = 0.29275 * r + 0.70725 * g;
  return [yellow, yellow, Math.max(0, -0.02234 * (r - g) + b)];
};

const scales = (['light', 'dark'] as Theme[]).flatMap((theme) => (['weights', 'signed'] as ScaleName[]).map((name) => [theme, name] as const));

describe.each(scales)('the %s scale of %s', (theme, name) => {
  const color = colorScale(theme, name);

  it('has lightness in even steps', () => {
    for (const sign of name === 'signed' ? [1, -1] : [1]) {
      // Weights by their root.
      const at = (t: number) => lightness(color(name === 'weights' ? t * t : sign * t).fill);
      const whole = at(1) - at(0);
      for (let i = 0; i < 10; i += 1) expect((at((i + 1) / 10) - at(i / 10)) / whole).toBeCloseTo(0.1, 1);
    }
  });

  it('has ink with a contrast of 4.5', () => {
    for (let i = -255; i <= 255; i += 1) {
      const { fill, ink } = color(i / 255);
      expect(contrast(fill, ink)).toBeGreaterThanOrEqual(4.5);
    }
  });

  it('goes only up or down for color-blind readers', () => {
    for (const see of [protanopia, deuteranopia]) {
      for (const sign of name === 'signed' ? [1, -1] : [1]) {
        const seen = Array.from({ length: 21 }, (_, i) => lightnessOf(see(linear(color((sign * i) / 20).fill))));
        const steps = seen.slice(1).map((value, i) => value - seen[i]!);
        expect(steps.every((step) => Math.sign(step) === Math.sign(steps[0]!))).toBe(true);
      }
    }
  });
});

it.each(['light', 'dark'] as Theme[])('signs differ for color-blind readers, %s', (theme) => {
  const color = colorScale(theme, 'signed');
  for (const see of [protanopia, deuteranopia]) {
    const [plus, minus] = [1, -1].map((value) => see(linear(color(value).fill)));
    // Blue against orange: the ratio of blue to red tells them apart.
    expect(plus![2]! / plus![0]!).toBeGreaterThan(3 * (minus![2]! / minus![0]!));
  }
});

describe.each(['light', 'dark'] as Theme[])('the weights of heads, %s', (theme) => {
  const color = weightScale(theme);
  const paper = { light: 1, dark: 0.22 }[theme];
  it('are paper for 0, and grow evenly with the root of the weight', () => {
    for (let head = 0; head < 8; head += 1) {
      const at = (t: number) => lightness(color(t * t, head).fill);
      expect(at(0)).toBeCloseTo(paper, 1);
      for (let i = 0; i < 10; i += 1) expect((at((i + 1) / 10) - at(i / 10)) / (at(1) - at(0))).toBeCloseTo(0.1, 1);
      for (let i = 0; i <= 255; i += 1) {
        const { fill, ink } = color(i / 255, head);
        expect(contrast(fill, ink)).toBeGreaterThanOrEqual(4.5);
      }
    }
    // Weights beyond the ends, which rounding may give.
    expect(color(1.0001, 0)).toEqual(color(1, 0));
    expect(color(-1e-9, 0)).toEqual(color(0, 0));
  });
});

it('a color as text and as bytes is the same', () => {
  const { fill, bytes } = colorScale('light', 'weights')(0.4);
  expect([...new Uint8Array(Uint32Array.of(bytes).buffer)]).toEqual([...fill.match(/\d+/g)!.map(Number), 255]);
});
