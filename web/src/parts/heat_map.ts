// Draws a matrix on a canvas: the layout of cells and labels, and the painting.

import { colorScale, type ScaleName, type Theme } from './color_scale.js';
import { formatNumber } from './format.js';

/** A named range of columns. */
export interface Band {
  readonly label: string;
  readonly start: number;
  readonly end: number;
  /** CSS class that sets the colour. */
  readonly className: string;
}

export interface MatrixView {
  readonly rows: number;
  readonly cols: number;
  /** Row-major. */
  readonly data: Float32Array;
  readonly rowLabels: readonly string[];
  /** Missing if columns are features, which have no labels. */
  readonly colLabels?: readonly string[];
  readonly bands?: readonly Band[];
  /** Whether the mask hides a cell; such cells are hatched. */
  readonly hidden?: (row: number, col: number) => boolean;
  readonly scale: ScaleName;
}

export interface Layout {
  readonly left: number;
  readonly top: number;
  readonly cellWidth: number;
  readonly cellHeight: number;
  readonly width: number;
  readonly height: number;
  readonly rowFont: number;
  /** Font size of the column labels; 0 for none. */
  readonly colFont: number;
  readonly slant: number;
  readonly labelLimit: number;
}

const family = 'ui-sans-serif, system-ui, sans-serif';
const measuring = document.createElement('canvas').getContext('2d');

function textWidth(text: string, size: number): number {
  if (!measuring) return text.length * size * 0.6;
  measuring.font = `${size}px ${family}`;
  return measuring.measureText(text).width;
}

function shortened(text: string, size: number, limit: number): string {
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

/** The smallest cell, in pixels, that gets a label. */
const legible = 9;
const fontFor = (cell: number): number => (cell < legible ? 0 : Math.min(13, Math.max(9, cell * 0.62)));
const bandHeight = 22;

/** The layout of a matrix in a width of `available` pixels; maps of tokens by tokens have square cells. */
export function layoutOf(view: MatrixView, available: number, maxCell: number): Layout {
  const square = view.colLabels !== undefined;
  const labelLimit = Math.max(36, Math.min(110, available * 0.24));
  const featureHeight = Math.min(26, Math.max(10, Math.floor(420 / Math.max(1, view.rows))));
  const fit = (room: number): number => {
    const cell = Math.min(square ? maxCell : 28, room / Math.max(1, view.cols));
    return square && cell >= 4 ? Math.floor(cell) : Math.max(1, cell);
  };
  const labelRoom = (font: number): number =>
    font ? Math.ceil(widest(view.rowLabels, font, labelLimit)) + 8 : 0;

  const rowFont = fontFor(square ? fit(available * 0.8) : featureHeight);
  const left = labelRoom(rowFont);
  let cellWidth = fit(available - left);
  let right = 0;
  let slant = Math.PI / 2;
  if (square && rowFont) {
    // Labels are at 45 degrees if there is room, else vertical.
    const reach = overhang(view.colLabels!, rowFont, labelLimit, cellWidth);
    const slanted = fit(available - left - reach);
    if (slanted >= 17) [cellWidth, right, slant] = [slanted, reach, Math.PI / 4];
  }
  const cellHeight = square ? cellWidth : featureHeight;
  const colFont = square ? rowFont : 0;
  const longest = colFont ? widest(view.colLabels!, colFont, labelLimit) : 0;
  const top = view.bands ? bandHeight : colFont ? Math.ceil(longest * Math.sin(slant) + colFont) : 0;
  return {
    left,
    top,
    cellWidth,
    cellHeight,
    width: Math.ceil(left + view.cols * cellWidth + right),
    height: Math.ceil(top + view.rows * cellHeight),
    rowFont,
    colFont,
    slant,
    labelLimit,
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

export function paint(canvas: HTMLCanvasElement, view: MatrixView, layout: Layout, theme: Theme): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(layout.width * ratio));
  canvas.height = Math.max(1, Math.round(layout.height * ratio));
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext('2d');
  if (!pen) return;
  pen.scale(ratio, ratio);
  paintCells(pen, view, layout, theme, ratio);
  paintLabels(pen, view, layout, getComputedStyle(canvas).color);
}

/** The largest finite absolute value: the end of a signed scale. */
export function largestOf(view: MatrixView): number {
  let most = 0;
  for (const value of view.data) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  return most;
}

function paintCells(
  pen: CanvasRenderingContext2D,
  view: MatrixView,
  layout: Layout,
  theme: Theme,
  ratio: number,
): void {
  const { left, top, cellWidth: w, cellHeight: h } = layout;
  const limit = view.scale === 'weights' ? 1 : largestOf(view);
  const color = colorScale(theme, view.scale, limit);
  const gap = Math.min(w, h) >= 7 ? 1 : 0;
  const numberSize = Math.min(12, Math.floor(Math.min(w * 0.32, h * 0.6)));
  const integerDigits = view.scale === 'weights' ? 1 : limit >= 100 ? 4 : limit >= 10 ? 3 : 2;
  const withNumbers = numberSize >= 9 && w >= (integerDigits + 3) * numberSize * 0.6 + 4;
  const hatch = hatching(pen, theme, ratio);
  // Cells start on whole device pixels, so that neighbours neither overlap nor leave a gap.
  const snap = (length: number): number => Math.round(length * ratio) / ratio;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  for (let row = 0; row < view.rows; row += 1) {
    for (let col = 0; col < view.cols; col += 1) {
      const value = view.data[row * view.cols + col]!;
      const [x, y] = [snap(left + col * w), snap(top + row * h)];
      const [across, down] = [snap(left + (col + 1) * w) - x - gap, snap(top + (row + 1) * h) - y - gap];
      const hidden = view.hidden?.(row, col) ?? false;
      const { fill, ink } = color(hidden ? 0 : value);
      pen.fillStyle = hidden ? hatch : fill;
      pen.fillRect(x, y, across, down);
      if (!withNumbers || hidden) continue;
      pen.font = `${numberSize}px ${family}`;
      pen.fillStyle = ink;
      pen.globalAlpha = Math.abs(value) < 0.005 ? 0.3 : 1;
      pen.fillText(formatNumber(value, 2), x + across / 2, y + down / 2 + 0.5);
      pen.globalAlpha = 1;
    }
  }
}

/** A pattern of diagonal lines, at device resolution. */
function hatching(pen: CanvasRenderingContext2D, theme: Theme, ratio: number): CanvasPattern | string {
  const [ground, line] = theme === 'light' ? ['#f4f4f2', '#b9bbc4'] : ['#171a23', '#596073'];
  const size = Math.round(6 * ratio);
  const tile = document.createElement('canvas');
  tile.width = size;
  tile.height = size;
  const brush = tile.getContext('2d');
  if (!brush) return line;
  brush.fillStyle = ground;
  brush.fillRect(0, 0, size, size);
  brush.strokeStyle = line;
  brush.lineWidth = Math.max(1, ratio);
  brush.beginPath();
  for (const shift of [-size, 0, size]) {
    brush.moveTo(shift - 1, size + 1);
    brush.lineTo(shift + size + 1, -1);
  }
  brush.stroke();
  const pattern = pen.createPattern(tile, 'repeat');
  pattern?.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern ?? line;
}

function paintLabels(pen: CanvasRenderingContext2D, view: MatrixView, layout: Layout, ink: string): void {
  const { left, top, cellWidth: w, cellHeight: h, rowFont, colFont, slant, labelLimit } = layout;
  pen.fillStyle = ink;
  pen.textBaseline = 'middle';
  if (rowFont) {
    pen.font = `${rowFont}px ${family}`;
    pen.textAlign = 'right';
    view.rowLabels.forEach((label, row) => {
      pen.fillText(shortened(label, rowFont, labelLimit), left - 6, top + (row + 0.5) * h);
    });
  }
  if (colFont && view.colLabels) {
    pen.font = `${colFont}px ${family}`;
    pen.textAlign = 'left';
    view.colLabels.forEach((label, col) => {
      pen.save();
      pen.translate(left + (col + 0.5) * w, top - 4);
      pen.rotate(-slant);
      pen.fillText(shortened(label, colFont, labelLimit), 0, 0);
      pen.restore();
    });
  }
}
