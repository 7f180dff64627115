// One head of the gallery: its map or table, the selected pair, its vectors, and what kind of head it is.

import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { headName, patternOf } from '../../attention/patterns.js';
import { identityOf } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge, meter, pairOf, word, type Child } from '../../dom/dom.js';
import { largestOf, viewRow, type MatrixView } from '../../maps/heat_map.js';
import { hatchedAs } from '../../maps/cell_text.js';
import { createWeightsFrame } from '../../maps/map_frame.js';
import { viewOf } from '../../maps/step_view.js';
import { createStrips } from '../../maps/vector_strips.js';
import { update, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';

export type Card = ReturnType<typeof createCard>;

export function createCard(app: App, head: number) {
  const title = el('button', { class: 'card-title', onclick: () => update(app, { head }) });
  const frame = createWeightsFrame(app, `the weights of head ${head + 1}`, { head });
  const line = el('p', { class: 'card-line' });
  const readout = el('p', { class: 'readout' });
  const strips = createStrips(3);
  const scores = el('dl', { class: 'scores' });
  const element = el(
    'article',
    {},
    el('h3', {}, title),
    line,
    frame.body,
    readout,
    strips.element,
    scores,
    frame.saves,
  );
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
