// "Head gallery": the attention weights of all heads side by side. A cell pointed at in one map is
// highlighted in all of them.

import { inView, update, type App } from '../app.js';
import type { ForwardResult } from '../messages.js';
import { el, headBadge, pairOf, refill } from '../parts/dom.js';
import { formatNumber } from '../parts/format.js';
import { createLegend } from '../parts/legend.js';
import { createMap, type MatrixMap } from '../parts/matrix_map.js';
import { matrixTable } from '../parts/matrix_table.js';
import { createViewSwitch, type ViewName } from '../parts/view_switch.js';
import { patternOf, type PatternId } from '../patterns.js';
import { viewOf } from '../steps.js';

interface Card {
  readonly title: HTMLElement;
  readonly element: HTMLElement;
  readonly body: HTMLElement;
  readonly map: MatrixMap;
  readonly readout: HTMLElement;
}

export function gallerySection(app: App): HTMLElement {
  const legend = createLegend('weights');
  const cards = el('div', { class: 'cards' });
  const views = createViewSwitch(app, 'galleryView', 'Show the maps as');
  const section = el(
    'section',
    { class: 'panel', id: 'gallery', 'aria-labelledby': 'gallery-title' },
    el(
      'header',
      { class: 'panel-head' },
      el(
        'div',
        {},
        el('h2', { id: 'gallery-title' }, 'Head gallery'),
        el(
          'p',
          { class: 'lead' },
          'Rows are queries, columns are keys. Point at a cell, or move with the arrow keys: every head shows its weight for that pair.',
        ),
      ),
      views.element,
    ),
    cards,
    legend.element,
  );

  let shown = '';
  let list: readonly Card[] = [];
  const made = new Map<PatternId, Card>();

  /** The card of a pattern, made once. The choice of heads changes only the number in its title. */
  function cardFor(id: PatternId, head: number): Card {
    const card = made.get(id) ?? createCard(app, id);
    made.set(id, card);
    card.title.replaceChildren(
      headBadge(head + 1, id),
      el('span', { class: 'sr-only' }, `Head ${head + 1}: `),
      patternOf(id).name,
    );
    return card;
  }

  function show(): void {
    const result = app.result.get();
    section.hidden = result === null;
    if (!result) return;
    if (result.heads.join() !== shown) {
      shown = result.heads.join();
      list = result.heads.map(cardFor);
      refill(cards, ...list.map((card) => card.element));
    }
    legend.show(result.causal);
    cards.dataset['columns'] = String(columnsFor(list.length, result.tokens.length, views.current()));
    list.forEach((card, head) => fill(card, result, head));
    point();
  }

  function fill({ body, map }: Card, result: ForwardResult, head: number): void {
    const view = viewOf(result, 'weights', head);
    const name = `head ${head + 1}`;
    const label = `Attention weights of ${name}, ${patternOf(result.heads[head]!).name}`;
    if (views.current() === 'numbers') {
      refill(body, matrixTable(view, label));
      return;
    }
    if (body.firstElementChild !== map.element) body.replaceChildren(map.element);
    map.show({
      view,
      label,
      cellLabel: ({ row, col }) => {
        const value = view.hidden?.(row, col)
          ? 'masked, 0'
          : formatNumber(view.data[row * view.cols + col]!, 2);
        return `${name}, query ${result.tokens[row]}, key ${result.tokens[col]}, ${value}`;
      },
    });
  }

  function point(): void {
    const result = app.result.get();
    if (!result) return;
    const { query, key } = inView(app, result);
    list.forEach(({ map, readout }, head) => {
      map.highlight(key === null ? null : { row: query, col: key });
      if (key === null) {
        readout.replaceChildren('\u00a0');
        return;
      }
      const { data, cols, hidden } = viewOf(result, 'weights', head);
      const row = data.subarray(query * cols, (query + 1) * cols);
      const sum = row.reduce((total, weight) => total + weight, 0);
      const masked = hidden?.(query, key) ?? false;
      readout.replaceChildren(
        el('span', {}, ...pairOf(result.tokens[query]!, result.tokens[key]!)),
        el('strong', { class: 'number' }, masked ? 'masked' : formatNumber(row[key]!)),
        el('span', { class: 'readout-sum' }, 'row sum ', el('span', { class: 'number' }, formatNumber(sum))),
      );
    });
  }

  app.result.watch(show);
  app.pointed.watch(point);
  app.state.watch((state, previous) => {
    if (!previous) return;
    if (state.galleryView !== previous.galleryView) show();
    else if (state.query !== previous.query || state.key !== previous.key) point();
  });
  return section;
}

/** Number of columns: full rows if possible, fewer for longer sentences and for tables, which are wider. */
function columnsFor(heads: number, tokens: number, view: ViewName): number {
  const even = heads <= 4 ? heads : heads <= 6 ? 3 : 4;
  return Math.min(even, view === 'numbers' || tokens > 40 ? 2 : tokens > 16 ? 3 : 4);
}

function createCard(app: App, id: PatternId): Card {
  const title = el('h3', {});
  const map = createMap({
    maxCell: 44,
    onPoint: (cell) => app.pointed.set(cell && { query: cell.row, key: cell.col }),
    onChoose: ({ row, col }) => {
      const head = app.state.get().heads.indexOf(id);
      update(app, { query: row, key: col, ...(head >= 0 && { head }) });
    },
  });
  const body = el('div', { class: 'card-body' }, map.element);
  const readout = el('p', { class: 'readout' }, '\u00a0');
  const element = el(
    'article',
    { class: 'card' },
    title,
    el('p', { class: 'card-line' }, patternOf(id).line),
    body,
    readout,
  );
  return { title, element, body, map, readout };
}
