// Saves a map as a file: CSV with every digit, or a PNG at twice the size with its labels. The page loads this script with
// the first file, which keeps the first transfer within 250 kB.

import { csvField } from '../base/format.js';
import { download, el } from '../dom/dom.js';
import { axesOf } from './cell_text.js';
import { paintMap, type MatrixView } from './heat_map.js';
import { family, layoutOf } from './map_layout.js';
import { paintStyle } from './matrix_map.js';
import type { Saved } from './map_frame.js';

/** The shortest decimal that reads back as the same 32-bit float. */
export function exactly(value: number): string {
  if (Object.is(value, -0)) return '-0';
  if (!Number.isFinite(value)) return String(value);
  for (let digits = 1; digits < 9; digits += 1) {
    const text = String(Number(value.toPrecision(digits)));
    if (Math.fround(Number(text)) === value) return text;
  }
  return String(Number(value.toPrecision(9)));
}

/** CSV as in RFC 4180, with the labels in the first row and column. Masked scores are −Infinity, masked weights 0. */
export function csvOf(view: MatrixView): string {
  const { rows, cols, data, rowLabels } = view;
  const colLabels = view.colLabels ?? Array.from({ length: cols }, (_, col) => String(col + 1));
  const lines = [[view.colLabels ? axesOf(view).join(' \\ ') : '', ...colLabels].map(csvField)];
  for (let row = 0; row < rows; row += 1) {
    const numbers = Array.from(data.subarray(row * cols, (row + 1) * cols), exactly);
    lines.push([csvField(rowLabels[row]!), ...numbers]);
  }
  // The words of the cells follow as a second table.
  for (let row = 0; row < rows && view.words; row += 1) {
    lines.push([rowLabels[row]!, ...view.words.slice(row * cols, (row + 1) * cols)].map(csvField));
  }
  return `${lines.map((line) => line.join(',')).join('\r\n')}\r\n`;
}

const margin = 16;
const titleHeight = 26;

/** A picture of the map with its title, in the colors of the page. Its cells are large enough for every label. */
export function pictureOf(view: MatrixView, title: string): HTMLCanvasElement {
  const { theme, ink } = paintStyle();
  const square = view.colLabels !== undefined;
  const cell = view.words ? 80 : square ? (view.cols <= 24 ? 44 : 16) : 14;
  const layout = layoutOf(view, view.cols * cell + 200, cell);
  const style = { theme, ink: ink === 'CanvasText' ? '#565b68' : ink, ratio: 2 };
  const bandHeight = view.bands ? 4 : 0;
  const canvas = el('canvas', {
    width: 2 * Math.max(360, layout.width + 2 * margin),
    height: 2 * (layout.height + titleHeight + 2 * margin),
  });
  const context = canvas.getContext('2d');
  if (!context) return canvas;
  context.scale(2, 2);
  context.font = `600 14px ${family}`;
  context.textBaseline = 'middle';
  context.fillStyle = theme === 'light' ? '#1a1d26' : '#e9ebf1';
  context.fillText(title, margin, margin + 8);
  context.translate(margin, margin + titleHeight);
  paintMap(context, view, layout, style);
  context.font = `11px ${family}`;
  context.textAlign = 'center';
  context.fillStyle = style.ink;
  for (const { label, start, end } of view.bands ?? []) {
    const [from, to] = [start, end].map((col) => layout.left + col * layout.cellWidth) as [number, number];
    context.fillText(label, (from + to) / 2, layout.top / 2 - bandHeight);
    context.fillRect(from, layout.top - 5, to - from - 1, 2);
  }
  // Paint the background last and below everything, because clearing the gaps between cells would clear it as well.
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.globalCompositeOperation = 'destination-over';
  context.fillStyle = theme === 'light' ? '#ffffff' : '#171a23';
  context.fillRect(0, 0, canvas.width, canvas.height);
  return canvas;
}

export function saveMap({ view, title }: Saved, as: 'PNG' | 'CSV'): void {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-');
  if (as === 'CSV') download(new Blob([csvOf(view)], { type: 'text/csv' }), `${name}.csv`);
  else pictureOf(view, title).toBlob((blob) => blob && download(blob, `${name}.png`));
}
