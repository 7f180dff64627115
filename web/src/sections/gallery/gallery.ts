// "Head gallery": the attention weights of all heads side by side, and their mean. The selected pair is marked in each
// map.

import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { headName, patternIds, patternOf } from '../../attention/patterns.js';
import { identityOf } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, headBadge, meter, pairOf, panel, refill, word, type Child } from '../../dom/dom.js';
import { drawSoon } from '../../dom/draw_queue.js';
import { whenSeen } from '../../dom/when_seen.js';
import { hatchedAs } from '../../maps/cell_text.js';
import { largestOf, viewRow, type MatrixView } from '../../maps/heat_map.js';
import { createLegend } from '../../maps/legend.js';
import { createWeightsFrame } from '../../maps/map_frame.js';
import { viewOf } from '../../maps/step_view.js';
import { createStrips } from '../../maps/vector_strips.js';
import { inView, update, whenChanged, withNumbers, withResult, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';

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

type Card = ReturnType<typeof createCard>;

function createCard(app: App, head: number) {
  const title = el('button', { class: 'card-title', onclick: () => update(app, { head }) });
  const frame = createWeightsFrame(app, `the weights of head ${head + 1}`, { head });
  const line = el('p', { class: 'card-line' });
  const readout = el('p', { class: 'readout' });
  const strips = createStrips(3);
  const scores = el('dl', { class: 'scores' });
  const element = el('article', {}, el('h3', {}, title), line, frame.body, readout, strips.element, scores, frame.saves);
  app.state.watch((state) => title.setAttribute('aria-pressed', String(state.head === head)));
  let shown: ForwardResult | undefined;
  let limits: Readonly<Record<'qHeads' | 'kHeads' | 'vHeads', number>>;

  return {
    element,
    /** Call it before show() if the card has another width now. */
    remeasure: frame.map.remeasure,
    show(result: ForwardResult, as: ViewName): void {
      shown = result;
      const id = result.heads[head]!;
      const name = headName(result, head);
      element.className = `column card head-${id}`;
      line.textContent = result.given ? `In layer ${result.given.layer + 1} of ${result.given.layers}.` : patternOf(id).line;
      const muted = result.bend.muted.includes(head);
      title.replaceChildren(
        headBadge(head + 1, id, muted),
        el('span', { class: 'sr-only' }, `Head ${head + 1}: `),
        name,
        ...(muted ? [el('span', { class: 'tag' }, 'muted')] : []),
      );
      const view = viewOf(result, 'weights', head);
      frame.show({ view, title: `Attention weights of head ${head + 1}, ${name}` }, `head ${head + 1}`, as);
      const limit = (name: 'qHeads' | 'kHeads' | 'vHeads') => largestOf(viewOf(result, name, head));
      limits = { qHeads: limit('qHeads'), kHeads: limit('kHeads'), vHeads: limit('vHeads') };
      scores.replaceChildren(...scoresOf(result, head));
    },
    /** Marks a pair, once the result is shown. Without a key, it marks the row and shows the key with the largest weight. */
    point(result: ForwardResult, query: number, key: number | null): void {
      if (result !== shown) return;
      const view = viewOf(result, 'weights', head);
      frame.map.highlight({ row: query, col: key });
      const at = key ?? largestIndex(viewRow(view, query));
      readout.replaceChildren(...pairText(view, query, at));
      const vector = (name: 'qHeads' | 'kHeads' | 'vHeads', token: number) => ({
        data: rowOf(result.trace[name], head, token),
        limit: limits[name],
        label: [{ qHeads: 'query ', kHeads: 'key ', vHeads: 'value ' }[name], word(view.rowLabels[token]!)],
      });
      strips.show([vector('qHeads', query), vector('kHeads', at), vector('vHeads', at)]);
    },
  };
}

/** The text of a pair: "on → sat 0.993, row sum 1.000". */
export function pairText(view: MatrixView, query: number, key: number): Child[] {
  const row = viewRow(view, query);
  const sum = row.reduce((total, weight) => total + weight, 0);
  return [
    el('span', {}, ...pairOf(view.rowLabels[query]!, view.rowLabels[key]!)),
    el('strong', { class: 'number' }, hatchedAs(view, query, key) || formatNumber(row[key]!)),
    el('span', { class: 'readout-sum' }, 'row sum ', el('span', { class: 'number' }, formatNumber(sum))),
  ];
}

/** Name, value and a bar for each statistic. The bar of the entropy is full if all weights are equal. */
function scoresOf({ statistics, tokens }: ForwardResult, head: number): HTMLElement[] {
  const { entropy, previousToken, firstToken, induction } = statistics;
  const most = Math.log(tokens.length) || 1;
  const repeats = new Set(tokens.map(identityOf)).size < tokens.length;
  const rows: [name: string, value: number | undefined, share: number][] = [
    ['entropy', entropy[head], entropy[head]! / most],
    ['previous', previousToken[head], previousToken[head]!],
    ['first', firstToken[head], firstToken[head]!],
    ['induction', repeats ? induction?.[head] : undefined, induction?.[head] ?? 0],
  ];
  return rows.map(([name, value, share]) => {
    const bar = meter(value === undefined ? 0 : share, 'score-bar');
    const written = value === undefined ? '–' : formatNumber(value, 2);
    return el('div', {}, el('dt', {}, name), el('dd', { class: 'number' }, written), bar);
  });
}

function createMean(app: App) {
  const frame = createWeightsFrame(app, 'the mean of the heads');
  const title = el('h3', {});
  const text = el('p', { class: 'card-line' });
  const readout = el('p', { class: 'readout' });
  const element = el('article', { class: 'column card card-mean' }, el('div', { class: 'mean-text' }, title, text, readout, frame.saves), frame.body);
  let view: MatrixView;
  return {
    element,
    show(result: ForwardResult, as: ViewName): void {
      const count = result.heads.length;
      element.hidden = count === 1;
      const { edited: _, muted: __, ...first } = viewOf(result, 'weights', 0);
      view = { ...first, data: result.meanWeights.data, headOf: () => patternIds.indexOf('average') };
      title.textContent = `Mean of ${count} heads`;
      text.textContent = 'Many plots show only this average. It hides the heads: a clear pattern of one turns faint, and patterns overlap.';
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
    ['entropy', 'How widely a head looks: 0 for one word; 0.69 for two words equally; 2.08 for eight.'],
    ['previous', 'Mean weight on the word before, over all words but the first.'],
    ['first', 'Mean weight on the first word, over all words but the first.'],
    ['induction', 'How much a word looks at what came right after it last time. A dash: no word repeats.'],
    ['row sum', 'The weights of a query add up to 1.'],
  ];
  return el(
    'details',
    { class: 'part about' },
    el('summary', {}, el('strong', {}, 'What the scores mean')),
    el('dl', {}, ...terms.flatMap(([name, text]) => [el('dt', {}, name), el('dd', {}, text)])),
  );
}
