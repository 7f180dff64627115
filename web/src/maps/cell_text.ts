// Writes the text of a map's cell for screen readers.

import { formatNumber } from '../base/format.js';
import { axesOf } from './axes.js';
import type { MatrixView } from './heat_map.js';

/** Why a cell is hatched; empty if it is not. */
export const hatchedAs = ({ muted, hidden }: MatrixView, row: number, col: number): 'muted' | 'masked' | '' =>
  muted ? 'muted' : hidden?.(row, col) ? 'masked' : '';

/** The text of a cell for screen readers: "query cat, key black, 0.41". */
export function cellText(view: MatrixView, row: number, col: number): string {
  const value = view.data[row * view.cols + col]!;
  const hatched = hatchedAs(view, row, col);
  const written =
    hatched === 'masked' ? `masked, ${formatNumber(value, 0)}` : hatched || formatNumber(value, view.scale === 'weights' ? 2 : 3);
  const [rows, columns] = axesOf(view);
  const place = view.colLabels
    ? `${rows} ${view.rowLabels[row]}, ${columns} ${view.colLabels[col]}`
    : `token ${view.rowLabels[row]}, column ${col + 1}`;
  return `${place}, ${written}${view.edited?.(row, col) ? ', set by hand' : ''}`;
}
