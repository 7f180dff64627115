// The chart of multihead heads: small maps of all layers and heads in one SVG.

import { printable } from '../runtime/text.js';
import { levels, palette, png, type SmallMap } from './map_image.js';

/** One map of the chart. */
export interface ChartMap {
  readonly layer: number;
  readonly head: number;
  readonly map: SmallMap;
  /** Shown while a pointer is on the map. */
  readonly note: string;
}

export interface Chart {
  readonly modelType: string;
  /** The text, or ids, that the maps are of. */
  readonly text: string;
  readonly tokens: number;
  /** A row for each layer. */
  readonly layers: readonly number[];
  /** A column for each head. */
  readonly heads: readonly number[];
  readonly maps: readonly ChartMap[];
}

/** Cells of all maps together. Each takes at most ⅔ of a byte of the file. */
const mostCells = 300_000;

/** Most cells of a map's side, by the number of maps in the chart. */
export const mostSide = (maps: number): number => Math.min(64, Math.max(8, Math.floor(Math.sqrt(mostCells / maps))));

/** Text of an element or attribute. */
export const escaped = (text: string, most = 120): string => printable(text, most).replaceAll(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

export const label = (at: readonly [number, number], words: string, more = ''): string =>
  `<text x="${at[0]}" y="${at[1]}"${more}>${escaped(words)}</text>`;

/** The first lines of a chart, with its title and a text. */
export const opening = (title: string, text: string, width: number, height: number): string[] => [
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-labelledby="title" font-family="system-ui, sans-serif" font-size="12">`,
  `<title id="title">${escaped(title)}</title>`,
  `<rect width="${width}" height="${height}" fill="#fff"/>`,
  label([16, 26], title, ' font-size="16" font-weight="600"'),
  label([16, 46], `“${printable(text, 70)}”`, ' fill="#444"'),
];

const color = (level: number): string => `rgb(${palette[level]?.join(',')})`;

export function svgOf({ modelType, text, tokens, layers, heads, maps }: Chart): string {
  const [left, top, gap] = [92, 82, 6];
  const size = Math.min(160, Math.max(32, Math.floor(900 / Math.max(heads.length, 1)) - gap));
  const [gridWidth, gridHeight] = [heads.length * (size + gap) - gap, layers.length * (size + gap) - gap];
  const [width, height] = [Math.max(left + gridWidth + 16, 560), top + gridHeight + 72];
  const x = (head: number): number => left + heads.indexOf(head) * (size + gap);
  const y = (layer: number): number => top + layers.indexOf(layer) * (size + gap);
  const middle = ' text-anchor="middle"';
  const title = `Attention of every head: ${modelType}, ${tokens} tokens`;
  const bottom = top + gridHeight;
  const swatch = 10;
  const legendLeft = left + 128;
  const lines = [
    ...opening(title, text, width, height),
    ...heads.map((head) => label([x(head) + size / 2, top - 8], size < 60 ? `${head}` : `head ${head}`, middle)),
    ...(size < 60 ? [label([left - 10, top - 8], 'head', ' text-anchor="end"')] : []),
    ...layers.map((layer) => label([left - 10, y(layer) + size / 2 + 4], `layer ${layer}`, ' text-anchor="end"')),
    ...maps.map(({ layer, head, map, note }) => {
      const at = `x="${x(head)}" y="${y(layer)}" width="${size}" height="${size}"`;
      const image = `<image ${at} preserveAspectRatio="none" href="data:image/png;base64,${png(map).toString('base64')}"/>`;
      return `<g><title>${escaped(note)}</title>${image}<rect ${at}/></g>`;
    }),
    label([left + gridWidth / 2, bottom + 20], `key position, 0 to ${tokens - 1} →`, middle),
    label([0, 0], '← query position', `${middle} transform="translate(20 ${top + gridHeight / 2}) rotate(-90)"`),
    label([left, bottom + 50], 'no weight'),
    ...Array.from({ length: levels }, (_, level) => {
      const at = legendLeft - 64 + level * swatch;
      return `<rect x="${at}" y="${bottom + 41}" width="${swatch}" height="${swatch}" fill="${color(level)}"/>`;
    }),
    label([legendLeft - 56 + levels * swatch, bottom + 50], 'largest weight of the map (square-root scale)'),
    '<style>image{image-rendering:optimizeSpeed;image-rendering:pixelated}g rect{fill:none;stroke:#999;stroke-width:.5}</style>',
    '</svg>',
  ];
  return `${lines.join('\n')}\n`;
}
