// "Head gallery": the attention weights of all heads side by side, and their mean. The selected pair is marked in each
// map.

import { largestIndex } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { createViewSwitch } from '../../controls/view_switch.js';
import { el, panel, refill } from '../../dom/dom.js';
import { drawSoon } from '../../dom/draw_queue.js';
import { whenSeen } from '../../dom/when_seen.js';
import { viewRow, type MatrixView } from '../../maps/heat_map.js';
import { createLegend } from '../../maps/legend.js';
import { createWeightsFrame } from '../../maps/map_frame.js';
import { viewOf } from '../../maps/step_view.js';
import { inView, whenChanged, withNumbers, withResult, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { createCard, pairText, type Card } from './gallery_card.js';

export function gallerySection(app: App): HTMLElement {
  const legend = createLegend('weights');
  const vectors = createLegend('signed');
  vectors.element.prepend('query, key, value:');
  const cards = el('div', { class: 'cards' });
  const mean = createMean(app);
  const views = createViewSwitch(app, 'galleryView', 'Show the maps as');
  const section = panel(
    'gallery',
    {
      title: 'Head gallery',
      lead: 'A row is a word that looks, a column a word that is looked at. Point at a cell to compare it in all heads.',
      tools: views.element,
    },
    cards,
    mean.element,
    el('div', { class: 'wrap legends' }, legend.element, vectors.element),
    meanings(),
  );

  let list: readonly Card[] = [];
  /** A card is made at its first use. */
  const made: Card[] = [];
  const drawCard: (() => void)[] = [];

  let drawn: { readonly result: ForwardResult; readonly as: ViewName } | undefined;

  const draw = withNumbers(app, (result) => {
    const as = views.current();
    if (drawn?.result !== result || drawn.as !== as) show(result, as);
    drawn = { result, as };
    const { query, key } = inView(app, result);
    for (const card of list) card.point(result, query, key);
    mean.point(query, key);
  });

  /** Each card is drawn by itself, because a model may have many heads. */
  function add(head: number): Card {
    const card = createCard(app, head);
    drawCard[head] = () => {
      const now = drawn;
      if (!now || head >= now.result.heads.length) return;
      card.show(now.result, now.as);
      const { query, key } = inView(app, now.result);
      card.point(now.result, query, key);
    };
    return card;
  }

  function show(result: ForwardResult, as: ViewName): void {
    if (result.heads.length !== list.length) {
      list = result.heads.map((_, head) => (made[head] ??= add(head)));
      refill(cards, ...list.map((card) => card.element));
    }
    const views = result.heads.map((_, head) => viewOf(result, 'weights', head));
    const has = (mark: 'edited' | 'muted' | 'hidden'): boolean => views.some((view) => Boolean(view[mark]));
    legend.show({ masked: has('hidden'), edited: has('edited'), muted: has('muted') });
    const columns = String(columnsFor(list.length, result.tokens.length, as));
    if (columns !== cards.dataset['columns']) for (const card of made) card.remeasure();
    cards.dataset['columns'] = columns;
    list.forEach((_, head) => drawSoon(drawCard[head]!));
    mean.show(result, as);
  }

  const drawGallery = whenSeen(section, draw);
  draw();
  app.result.watch(drawGallery);
  app.pointed.watch(drawGallery);
  whenChanged(app, ['galleryView', 'query', 'key'], draw);
  return withResult(app, section);
}

/** Number of columns: full rows if possible, fewer for longer sentences and for tables, because tables are wider. */
export function columnsFor(heads: number, tokens: number, view: ViewName): number {
  const even = heads <= 4 ? heads : heads <= 6 ? 3 : 4;
  const most = Math.min(even, view === 'numbers' || tokens > 24 ? 2 : tokens > 12 ? 3 : 4);
  // Two and two instead of three and one.
  return heads === most + 1 && most > 2 ? most - 1 : most;
}

function createMean(app: App) {
  const frame = createWeightsFrame(app, 'the mean of the heads');
  const title = el('h3', {});
  const text = el('p', { class: 'card-line' });
  const readout = el('p', { class: 'readout' });
  const element = el(
    'article',
    { class: 'column card card-mean' },
    el('div', { class: 'mean-text' }, title, text, readout, frame.saves),
    frame.body,
  );
  let view: MatrixView;
  return {
    element,
    show(result: ForwardResult, as: ViewName): void {
      const count = result.heads.length;
      element.hidden = count === 1;
      const { edited: _, muted: __, ...first } = viewOf(result, 'weights', 0);
      view = { ...first, data: result.meanWeights.data };
      title.textContent = `Mean of ${count} heads`;
      text.textContent =
        'Many plots show only this average. It hides the heads: a clear pattern of one turns faint, and patterns overlap.';
      frame.show({ view, title: `Mean of the weights of ${count} heads` }, 'mean', as);
    },
    point(query: number, key: number | null): void {
      frame.map.highlight({ row: query, col: key });
      readout.replaceChildren(...pairText(view, query, key ?? largestIndex(viewRow(view, query))));
    },
  };
}

function meanings(): HTMLElement {
  const terms: readonly [string, string][] = [
    [
      'entropy',
      'How widely a head looks: 0 for one word; 0.69 for two words equally; 2.08 for eight.',
    ],
    ['previous', 'Mean weight on the word before, over all words but the first.'],
    ['first', 'Mean weight on the first word, over all words but the first.'],
    [
      'induction',
      'How much a word looks at what came right after it last time. A dash: no word repeats.',
    ],
    ['row sum', 'The weights of a query add up to 1.'],
  ];
  return el(
    'details',
    { class: 'part about' },
    el('summary', {}, el('strong', {}, 'What the scores mean')),
    el('dl', {}, ...terms.flatMap(([name, text]) => [el('dt', {}, name), el('dd', {}, text)])),
  );
}
