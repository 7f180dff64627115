// A heat map that works with the keyboard and a screen reader: a canvas, under an ARIA grid. A map of
// 64 tokens has 4096 cells, so only the active row of the grid is in the document; aria-rowindex gives
// its index.

import { el, place } from './dom.js';
import { layoutOf, paint, type Layout, type MatrixView } from './heat_map.js';
import { theme } from './theme.js';

export interface Cell {
  readonly row: number;
  readonly col: number;
}

export interface MapOptions {
  /** Called with the cell that is pointed at or focused, and with null once none is. */
  readonly onPoint: (cell: Cell | null) => void;
  /** Called with the cell that is clicked, or focused when Enter or Space is pressed. */
  readonly onChoose?: (cell: Cell) => void;
  /** Largest side of a cell, in pixels. */
  readonly maxCell: number;
  /** The element whose width the map fills; by default the map's own element. */
  readonly sizer?: HTMLElement;
}

export interface MapContent {
  readonly view: MatrixView;
  /** Accessible name of the grid. */
  readonly label: string;
  readonly cellLabel: (cell: Cell) => string;
}

export interface MatrixMap {
  readonly element: HTMLElement;
  show(content: MapContent): void;
  highlight(cell: Cell | null): void;
}

const clamp = (value: number, last: number): number => Math.max(0, Math.min(last, value));

export function createMap({ onPoint, onChoose, maxCell, sizer }: MapOptions): MatrixMap {
  const canvas = el('canvas', { 'aria-hidden': 'true' });
  const bands = el('div', { class: 'map-bands', 'aria-hidden': 'true' });
  const rowMark = el('div', { class: 'map-mark map-mark-line', hidden: true });
  const colMark = el('div', { class: 'map-mark map-mark-line', hidden: true });
  const cellMark = el('div', { class: 'map-mark map-mark-cell', hidden: true });
  const grid = el('div', { class: 'map-grid', role: 'grid' });
  const stage = el('div', { class: 'map-stage' }, canvas, bands, rowMark, colMark, cellMark, grid);
  const element = el('div', { class: 'map' }, stage);
  const measured = sizer ?? element;

  let content: MapContent | undefined;
  let layout: Layout | undefined;
  let active: Cell = { row: 0, col: 0 };
  let marked: Cell | null = null;
  let width = 0;

  function draw(): void {
    if (!content || width <= 0) return;
    layout = layoutOf(content.view, width, maxCell);
    paint(canvas, content.view, layout, theme.get());
    stage.style.width = `${layout.width}px`;
    drawBands();
    drawRow();
    highlight(marked);
  }

  function drawBands(): void {
    const { left, top, cellWidth } = layout!;
    bands.replaceChildren(
      ...(content!.view.bands ?? []).map(({ label, start, end, className }) => {
        const band = el('span', { class: `map-band ${className}` }, label);
        const box = {
          left: left + start * cellWidth,
          top: 0,
          width: (end - start) * cellWidth - 1,
          height: top - 4,
        };
        place(band, box);
        return band;
      }),
    );
  }

  const boxOf = ({ row, col }: Cell) => {
    const { left, top, cellWidth, cellHeight } = layout!;
    return {
      left: left + col * cellWidth,
      top: top + row * cellHeight,
      width: cellWidth,
      height: cellHeight,
    };
  };

  /** Puts the row of the active cell into the document. Only the active cell can be focused. */
  function drawRow(focus = false): void {
    const { view, label, cellLabel } = content!;
    grid.setAttribute('aria-label', label);
    grid.setAttribute('aria-rowcount', String(view.rows));
    grid.setAttribute('aria-colcount', String(view.cols));
    if (view.rows === 0 || view.cols === 0) {
      grid.replaceChildren();
      return;
    }
    const hadFocus = focus || grid.contains(document.activeElement);
    active = { row: clamp(active.row, view.rows - 1), col: clamp(active.col, view.cols - 1) };
    const cells = Array.from({ length: view.cols }, (_, col) => {
      const cell = { row: active.row, col };
      const element = el('div', {
        role: 'gridcell',
        class: 'map-cell',
        'aria-colindex': col + 1,
        'aria-label': cellLabel(cell),
        tabindex: col === active.col ? 0 : -1,
      });
      place(element, boxOf(cell));
      return element;
    });
    grid.replaceChildren(el('div', { role: 'row', 'aria-rowindex': active.row + 1 }, ...cells));
    if (hadFocus) cells[active.col]!.focus({ preventScroll: !focus });
  }

  function moveTo(cell: Cell): void {
    const row = grid.firstElementChild;
    if (cell.row !== active.row || !row) {
      active = cell;
      drawRow(true);
      return;
    }
    row.children[active.col]?.setAttribute('tabindex', '-1');
    active = cell;
    const target = row.children[cell.col] as HTMLElement;
    target.setAttribute('tabindex', '0');
    target.focus();
  }

  function highlight(cell: Cell | null): void {
    marked = cell;
    const view = content?.view;
    const shown = cell && view && layout && cell.row < view.rows && cell.col < view.cols ? cell : null;
    for (const mark of [rowMark, colMark, cellMark]) mark.hidden = shown === null;
    if (!shown || !view) return;
    const box = boxOf(shown);
    const { left, top, cellWidth, cellHeight } = layout!;
    place(rowMark, { ...box, left, width: view.cols * cellWidth });
    place(colMark, { ...box, top, height: view.rows * cellHeight });
    place(cellMark, box);
  }

  function cellUnder(event: PointerEvent | MouseEvent): Cell | null {
    if (!content || !layout) return null;
    const box = canvas.getBoundingClientRect();
    const col = Math.floor((event.clientX - box.left - layout.left) / layout.cellWidth);
    const row = Math.floor((event.clientY - box.top - layout.top) / layout.cellHeight);
    const inside = row >= 0 && col >= 0 && row < content.view.rows && col < content.view.cols;
    return inside ? { row, col } : null;
  }

  canvas.addEventListener('pointermove', (event) => onPoint(cellUnder(event)));
  canvas.addEventListener('pointerleave', () => onPoint(null));
  canvas.addEventListener('click', (event) => {
    const cell = cellUnder(event);
    if (!cell) return;
    moveTo(cell);
    onChoose?.(cell);
  });
  grid.addEventListener('focusin', (event) => {
    const index = [...(grid.firstElementChild?.children ?? [])].indexOf(event.target as Element);
    if (index >= 0) active = { row: active.row, col: index };
    onPoint(active);
  });
  grid.addEventListener('focusout', (event) => {
    if (!grid.contains(event.relatedTarget as Node | null)) onPoint(null);
  });
  grid.addEventListener('keydown', (event) => {
    if (!content || event.altKey || event.metaKey) return;
    const { rows, cols } = content.view;
    const { row, col } = active;
    if (onChoose && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault();
      onChoose(active);
      return;
    }
    const moves: Readonly<Record<string, Cell>> = {
      ArrowLeft: { row, col: col - 1 },
      ArrowRight: { row, col: col + 1 },
      ArrowUp: { row: row - 1, col },
      ArrowDown: { row: row + 1, col },
      PageUp: { row: row - 8, col },
      PageDown: { row: row + 8, col },
      Home: { row: event.ctrlKey ? 0 : row, col: 0 },
      End: { row: event.ctrlKey ? rows - 1 : row, col: cols - 1 },
    };
    const target = moves[event.key];
    if (!target) return;
    event.preventDefault();
    moveTo({ row: clamp(target.row, rows - 1), col: clamp(target.col, cols - 1) });
  });

  new ResizeObserver(() => {
    const now = measured.clientWidth;
    if (now === width) return;
    width = now;
    draw();
  }).observe(measured);
  theme.watch(draw);

  return {
    element,
    show(next) {
      content = next;
      width = measured.clientWidth;
      draw();
    },
    highlight,
  };
}
