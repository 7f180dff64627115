// Paints a matrix: cells, numbers, labels and titles.

import { formatNumber } from '../base/format.js';
import type { Theme } from '../dom/theme.js';
import { axesOf, hatchedAs, type Axes } from './cell_text.js';
import { colorScale, weightScale, type Color, type ScaleName } from './color_scale.js';
import { family, shortened, strongSpacing, textWidth, type Layout } from './map_layout.js';

export interface Band {
  readonly label: string;
  readonly start: number;
  readonly end: number;
  readonly className: string;
}

export interface MatrixView {
  readonly rows: number;
  readonly cols: number;
  /** Row-major. */
  readonly data: Float32Array;
  readonly rowLabels: readonly string[];
  /** Labels of the columns if they are keys. Missing if the columns are features. */
  readonly colLabels?: readonly string[];
  /** Names of what rows and columns are, if there are `colLabels`; by default query and key. */
  readonly axes?: Axes;
  readonly bands?: readonly Band[];
  /** True: paints no labels; `rowLabels` then serve screen readers only. */
  readonly bare?: boolean;
  /** True: paints no numbers, and no titles of the axes. */
  readonly small?: boolean;
  /** Tokens with labels, upright and in the accent color; all other tokens have none. For maps with small cells. */
  readonly strong?: readonly boolean[];
  /** True: there are no numbers yet; paints labels and an outline. */
  readonly blank?: boolean;
  /** True if the mask hides a cell; the cell is hatched. */
  readonly hidden?: (row: number, col: number) => boolean;
  /** True if the head is muted: all cells are hatched. */
  readonly muted?: boolean;
  /** True if a cell was set by hand; the cell gets a mark in a corner. */
  readonly edited?: (row: number, col: number) => boolean;
  readonly scale: ScaleName;
  /** A text for each cell, in place of its number. Its cells are wide. */
  readonly words?: readonly string[];
  /** Index of the head whose color a cell takes, instead of a color from `scale`. */
  readonly headOf?: (row: number, col: number) => number;
}

/**
 * Settings for painting. `ink` is the color of labels, `ratio` the number of device pixels per CSS pixel. `onPaper`:
 * clears nothing, because Chromium prints the drawing commands, and a clear would also erase the print around the map.
 */
export interface PaintStyle {
  readonly theme: Theme;
  readonly ink: string;
  readonly ratio: number;
  readonly onPaper?: boolean;
}

/** A row of the data, not a copy. */
export const viewRow = ({ data, cols }: MatrixView, row: number): Float32Array => data.subarray(row * cols, (row + 1) * cols);

/** The largest finite absolute value: the end of a signed scale. */
export function largestOf(view: MatrixView): number {
  let most = 0;
  for (const value of view.data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  return most;
}

export function paint(canvas: HTMLCanvasElement, view: MatrixView, layout: Layout, style: PaintStyle): void {
  const width = Math.max(1, Math.round(layout.width * style.ratio));
  const height = Math.max(1, Math.round(layout.height * style.ratio));
  // Keep a canvas that has the right size: allocating new pixels takes longer than painting a small map.
  const sameSize = canvas.width === width && canvas.height === height && !style.onPaper;
  if (!sameSize) {
    canvas.width = width;
    canvas.height = height;
  }
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const context = canvas.getContext('2d');
  if (!context) return;
  context.setTransform(style.ratio, 0, 0, style.ratio, 0, 0);
  if (sameSize) context.clearRect(0, 0, layout.width, layout.height);
  paintMap(context, view, layout, style);
}

/** A map to paint at the origin of the context, which is already scaled by `style.ratio`. */
interface Painting {
  readonly context: CanvasRenderingContext2D;
  readonly view: MatrixView;
  readonly layout: Layout;
  readonly style: PaintStyle;
}
type Colors = { readonly colors: readonly Color[] };

export function paintMap(context: CanvasRenderingContext2D, view: MatrixView, layout: Layout, style: PaintStyle): void {
  const painting = { context, view, layout, style };
  if (view.blank) paintOutline(painting);
  else {
    const colored = { ...painting, colors: colorsOf(view, style.theme) };
    paintCells(colored);
    if (!view.small) paintNumbers(colored);
    if (view.edited) paintEdited(colored);
  }
  if (view.strong && !view.bare) paintStrongLabels(painting, view.strong);
  else paintLabels(painting);
  paintTitles(painting);
}

function colorsOf(view: MatrixView, theme: Theme): Color[] {
  const limit = view.scale === 'weights' ? 1 : largestOf(view);
  const { headOf, cols } = view;
  if (headOf) {
    const color = weightScale(theme);
    return Array.from(view.data, (value, i) => color(value, headOf(Math.floor(i / cols), i % cols)));
  }
  return Array.from(view.data, colorScale(theme, view.scale, limit));
}

function paintOutline({ context, view: { rows, cols }, layout: { left, top, cellWidth, cellHeight }, style }: Painting): void {
  context.strokeStyle = style.ink;
  context.globalAlpha = 0.4;
  context.strokeRect(left + 0.5, top + 0.5, cols * cellWidth - 1, rows * cellHeight - 1);
  context.globalAlpha = 1;
}

const small = document.createElement('canvas');

/** Draws an image with one pixel for each cell, enlarged; a rectangle for each cell would be slower. */
function paintCells({ context, view, layout, style: { theme, ratio, onPaper }, colors }: Painting & Colors): void {
  const { left, top, cellWidth: w, cellHeight: h } = layout;
  const { rows, cols } = view;
  if (rows === 0 || cols === 0) return;
  const pixels = Uint32Array.from(colors, ({ bytes }) => bytes);
  small.width = cols;
  small.height = rows;
  const image = new ImageData(new Uint8ClampedArray(pixels.buffer), cols, rows);
  small.getContext('2d')?.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  // Cells start on whole device pixels, so that adjacent cells do not overlap or leave a gap.
  const snap = (length: number): number => Math.round(length * ratio) / ratio;
  const [x, y] = [snap(left), snap(top)];
  const [across, down] = [snap(left + cols * w) - x, snap(top + rows * h) - y];
  context.drawImage(small, x, y, across, down);
  if (view.hidden || view.muted) {
    context.beginPath();
    for (let row = 0; row < rows; row += 1) {
      const [above, below] = [snap(top + row * h), snap(top + (row + 1) * h)];
      for (let col = 0; col < cols; col += 1) {
        if (!hatchedAs(view, row, col)) continue;
        const first = col;
        while (col + 1 < cols && hatchedAs(view, row, col + 1)) col += 1;
        const [from, to] = [snap(left + first * w), snap(left + (col + 1) * w)];
        context.rect(from, above, to - from, below - above);
      }
    }
    context.fillStyle = hatching(context, theme, ratio);
    context.fill();
  }
  if (view.scale === 'weights') {
    // Cells without weight have the color of the page: lines show where they are, if only around them all.
    context.fillStyle = hairline[theme];
    context.fillRect(x, y - 1, across, 1);
    context.fillRect(x - 1, y - 1, 1, down + 1);
    if (Math.min(w, h) < 7) {
      context.fillRect(x, y + down - 1, across, 1);
      context.fillRect(x + across - 1, y, 1, down);
    }
  }
  if (Math.min(w, h) < 7) return;
  if (view.scale !== 'weights') context.fillStyle = 'white';
  const gap = onPaper || view.scale === 'weights' ? context.fillRect.bind(context) : context.clearRect.bind(context);
  for (let row = 1; row <= rows; row += 1) gap(x, snap(top + row * h) - 1, across, 1);
  for (let col = 1; col <= cols; col += 1) gap(snap(left + col * w) - 1, y, 1, down);
}

const hairline: Readonly<Record<Theme, string>> = { light: '#e0e0da', dark: '#2b303d' };

const hatches = new Map<string, CanvasPattern>();

function hatching(context: CanvasRenderingContext2D, theme: Theme, ratio: number): CanvasPattern | string {
  const key = `${theme} ${ratio}`;
  const [ground, line] = theme === 'light' ? ['#f4f4f2', '#b9bbc4'] : ['#171a23', '#596073'];
  const known = hatches.get(key);
  if (known) return known;
  const size = Math.round(6 * ratio);
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const tileContext = tile.getContext('2d');
  if (!tileContext) return line;
  tileContext.fillStyle = ground;
  tileContext.fillRect(0, 0, size, size);
  tileContext.strokeStyle = line;
  tileContext.lineWidth = Math.max(1, ratio);
  tileContext.beginPath();
  for (const shift of [-size, 0, size]) {
    tileContext.moveTo(shift - 1, size + 1);
    tileContext.lineTo(shift + size + 1, -1);
  }
  tileContext.stroke();
  const pattern = context.createPattern(tile, 'repeat');
  if (!pattern) return line;
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  hatches.set(key, pattern);
  return pattern;
}

function paintNumbers({ context, view, layout: { left, top, cellWidth: w, cellHeight: h }, colors }: Painting & Colors): void {
  const size = Math.min(12, Math.floor(Math.min(w * 0.32, h * 0.6)));
  if (size < 9) return;
  const limit = view.scale === 'weights' ? 1 : largestOf(view);
  const widestNumber = `${view.scale === 'weights' ? '' : '−'}${limit.toFixed(2)}`;
  if (!view.words && w < textWidth(widestNumber, size) + 4) return;
  context.font = `${size}px ${family}`;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  view.data.forEach((value, i) => {
    const [row, col] = [Math.floor(i / view.cols), i % view.cols];
    if (hatchedAs(view, row, col)) return;
    const text = view.words ? shortened(view.words[i]!, size, w - 6) : formatNumber(value, 2);
    // Ink only where something is.
    if (text === '0.00') return;
    context.fillStyle = colors[i]!.ink;
    context.fillText(text, left + (col + 0.5) * w - 0.5, top + (row + 0.5) * h);
  });
}

/** Draws a triangle in the upper right corner of each cell that was set by hand. */
function paintEdited({ context, view: { cols, edited }, layout: { left, top, cellWidth: w, cellHeight: h }, colors }: Painting & Colors): void {
  const side = Math.max(4, 0.36 * Math.min(w, h));
  colors.forEach(({ ink }, i) => {
    const [row, col] = [Math.floor(i / cols), i % cols];
    if (!edited?.(row, col)) return;
    const [right, above] = [left + (col + 1) * w - 1, top + row * h];
    context.fillStyle = ink;
    context.beginPath();
    context.moveTo(right, above);
    context.lineTo(right - side, above);
    context.lineTo(right, above + side);
    context.fill();
  });
}

function paintLabels({ context, view, layout, style: { ink } }: Painting): void {
  const { left, top, cellWidth: w, cellHeight: h, font, slant, labelLimit, labelEvery } = layout;
  if (!font) return;
  context.fillStyle = ink;
  context.font = `${font}px ${family}`;
  context.textBaseline = 'middle';
  context.textAlign = 'right';
  for (let row = 0; row < view.rows; row += labelEvery) {
    context.fillText(shortened(view.rowLabels[row]!, font, labelLimit), left - 6, top + (row + 0.5) * h);
  }
  if (!view.colLabels) return;
  context.textAlign = 'left';
  for (let col = 0; col < view.cols; col += labelEvery) {
    context.save();
    context.translate(left + (col + 0.5) * w, top - 4);
    context.rotate(-slant);
    context.fillText(shortened(view.colLabels[col]!, font, labelLimit), 0, 0);
    context.restore();
  }
}

const accents: Readonly<Record<Theme, string>> = { light: '#2c4bb8', dark: '#93b0ff' };

/** Labels next to each other move apart, because cells are smaller than letters. */
function paintStrongLabels(
  { context, view: { rowLabels, colLabels = [] }, layout, style: { theme, ink } }: Painting,
  strong: readonly boolean[],
): void {
  const { left, top, cellWidth: w, cellHeight: h, font } = layout;
  context.fillStyle = ink === 'CanvasText' ? ink : accents[theme];
  context.font = `600 ${font}px ${family}`;
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  strong.forEach((labeled, i) => {
    if (!labeled) return;
    let [first, last] = [i, i];
    while (strong[first - 1]) first -= 1;
    while (strong[last + 1]) last += 1;
    // In cells, from the middle of the neighbors.
    const place = (size: number): number => (first + last + 1) / 2 + (i - (first + last) / 2) * Math.max(1, strongSpacing / size);
    context.fillText(rowLabels[i]!, left / 2, top + place(h) * h);
    context.fillText(colLabels[i] ?? '', left + place(w) * w, top / 2);
  });
}

/** Draws the name of the columns above them, and the name of the rows left of them. */
function paintTitles({ context, view, layout, style: { ink } }: Painting): void {
  const { left, top, cellWidth, cellHeight, title } = layout;
  if (!title) return;
  const [rows, columns] = axesOf(view);
  context.fillStyle = ink;
  context.font = `600 11px ${family}`;
  context.textBaseline = 'middle';
  context.textAlign = 'center';
  context.fillText(`${columns} →`, left + Math.max(20, (view.cols * cellWidth) / 2), title / 2);
  context.save();
  context.translate(title / 2 - 1, top + Math.max(18, (view.rows * cellHeight) / 2));
  context.rotate(-Math.PI / 2);
  context.fillText(`← ${rows}`, 0, 0);
  context.restore();
}
