// The names of a map's rows and columns, and the text of its cells for screen readers.

import { formatNumber } from '../base/format.js';
import type { MatrixView } from './heat_map.js';

export type Axes = readonly [rows: string, columns: string];

const usual: Axes = ['query', 'key'];

/** The names in a map whose columns have labels. */
export const axesOf = ({ axes = usual }: { readonly axes?: Axes }): Axes => axes;

/** Why a cell is hatched; empty if it is not. */
export const hatchedAs = ({ muted, hidden }: MatrixView, row: number, col: number): 'muted' | 'masked' | '' =>
  muted ? 'muted' : hidden?.(row, col) ? 'masked' : '';

/** The text of a cell for screen readers: "query cat, key black, 0.41". */
export function cellText(view: MatrixView, row: number, col: number): string {
  const value = view.data[row * view.cols + col]!;
  const hatched = hatchedAs(view, row, col);
  const said = view.words ? `${view.words[row * view.cols + col]} ` : '';
  const written = hatched === 'masked' ? `masked, ${formatNumber(value, 0)}` : hatched || formatNumber(value, view.scale === 'weights' ? 2 : 3);
  const [rows, columns] = axesOf(view);
  const place = view.colLabels
    ? `${rows} ${view.rowLabels[row]}, ${columns} ${view.colLabels[col]}`
    : `token ${view.rowLabels[row]}, column ${col + 1}`;
  return `${place}, ${said}${written}${view.edited?.(row, col) ? ', set by hand' : ''}`;
}
