// The chart of multihead lens, patch, ablate and attribute: a number for each part of each layer, as colors of a grid.

import { escaped, label, opening } from './chart.js';

export interface Grid {
  readonly title: string;
  /** The text under the title. */
  readonly text: string;
  /** Name of the columns: "head". */
  readonly column: string;
  /** A row for each layer. */
  readonly rows: readonly string[];
  readonly columns: readonly string[];
  /** (rows, columns) */
  readonly values: ArrayLike<number>;
  /** Shown while a pointer is on a cell. */
  readonly noteOf: (row: number, column: number) => string;
  readonly legend: string;
}

/** White at 0, blue for positive and red for negative numbers, darker for larger ones. */
function color(share: number): string {
  const dark = share < 0 ? [178, 24, 43] : [8, 69, 148];
  return `rgb(${dark.map((channel) => Math.round(255 + Math.min(1, Math.abs(share)) * (channel - 255))).join(',')})`;
}

export function gridSvg({ title, text, column, rows, columns, values, noteOf, legend }: Grid): string {
  const [left, top] = [92, 82];
  const size = Math.min(40, Math.max(6, Math.floor(900 / Math.max(columns.length, 1))));
  const [width, height] = [Math.max(left + columns.length * size + 16, 560), top + rows.length * size + 56];
  const most = Array.from(values).reduce((largest, value) => Math.max(largest, Math.abs(value)), 0) || 1;
  const step = Math.ceil(28 / size);
  const middle = ' text-anchor="middle"';
  const bottom = top + rows.length * size;
  const lines = [
    ...opening(title, text, width, height),
    label([left - 10, top - 8], column, ' text-anchor="end"'),
    ...columns.flatMap((name, at) => (at % step === 0 ? [label([left + (at + 0.5) * size, top - 8], name, middle)] : [])),
    ...rows.flatMap((name, at) =>
      at % Math.ceil(14 / size) === 0 ? [label([left - 10, top + (at + 0.5) * size + 4], name, ' text-anchor="end"')] : [],
    ),
    ...rows.flatMap((_, row) =>
      columns.map((__, at) => {
        const place = `x="${left + at * size}" y="${top + row * size}" width="${size}" height="${size}"`;
        const fill = color((values[row * columns.length + at] as number) / most);
        return `<rect ${place} fill="${fill}" stroke="#ccc" stroke-width=".5"><title>${escaped(noteOf(row, at))}</title></rect>`;
      }),
    ),
    ...[-1, -0.5, 0, 0.5, 1].map(
      (share, at) => `<rect x="${left + at * 14}" y="${bottom + 18}" width="14" height="12" fill="${color(share)}" stroke="#ccc" stroke-width=".5"/>`,
    ),
    label([left + 80, bottom + 28], `−${most.toPrecision(3)} to ${most.toPrecision(3)}: ${legend}`),
    '</svg>',
  ];
  return `${lines.join('\n')}\n`;
}
