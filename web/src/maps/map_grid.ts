// The ARIA grid over a heat map. A map of 64 tokens has 4096 cells, so the document holds only the row of the active
// cell; aria-rowindex gives its index.

import { el, place } from '../dom/dom.js';
import type { MatrixView } from './heat_map.js';
import type { Layout } from './map_layout.js';

export interface Cell {
  readonly row: number;
  readonly col: number;
}

export interface MapContent {
  readonly view: MatrixView;
  readonly label: string;
  readonly cellLabel: (cell: Cell) => string;
}

export interface GridListener {
  /** Called when a cell gets the focus, and with null when no cell has it. */
  onFocus(cell: Cell | null): void;
  /** Called when Enter or the space bar is pressed in a cell. */
  readonly onChoose?: ((cell: Cell) => void) | undefined;
}

const clamp = (value: number, last: number): number => Math.max(0, Math.min(last, value));

export function createGrid({ onFocus, onChoose }: GridListener) {
  const row = el('div', { role: 'row', class: 'map-row' });
  const element = el('div', { class: 'map-grid', role: 'grid' });
  const cells: HTMLElement[] = [];
  let content: MapContent | undefined;
  let layout: Layout | undefined;
  let active: Cell = { row: 0, col: 0 };

  /** Puts the row of the active cell into the document. Only the active cell can be reached with Tab. */
  function drawRow(): void {
    const { view, cellLabel } = content!;
    const { left, top, cellWidth, cellHeight } = layout!;
    active = { row: clamp(active.row, view.rows - 1), col: clamp(active.col, view.cols - 1) };
    while (cells.length < view.cols) {
      const cell = el('div', { role: 'gridcell', class: 'map-cell', 'aria-colindex': cells.length + 1 });
      cells.push(cell);
      row.append(cell);
    }
    for (const cell of cells.splice(view.cols)) cell.remove();
    cells.forEach((cell, col) => {
      const label = cellLabel({ row: active.row, col });
      if (cell.ariaLabel !== label) cell.ariaLabel = label;
      const stop = col === active.col ? 0 : -1;
      if (cell.tabIndex !== stop || !cell.hasAttribute('tabindex')) cell.tabIndex = stop;
    });
    row.setAttribute('aria-rowindex', String(active.row + 1));
    place(row, { left, top: top + active.row * cellHeight, width: view.cols * cellWidth, height: cellHeight });
    if (row.parentElement !== element) element.replaceChildren(row);
  }

  function moveTo(cell: Cell): void {
    if (!content) return;
    const rowChanged = cell.row !== active.row;
    cells[active.col]?.setAttribute('tabindex', '-1');
    active = cell;
    if (rowChanged) drawRow();
    const target = cells[cell.col];
    if (!target) return;
    target.tabIndex = 0;
    // One element stands for all cells of its column, so it may have the focus already.
    if (document.activeElement === target) onFocus(cell);
    else target.focus();
    if (rowChanged) target.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }

  element.addEventListener('focusin', (event) => {
    const col = cells.indexOf(event.target as HTMLElement);
    if (col >= 0) active = { row: active.row, col };
    onFocus(active);
  });
  element.addEventListener('focusout', (event) => {
    if (!element.contains(event.relatedTarget as Node | null)) onFocus(null);
  });
  element.addEventListener('keydown', (event) => {
    if (!content || event.altKey || event.metaKey) return;
    if (onChoose && (event.key === 'Enter' || event.key === ' ')) {
      event.preventDefault();
      onChoose(active);
      return;
    }
    const target = destination(event, active, content.view);
    if (!target) return;
    event.preventDefault();
    moveTo(target);
  });

  return {
    element,
    show(next: MapContent, nextLayout: Layout): void {
      [content, layout] = [next, nextLayout];
      const { rows, cols } = next.view;
      element.setAttribute('aria-label', next.label);
      element.setAttribute('aria-rowcount', String(rows));
      element.setAttribute('aria-colcount', String(cols));
      if (rows > 0 && cols > 0) drawRow();
      else element.replaceChildren();
    },
    moveTo,
  };
}

/** The cell that an arrow key, Home, End or a page key leads to; null for other keys. */
export function destination(event: KeyboardEvent, { row, col }: Cell, { rows, cols }: Pick<MatrixView, 'rows' | 'cols'>): Cell | null {
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
  return target ? { row: clamp(target.row, rows - 1), col: clamp(target.col, cols - 1) } : null;
}
