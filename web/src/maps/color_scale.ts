// Color scales whose lightness is linear in OKLab (Ottosson 2020): equal steps look equal, also in gray and to
// color-blind readers. A value of 0 has the color of the page, so that ink is only where something is.

import type { Theme } from '../dom/theme.js';

export type ScaleName = 'weights' | 'signed';
type Rgb = readonly [number, number, number];

/** Chroma and hue at evenly spaced points of the scale, and the lightness at its two ends. */
interface Ramp {
  readonly lightness: readonly [number, number];
  readonly stops: readonly (readonly [chroma: number, hue: number])[];
}

const ramp = (lightness: Ramp['lightness'], ...stops: Ramp['stops']): Ramp => ({ lightness, stops });
const [onLight, onDark] = [[0.965, 0.45] as const, [0.25, 0.86] as const];
const ramps: Readonly<Record<Theme, { positive: Ramp; negative: Ramp }>> = {
  light: { positive: ramp(onLight, [0.004, 255], [0.075, 250], [0.125, 257]), negative: ramp(onLight, [0.004, 65], [0.085, 65], [0.115, 55]) },
  dark: { positive: ramp(onDark, [0.02, 265], [0.13, 258], [0.085, 240]), negative: ramp(onDark, [0.015, 40], [0.105, 48], [0.095, 70]) },
};

function oklchToRgb(lightness: number, chroma: number, hue: number): Rgb {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channel = (linear: number) => {
    const u = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (u <= 0.0031308 ? 12.92 * u : 1.055 * u ** (1 / 2.4) - 0.055));
  };
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

function colorOn({ lightness, stops }: Ramp, t: number): Rgb {
  const place = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const i = Math.min(Math.floor(place), stops.length - 2);
  const [c0, h0] = stops[i]!;
  const [c1, h1] = stops[i + 1]!;
  const f = place - i;
  return oklchToRgb(lightness[0] + (lightness[1] - lightness[0]) * t, c0 + (c1 - c0) * f, h0 + (h1 - h0) * f);
}

export interface Color {
  readonly fill: string;
  /** The fill as four bytes in the order of ImageData: red, green, blue, alpha. */
  readonly bytes: number;
  /** Black or white, whichever has the higher contrast with the fill: at least 4.5. */
  readonly ink: string;
}

const relativeLuminance = (rgb: Rgb): number => {
  const [r, g, b] = rgb.map((v) => {
    const u = v / 255;
    return u <= 0.04045 ? u / 12.92 : ((u + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

/** Black and white have the same contrast with a color of this luminance: √(1.05 · 0.05) − 0.05. */
const equalContrast = Math.sqrt(1.05 * 0.05) - 0.05;
const littleEndian = new Uint8Array(Uint32Array.of(1).buffer)[0] === 1;

function packed([r, g, b]: Rgb): number {
  const bytes = littleEndian ? [255, b, g, r] : [r, g, b, 255];
  return bytes.reduce((all, byte) => all * 256 + byte, 0);
}

const asColor = (rgb: Rgb): Color => ({
  fill: `rgb(${rgb.join(' ')})`,
  bytes: packed(rgb),
  ink: relativeLuminance(rgb) > equalContrast ? '#000000' : '#ffffff',
});

/** Hue and largest chroma of heads 1 to 8. The hues are close to the --head-… colors in base.css. */
const headHues: readonly (readonly [hue: number, chroma: number])[] = [
  [245, 0.12],
  [45, 0.14],
  [170, 0.11],
  [350, 0.14],
  [285, 0.15],
  [90, 0.11],
  [262, 0.03],
  [20, 0.15],
];

const steps = 256;
const cache = new Map<string, readonly Color[]>();

function table(key: string, rampOf: () => Ramp): readonly Color[] {
  let colors = cache.get(key);
  if (!colors) {
    const chosen = rampOf();
    colors = Array.from({ length: steps }, (_, i) => asColor(colorOn(chosen, i / (steps - 1))));
    cache.set(key, colors);
  }
  return colors;
}

const tableOf = (theme: Theme, name: 'positive' | 'negative') => table(`${theme} ${name}`, () => ramps[theme][name]);

/** The index of the gray among the heads' colors, for weights of no head. */
const gray = 6;

/** From the paper to the color of a head; from the paper to ink for gray. */
function weightRamp(theme: Theme, head: number): Ramp {
  const [hue, most] = headHues[head % headHues.length]!;
  const ends = { light: [1, head === gray ? 0.27 : 0.45], dark: [0.22, head === gray ? 0.95 : 0.82] } as const;
  return ramp(ends[theme], [0.004, hue], [theme === 'light' ? most : 0.7 * most, hue]);
}

/**
 * Returns the function from a weight and the index of a head to the head's color: paper for 0. The lightness follows the root of
 * the weight, so that a weight of 0.1 is seen.
 */
export function weightScale(theme: Theme): (weight: number, head?: number) => Color {
  return (weight, head = gray) => {
    const colors = table(`${theme} weights ${head % headHues.length}`, () => weightRamp(theme, head));
    return colors[Math.round(Math.sqrt(Math.min(1, Math.max(0, weight))) * (steps - 1))]!;
  };
}

/** Returns the function from a value to its color: weights from 0 to 1, signed values from −limit to limit. */
export function colorScale(theme: Theme, name: ScaleName, limit = 1): (value: number) => Color {
  if (name === 'weights') {
    const color = weightScale(theme);
    return (value) => color(value);
  }
  const positive = tableOf(theme, 'positive');
  const negative = tableOf(theme, 'negative');
  const factor = limit > 0 ? (steps - 1) / limit : 0;
  return (value) => {
    const step = Math.min(steps - 1, Math.round(Math.abs(value) * factor));
    return (value < 0 ? negative : positive)[step] ?? positive[0]!;
  };
}
