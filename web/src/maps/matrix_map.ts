// A heat map for keyboard and screen reader: a canvas, marks over it, and an ARIA grid. Pointing at a cell moves the
// marks and repaints nothing.

import { el, place } from '../dom/dom.js';
import { forcedColors, paintTheme, printing, repaints } from '../dom/printing.js';
import { whenSeen } from '../dom/when_seen.js';
import { paint, type PaintStyle } from './heat_map.js';
import { createGrid, type Cell, type MapContent } from './map_grid.js';
import { layoutOf, type Layout } from './map_layout.js';

export type { Cell, MapContent } from './map_grid.js';

export interface MapOptions {
  /** Called with the cell under the pointer or focus, and with null when there is none. */
  readonly onPoint: (cell: Cell | null) => void;
  /** Called with a cell that is clicked, or that has the focus when Enter or Space is pressed. */
  readonly onChoose?: (cell: Cell) => void;
  /** Largest side of a cell, in pixels. */
  readonly maxCell: number;
  /** The element whose width the map fills; by default the map's own element. */
  readonly sizer?: HTMLElement;
}

export type MatrixMap = ReturnType<typeof createMap>;

export interface Mark {
  readonly row: number;
  /** Null marks the whole row. */
  readonly col: number | null;
}

const inks = { light: '#565b68', dark: '#a4abbb' };

/** The current style of the maps: the colors of the page, or the light theme for paper. */
export function paintStyle(): PaintStyle {
  const current = paintTheme.get();
  return {
    theme: current,
    ink: forcedColors.matches ? 'CanvasText' : inks[current],
    ratio: Math.max(window.devicePixelRatio || 1, printing.get() ? 2 : 1),
    onPaper: printing.get(),
  };
}

export function createMap({ onPoint, onChoose, maxCell, sizer }: MapOptions) {
  const canvas = el('canvas', { 'aria-hidden': 'true' });
  const bands = el('div', { class: 'map-bands', 'aria-hidden': 'true' });
  const marks = createMarks();
  const grid = createGrid({ onFocus: onPoint, onChoose });
  const stage = el('div', { class: 'map-stage' }, canvas, bands, ...marks.elements, grid.element);
  const element = el('div', { class: 'map' }, stage);
  const measured = sizer ?? element;

  let content: MapContent | undefined;
  let layout: Layout | undefined;
  let marked: Mark | null = null;
  let under: Cell | null = null;
  let width = 0;
  let drawn: (() => void) | undefined;
  let table: ((mark: Mark | null) => void) | null = null;

  /** Sets the size of the map at once, so that nothing moves when the map is drawn. */
  function reserve(): void {
    // Measure before the observer's first report, so that the map has its size in the first frame.
    width ||= measured.clientWidth;
    if (!content || width <= 0) return;
    layout = layoutOf(content.view, width, maxCell);
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
    stage.style.width = `${layout.width}px`;
  }

  function draw(): void {
    reserve();
    if (!content || !layout || width <= 0) return;
    const { view } = content;
    paint(canvas, view, layout, paintStyle());
    drawBands();
    grid.show(content, layout);
    marks.resize(content, layout);
    highlight(marked);
    const then = drawn;
    drawn = undefined;
    then?.();
  }

  function drawBands(): void {
    const { left, top, cellWidth } = layout!;
    bands.replaceChildren(
      ...(content!.view.bands ?? []).map(({ label, start, end, className }) => {
        const band = el('span', { class: `map-band ${className}` }, label);
        place(band, { left: left + start * cellWidth, top: 0, width: (end - start) * cellWidth - 1, height: top - 4 });
        return band;
      }),
    );
  }

  function highlight(mark: Mark | null): void {
    marked = mark;
    table?.(mark);
    if (content && layout) marks.move(mark, content, layout);
  }

  function cellAt(event: MouseEvent): Cell | null {
    if (!content || !layout) return null;
    const box = canvas.getBoundingClientRect();
    const col = Math.floor((event.clientX - box.left - layout.left) / layout.cellWidth);
    const row = Math.floor((event.clientY - box.top - layout.top) / layout.cellHeight);
    const inside = row >= 0 && col >= 0 && row < content.view.rows && col < content.view.cols;
    return inside ? { row, col } : null;
  }

  function pointAt(cell: Cell | null): void {
    if (cell?.row === under?.row && cell?.col === under?.col) return;
    under = cell;
    onPoint(cell);
  }

  const drawSoon = whenSeen(element, draw);
  canvas.addEventListener('pointermove', (event) => pointAt(cellAt(event)));
  canvas.addEventListener('pointerleave', () => pointAt(null));
  canvas.addEventListener('click', (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    grid.moveTo(cell);
    onChoose?.(cell);
  });

  new ResizeObserver(() => {
    const now = measured.clientWidth;
    if (now === width) return;
    width = now;
    drawSoon();
  }).observe(measured);
  repaints(element, drawSoon, draw);

  return {
    element,
    show(next: MapContent): void {
      content = next;
      reserve();
      drawSoon();
    },
    /** Call it before show() if the map has another width now; else the map changes its size after it is drawn. */
    remeasure(): void {
      width = 0;
    },
    highlight,
    /** Gives the mark, now and when it changes, to a table that stands in for the map. */
    markIn(next: ((mark: Mark | null) => void) | null): void {
      table = next;
      table?.(marked);
    },
    /** Calls `then` once, after the next time that the map is drawn. */
    afterDraw(then: () => void): void {
      drawn = then;
    },
    /** The sizes of the map as it is drawn; undefined before the first time. */
    layout: (): Layout | undefined => layout,
  };
}

/** The marks of the cell under the pointer, of its row and of its column, and its labels if the map omits them. */
function createMarks() {
  const mark = (name: string) => el('div', { class: `map-mark ${name}`, 'aria-hidden': 'true', hidden: true });
  const [row, col, cell] = [mark('map-mark-line'), mark('map-mark-line'), mark('map-mark-cell')];
  const [rowLabel, colLabel] = [mark('map-mark-label cut'), mark('map-mark-label cut')];
  const elements = [row, col, cell, rowLabel, colLabel];

  return {
    elements,
    resize({ view }: MapContent, { left, top, cellWidth, cellHeight }: Layout): void {
      place(row, { left, top, width: view.cols * cellWidth, height: cellHeight });
      place(col, { left, top, width: cellWidth, height: view.rows * cellHeight });
      place(cell, { left, top, width: cellWidth, height: cellHeight });
    },
    move(at: Mark | null, { view }: MapContent, layout: Layout): void {
      const inside = at && at.row < view.rows && (at.col ?? 0) < view.cols ? at : null;
      const { left, top, cellWidth, cellHeight, labelEvery } = layout;
      const named = labelEvery > 1 && view.colLabels !== undefined && !view.bare;
      row.hidden = inside === null;
      col.hidden = cell.hidden = !inside || inside.col === null;
      rowLabel.hidden = row.hidden || !named;
      colLabel.hidden = col.hidden || !named;
      if (!inside) return;
      const [x, y] = [(inside.col ?? 0) * cellWidth, inside.row * cellHeight];
      row.style.transform = `translate(0, ${y}px)`;
      col.style.transform = `translate(${x}px, 0)`;
      cell.style.transform = `translate(${x}px, ${y}px)`;
      if (!named) return;
      rowLabel.textContent = view.rowLabels[inside.row]!;
      rowLabel.style.transform = `translate(${left - 4}px, ${top + y + cellHeight / 2}px) translate(-100%, -50%)`;
      if (inside.col === null) return;
      colLabel.textContent = view.colLabels![inside.col]!;
      // The label extends to the right at the left edge, and to the left at the right edge.
      const back = (100 * inside.col) / Math.max(1, view.cols - 1);
      colLabel.style.transform = `translate(${left + x + cellWidth / 2}px, ${top - 4}px) translate(-${back}%, -100%)`;
    },
  };
}
