// "All heads, one word": how each head shares out the attention of the chosen word, and their mean, as bars of length 1.

import { largestIndex } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { headName, patternOf } from '../../attention/patterns.js';
import { identityOf, tokenNames } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge, meter, pairOf, panel, refill, word, type Child } from '../../dom/dom.js';
import { drawSoon } from '../../dom/draw_queue.js';
import { whenSeen } from '../../dom/when_seen.js';
import { hatchedAs } from '../../maps/cell_text.js';
import { viewRow, type MatrixView } from '../../maps/heat_map.js';
import { createSharedBar } from '../../maps/shared_bar.js';
import { viewOf } from '../../maps/step_view.js';
import { inView, update, whenChanged, withNumbers, withResult, type App } from '../../state/app.js';
import { guess } from './guess.js';

export function gallerySection(app: App): HTMLElement {
  const from = el('span', {});
  const lead = el(
    'p',
    { class: 'lead' },
    'How each head shares out its attention from ',
    from,
    ': the parts of each bar are weights, which add up to 1.',
  );
  const list = el('ol', { class: 'shares' });
  const section = panel('gallery', { title: 'All heads, one word', lead }, guess(app), list, meanings());
  /** A row is made at its first use; −1 is the mean. */
  const rows = new Map<number, ReturnType<typeof createRow>>();
  const rowFor = (head: number) => rows.get(head) ?? rows.set(head, createRow(app, head)).get(head)!;

  const draw = withNumbers(app, (result) => {
    const shown = [...result.heads.keys(), ...(result.heads.length > 1 ? [-1] : [])].map(rowFor);
    if (list.childElementCount !== shown.length) refill(list, ...shown.map(({ element }) => element));
    from.replaceChildren(word(tokenNames(result.tokens)[inView(app, result).query]!));
    // Each by itself, because a model may have many heads.
    for (const row of shown) drawSoon(row.draw);
  });

  const drawGallery = whenSeen(section, draw);
  draw();
  app.result.watch(drawGallery);
  app.pointed.watch(drawGallery);
  whenChanged(app, ['query', 'key', 'head'], draw);
  return withResult(app, section);
}

/** A head's name, its bar, its weight on the key in view, and its scores. */
function createRow(app: App, head: number) {
  const isMean = head < 0;
  const title = isMean ? el('span', { class: 'card-title' }) : el('button', { class: 'card-title', onclick: () => update(app, { head }) });
  const line = el('p', { class: 'hint card-line' });
  const bar = createSharedBar();
  const readout = el('p', { class: 'readout' });
  const scores = el('dl', { class: 'scores' });
  const shares = el('div', { class: 'slim' }, bar.element, readout);
  const element = el('li', { class: 'share' }, el('div', { class: 'slim' }, el('h3', {}, title), line), shares, scores);
  let shown: ForwardResult | undefined;

  function name(result: ForwardResult): void {
    if (isMean) {
      title.textContent = `Mean of ${result.heads.length} heads`;
      line.textContent = 'It hides the heads: a clear pattern of one turns faint.';
      return;
    }
    const id = result.heads[head]!;
    const muted = result.bend.muted.includes(head);
    const called = el('span', { class: 'sr-only' }, `Head ${head + 1}: `);
    title.replaceChildren(headBadge(head + 1, id, muted), called, headName(result, head), ...(muted ? [el('span', { class: 'tag' }, 'muted')] : []));
    line.textContent = result.given ? `In layer ${result.given.layer + 1} of ${result.given.layers}.` : patternOf(id).line;
    element.classList.toggle('is-muted', muted);
    scores.replaceChildren(...scoresOf(result, head));
  }

  return {
    element,
    draw: withNumbers(app, (result) => {
      if (!isMean && head >= result.heads.length) return;
      if (shown !== result) name(result);
      shown = result;
      const { query, key } = inView(app, result);
      const first = viewOf(result, 'weights', Math.max(0, head));
      const view = isMean ? { ...first, data: result.meanWeights.data, muted: false } : first;
      const weights = viewRow(view, query);
      const at = key ?? largestIndex(weights);
      bar.show(weights, view.rowLabels, `head-${isMean ? 'average' : result.heads[head]}`, at);
      readout.replaceChildren(...pairText(view, query, at));
      if (!isMean) title.setAttribute('aria-pressed', String(app.state.get().head === head));
    }),
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
function scoresOf({ statistics, tokens, heads }: ForwardResult, head: number): HTMLElement[] {
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
    const bar = meter(value === undefined ? 0 : share, `score-bar head-${heads[head]}`);
    const written = value === undefined ? '–' : formatNumber(value, 2);
    return el('div', {}, el('dt', {}, name), el('dd', { class: 'number' }, written), bar);
  });
}

function meanings(): HTMLElement {
  const terms: readonly [string, string][] = [
    ['entropy', 'How widely a head looks: 0 for one word; 0.69 for two words equally; 2.08 for eight.'],
    ['previous', 'Mean weight on the word before, over all words but the first.'],
    ['first', 'Mean weight on the first word, over all words but the first.'],
    ['induction', 'How much a word looks at what came right after it last time. A dash: no word repeats.'],
  ];
  return el(
    'details',
    { class: 'part hint about' },
    el('summary', {}, el('strong', {}, 'What the scores mean')),
    el('dl', {}, ...terms.flatMap(([name, text]) => [el('dt', {}, name), el('dd', {}, text)])),
  );
}
