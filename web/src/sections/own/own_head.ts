// The open head of the visitor's own model: its map or table, and the words that one of its queries looks at.

import { patternIds } from '../../attention/patterns.js';
import { tokenNames } from '../../attention/tokens.js';
import { el, headBadge, word } from '../../dom/dom.js';
import { createLegend } from '../../maps/legend.js';
import { viewRow, type MatrixView } from '../../maps/heat_map.js';
import { createMapFrame } from '../../maps/map_frame.js';
import type { TextAttention } from '../../model/messages.js';
import { update, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { shareLine } from '../bend/bend.js';
import { pairText } from '../gallery/gallery_card.js';

/** Number of words whose weights are listed, and the smallest weight of them: it would be written as 0.0 %. */
const mostWords = 6;
const least = 0.0005;

export interface OwnHead {
  readonly element: HTMLElement;
  show(attention: TextAttention, place: { layer: number; head: number }, causal: boolean, as: ViewName): void;
  /** Lists the weights of the query in the state. */
  showQuery(): void;
}

export function createOwnHead(app: App): OwnHead {
  const frame = createMapFrame(
    {
      maxCell: 44,
      onPoint: (cell) => point(cell),
      onChoose: ({ row }) => update(app, { ownQuery: row }),
    },
    'the weights of this head',
  );
  const readout = el('p', { class: 'readout' }, '\u00a0');
  const title = el('h3', {});
  const asked = el('h4', { class: 'own-asked' });
  const list = el('ol', { class: 'effect-list' });
  const rest = el('p', { class: 'hint' });
  const legend = createLegend('weights');
  const element = el(
    'article',
    { class: 'own-head' },
    el('div', { class: 'own-map card' }, title, frame.body, readout, el('div', { class: 'map-under' }, legend.element, frame.saves)),
    el('div', { class: 'own-looks' }, asked, list, rest),
  );

  /** Lists the largest weights of a query. */
  function tell(view: MatrixView, query: number): void {
    const row = viewRow(view, query);
    const order = [...row.keys()].filter((key) => row[key]! >= least).sort((a, b) => row[b]! - row[a]! || a - b);
    const first = order.slice(0, mostWords);
    const others = 1 - first.reduce((sum, key) => sum + row[key]!, 0);
    asked.replaceChildren('What ', word(view.rowLabels[query]!), ' looks at');
    list.replaceChildren(...first.map((key) => shareLine(view.colLabels![key]!, row[key]!)));
    rest.textContent = others >= least ? `All others: ${(100 * others).toFixed(1)} %. ` : '';
    rest.append('Choose another row on the map to see its words.');
  }

  function showQuery(): void {
    const view = frame.shown()?.view;
    if (!view || view.rows === 0) return;
    tell(view, Math.min(app.state.get().ownQuery ?? view.rows - 1, view.rows - 1));
  }

  function point(cell: { row: number; col: number } | null): void {
    const view = frame.shown()?.view;
    frame.map.highlight(cell);
    if (!view || !cell) {
      readout.textContent = '\u00a0';
      showQuery();
      return;
    }
    readout.replaceChildren(...pairText(view, cell.row, cell.col));
    tell(view, cell.row);
  }

  return {
    element,
    show({ weights, labels }, { layer, head }, causal, as) {
      const [, heads, rows, cols] = weights.shape as [number, number, number, number];
      const begin = (layer * heads + head) * rows * cols;
      const names = tokenNames(labels);
      const view: MatrixView = {
        ...{ rows, cols, rowLabels: names, colLabels: names, scale: 'weights' },
        data: weights.data.subarray(begin, begin + rows * cols),
        ...(causal && { hidden: (row: number, col: number) => col > row }),
      };
      const badge = headBadge(head + 1, patternIds[head % patternIds.length]!);
      title.replaceChildren(badge, ` Layer ${layer + 1}, head ${head + 1}`);
      readout.textContent = '\u00a0';
      frame.show({ view, title: `Layer ${layer + 1}, head ${head + 1}` }, `head ${head + 1}`, as);
      frame.map.highlight(null);
      legend.show({ masked: causal });
      showQuery();
    },
    showQuery,
  };
}
