// The layout of a heat map: the sizes of its cells, labels and titles.

import type { MatrixView } from './heat_map.js';

export interface Layout {
  readonly left: number;
  readonly top: number;
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly width: number;
  readonly height: number;
  /** Font size of the labels; 0 for none. */
  readonly font: number;
  /** Distance between two labeled rows or columns; more than 1 if cells are smaller than a line of text. */
  readonly labelEvery: number;
  readonly slant: number;
  readonly labelLimit: number;
  /** Height of the lines with the titles of the axes; 0 for none. */
  readonly title: number;
}

export const family = 'ui-sans-serif, system-ui, sans-serif';
const measuring = document.createElement('canvas').getContext('2d');
const widths = new Map<string, number>();
const mostWidths = 4000;

export function textWidth(text: string, size: number): number {
  if (!measuring) return text.length * size * 0.6;
  const key = `${size} ${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > mostWidths) widths.clear();
    measuring.font = `${size}px ${family}`;
    width = measuring.measureText(text).width;
    widths.set(key, width);
  }
  return width;
}

/** The text, shortened with "…" to a width of `limit` pixels. */
export function shortened(text: string, size: number, limit: number): string {
  if (textWidth(text, size) <= limit) return text;
  const letters = [...text];
  const cut = (count: number): string => `${letters.slice(0, count).join('')}…`;
  let [fits, most] = [1, letters.length];
  while (fits < most) {
    const middle = Math.ceil((fits + most) / 2);
    if (textWidth(cut(middle), size) <= limit) fits = middle;
    else most = middle - 1;
  }
  return cut(fits);
}

const widest = (labels: readonly string[], size: number, limit: number): number =>
  labels.reduce((most, label) => Math.max(most, Math.min(limit, textWidth(label, size))), 0);

/** Height of the line of strong tokens' labels, and their distance from each other, in pixels. */
const strongLine = 12;
export const strongSpacing = 9;

const smallestFont = 9;
/** Pixels that a label of the smallest font needs. */
const line = 10.5;
const fontFor = (cell: number): number => Math.min(13, Math.max(smallestFont, Math.floor(cell * 0.62)));
const bandHeight = 22;
const titleHeight = 15;

/** Smallest width and height of a cell with a word. */
const [wordWidth, wordHeight] = [56, 26];

/** The height of the rows of a matrix whose columns are features. A phone has the number below its map. */
const rowHeightOf = (rows: number, available: number): number =>
  Math.min(available > 400 ? 38 : 26, Math.max(line, Math.floor(420 / Math.max(1, rows))));

/** The layout of a matrix in a width of `available` pixels; maps of tokens by tokens have square cells. */
export function layoutOf(view: MatrixView, available: number, maxCell: number): Layout {
  const square = view.colLabels !== undefined;
  const title = square && !view.bare && !view.small ? titleHeight : 0;
  const labelLimit = Math.max(36, Math.min(110, available * 0.24));
  const featureHeight = rowHeightOf(view.rows, available);
  const fit = (room: number): number => {
    const cell = Math.min(square ? maxCell : 28, room / Math.max(1, view.cols));
    if (view.words) return Math.max(wordWidth, Math.floor(cell));
    return square && cell >= 4 ? Math.floor(cell) : Math.max(1, cell);
  };

  const strong = view.strong !== undefined && !view.bare;
  const base = view.words ? wordHeight : square ? fit(available * 0.8) : featureHeight;
  const font = strong ? smallestFont : view.rows > 0 && !view.bare ? fontFor(base) : 0;
  const left = strong ? strongLine : title + (font ? Math.ceil(widest(view.rowLabels, font, labelLimit)) + 8 : 0);
  // The labels of the last row and column are wider than a cell.
  const beyond = strong ? strongSpacing / 2 : 0;
  let cellWidth = fit(available - left - beyond);
  let right = beyond;
  let slant = Math.PI / 2;
  if (square && font && !strong && cellWidth >= line) {
    // Labels are slanted by 45 degrees if there is room, else vertical.
    const reach = overhang(view.colLabels!, font, labelLimit, cellWidth);
    const slanted = fit(available - left - reach);
    if (slanted >= 17) [cellWidth, right, slant] = [slanted, reach, Math.PI / 4];
  }
  const cellHeight = view.words ? wordHeight : square ? cellWidth : featureHeight;
  const longest = square && font ? widest(view.colLabels!, font, labelLimit) : 0;
  const labels = strong ? strongLine : square && font ? title + Math.ceil(longest * Math.sin(slant) + font) : 0;
  const top = view.bands ? bandHeight : labels;
  return {
    left,
    top,
    cellWidth,
    cellHeight,
    width: Math.ceil(left + view.cols * cellWidth + right),
    height: Math.ceil(top + view.rows * cellHeight + beyond),
    font,
    labelEvery: Math.max(1, Math.ceil(line / cellHeight)),
    slant,
    labelLimit,
    title,
  };
}

/** By how many pixels slanted labels extend beyond the last column. */
function overhang(labels: readonly string[], size: number, limit: number, cell: number): number {
  const reach = labels.map((label, i) => {
    const toTheRight = (labels.length - i - 0.5) * cell;
    return (Math.min(limit, textWidth(label, size)) + size * 0.5) * Math.SQRT1_2 - toTheRight;
  });
  return Math.ceil(Math.max(0, ...reach));
}
