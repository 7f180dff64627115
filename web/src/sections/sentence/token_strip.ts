// The sentence as tokens, with arcs from the chosen word to the words that each head attends to, and a line of buttons
// that says the same in words and selects a head.

import { rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { aboutHead, patternIds, type PatternId } from '../../attention/patterns.js';
import { defaultQuery, tokenize, tokenNames } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { differs } from '../../base/store.js';
import { createTokenRow } from '../../controls/token_row.js';
import { el, headBadge, refill, setAll, word } from '../../dom/dom.js';
import { say } from '../../dom/live_region.js';
import { whenSeen } from '../../dom/when_seen.js';
import { chosen, headsOf, inView, update, whenChanged, type App } from '../../state/app.js';
import { arcsOf, boxesOf, createArcs, spreadBelow, type WordBox } from './arcs.js';
import { looksFrom, mostWeight, type Look } from './looks.js';

export function tokenStrip(app: App): HTMLElement {
  const arcs = createArcs();
  const words = createTokenRow(app, 'token', { class: 'wrap strip-words', 'aria-label': 'Tokens' });
  const strip = el('div', { class: 'strip' }, arcs.element, words.element);
  const query = el('strong', {});
  const looks = el('p', { class: 'sr-only strip-looks' }, query, ' looks at');
  const heads = el('div', { class: 'strip-heads', role: 'group', 'aria-label': 'Head in view' });
  const element = el('div', { class: 'well strip-box' }, strip, el('div', { class: 'strip-summary' }, looks, heads));

  let boxes: readonly WordBox[] = [];
  let stale = true;
  const isNew = differs();

  const shownTokens = () => app.result.get()?.tokens ?? tokenize(app.state.get().text).tokens;

  function draw(): void {
    const tokens = shownTokens();
    element.hidden = tokens.length === 0;
    if (element.hidden) return;
    if (words.name(tokenNames(tokens))) stale = true;
    const result = app.result.get();
    if (!result) return describe(null, app.state.get().source === 'novels' ? tokens.length - 1 : defaultQuery(tokens));
    const selection = inView(app, result);
    mark(result, selection.query);
    drawArcs(result, selection.query);
    describe(result, selection.query);
  }

  function mark(result: ForwardResult, shown: number): void {
    words.mark(shown, chosen(app, result).query);
    words.buttons().forEach((button, token) => {
      const isUnknown = result.given?.unknown?.includes(token) === true;
      button.classList.toggle('is-hidden', isMasked(result, shown, token));
      button.classList.toggle('is-unknown', isUnknown);
      setAll(button, { title: isUnknown && 'unknown to this model' });
    });
  }

  /** Reads the layout if the words or the width may have changed since the last call. */
  function measure(): void {
    if (!stale) return;
    stale = false;
    boxes = boxesOf(words.buttons());
  }

  function drawArcs(result: ForwardResult, shown: number): void {
    // With more heads than colors, arcs of all would be a thicket.
    const only = result.heads.length > patternIds.length ? chosen(app, result).head : undefined;
    const all = result.heads.flatMap((id, head) =>
      result.bend.muted.includes(head) || head !== (only ?? head) ? [] : arcsOf(rowOf(result.trace.weights, head, shown), shown, head, `head-${id}`),
    );
    measure();
    arcs.show(all, boxes);
  }

  /** Writes the line of buttons. Without a result, only reserves the line's height. */
  function describe(result: ForwardResult | null, shown: number): void {
    const names = tokenNames(shownTokens());
    const named = headsOf(app);
    const { heads: ids, given } = named;
    const looks = result ? looksFrom(result, shown) : [];
    const inUse = Math.min(app.state.get().head, ids.length - 1);
    if (!isNew([names, shown, looks, inUse, ids, given?.names])) return;
    query.replaceChildren(word(names[shown] ?? ''));
    refill(heads, ...ids.map((id, head) => headButton(id, head, head === inUse, textOf(looks[head], names), aboutHead(named, head))));
  }

  function headButton(id: PatternId, head: number, pressed: boolean, { name, weight, spread, muted }: LookText, title: string) {
    return el(
      'button',
      { class: 'badged strip-head', title, 'aria-pressed': String(pressed), onclick: () => update(app, { head }) },
      headBadge(head + 1, id, muted),
      el('span', { class: 'sr-only' }, `head ${head + 1} ${spread ? 'mostly ' : ''}`),
      word(name),
      ' ',
      el('span', { class: 'number' }, weight),
    );
  }

  /** Announces the words that the heads look at, when the visitor chooses a word. A new sentence announces nothing. */
  function tell(): void {
    const result = app.result.get();
    if (!result || app.state.get().query === null) return;
    const { query: shown } = chosen(app, result);
    const names = tokenNames(result.tokens);
    const parts = looksFrom(result, shown).map((look, head) => {
      const { name, weight, spread } = textOf(look, names);
      return `head ${head + 1} ${spread ? 'mostly ' : ''}${name} ${weight}`.trim();
    });
    say(`${names[shown]} looks at: ${parts.join(', ')}`, element);
  }

  const drawSoon = whenSeen(element, draw);
  draw();
  whenChanged(app, ['query'], tell);
  app.result.watch(() => {
    stale = true;
    drawSoon();
  });
  app.pointed.watch(drawSoon);
  app.state.watch(drawSoon);
  new ResizeObserver(() => {
    stale = true;
    drawSoon();
  }).observe(words.element);
  return element;
}

interface LookText {
  readonly name: string;
  readonly weight: string;
  readonly muted: boolean;
  /** True if the word has less than most of the weight. */
  readonly spread: boolean;
}

/** Without a look, all texts are empty. */
function textOf(look: Look | undefined, names: readonly string[]): LookText {
  if (!look || look.muted) return { name: look ? 'muted' : '', weight: '', muted: look !== undefined, spread: false };
  const { key, weight } = look;
  const isWide = weight < spreadBelow;
  return { name: isWide ? 'spread' : names[key]!, weight: formatNumber(weight, 2), muted: false, spread: !isWide && weight < mostWeight };
}

const isMasked = ({ trace, tokens }: ForwardResult, query: number, key: number): boolean =>
  trace.maskedScores.data[query * tokens.length + key] === -Infinity;
