// The sentence as tokens, with arcs from the chosen word to the words that each head attends to, and a line of buttons
// that says the same in words and selects a head.

import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { patternOf, type PatternId } from '../../attention/patterns.js';
import { directionOf, defaultQuery, tokenize, tokenNames } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge, refill, word } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { chosen, inView, update, type App } from '../../state/app.js';
import { arcsOf, createArcs, spreadBelow, type WordBox } from './arcs.js';

export function tokenStrip(app: App): HTMLElement {
  const arcs = createArcs();
  const words = el('div', { class: 'strip-words', role: 'toolbar', 'aria-label': 'Tokens' });
  const strip = el('div', { class: 'strip' }, arcs.element, words);
  const query = el('strong', {});
  const looks = el('p', { class: 'strip-looks' }, query, ' looks at');
  const heads = el('div', { class: 'strip-heads', role: 'group', 'aria-label': 'Head in view' });
  const summary = el('div', { id: 'strip-summary', class: 'strip-summary' }, looks, heads);
  const element = el('div', { class: 'strip-box' }, strip, summary);

  let buttons: readonly HTMLButtonElement[] = [];
  let boxes: readonly WordBox[] = [];
  let labels = '';
  let stale = true;
  let summaryKey = '';

  const shownTokens = () => app.result.get()?.tokens ?? tokenize(app.state.get().text).tokens;

  function draw(): void {
    const tokens = shownTokens();
    element.hidden = tokens.length === 0;
    if (element.hidden) return;
    nameButtons(tokenNames(tokens));
    const result = app.result.get();
    if (!result) {
      describe(null, defaultQuery(tokens));
      return;
    }
    const selection = inView(app, result);
    mark(result, selection.query);
    drawArcs(result, selection.query);
    describe(result, selection.query);
  }

  function nameButtons(names: readonly string[]): void {
    const key = names.join('\n');
    if (key === labels) return;
    labels = key;
    words.dir = directionOf(names);
    if (buttons.length !== names.length) {
      buttons = names.map((_, i) => buttons[i] ?? createButton(i));
      refill(words, ...buttons);
    }
    names.forEach((name, i) => {
      if (buttons[i]!.textContent !== name) buttons[i]!.replaceChildren(word(name));
    });
    stale = true;
  }

  function createButton(index: number): HTMLButtonElement {
    const button = el('button', { type: 'button', class: 'token', 'aria-describedby': 'strip-summary', tabindex: -1 });
    button.addEventListener('click', () => update(app, { query: index, key: null }));
    button.addEventListener('pointerenter', () => app.pointed.set({ query: index, key: null }));
    button.addEventListener('pointerleave', () => app.pointed.set(null));
    return button;
  }

  words.addEventListener('keydown', (event) => {
    const now = buttons.indexOf(event.target as HTMLButtonElement);
    const forward = words.dir === 'rtl' ? -1 : 1;
    const moves: Readonly<Record<string, number>> = {
      ArrowRight: now + forward,
      ArrowLeft: now - forward,
      Home: 0,
      End: buttons.length - 1,
    };
    const next = moves[event.key];
    if (next === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const target = buttons[(next + buttons.length) % buttons.length]!;
    update(app, { query: buttons.indexOf(target), key: null }, 'arrow keys in the words');
    target.focus();
  });

  function mark(result: ForwardResult, shown: number): void {
    const stop = chosen(app, result).query;
    buttons.forEach((button, token) => {
      const pressed = String(token === shown);
      if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
      const tab = token === stop ? 0 : -1;
      if (button.tabIndex !== tab) button.tabIndex = tab;
      button.classList.toggle('is-hidden', isMasked(result, shown, token));
    });
  }

  /** Reads the layout if the words or the width may have changed since the last call. */
  function measure(): void {
    if (!stale) return;
    stale = false;
    boxes = buttons.map(({ offsetLeft, offsetTop, offsetWidth, offsetHeight }) => ({
      left: offsetLeft,
      right: offsetLeft + offsetWidth,
      top: offsetTop,
      bottom: offsetTop + offsetHeight,
    }));
  }

  function drawArcs(result: ForwardResult, shown: number): void {
    const all = result.heads.flatMap((id, head) =>
      result.bend.muted.includes(head)
        ? []
        : arcsOf(rowOf(result.trace.weights, head, shown), shown, head, `head-${id}`),
    );
    measure();
    arcs.show(all, boxes);
  }

  /** Writes the line of buttons. Without a result, only reserves the line's height. */
  function describe(result: ForwardResult | null, shown: number): void {
    const names = tokenNames(shownTokens());
    const { heads: ids } = result ?? app.state.get();
    const findings = ids.map((_, head) => {
      if (!result) return { name: '', weight: '', spread: false };
      const row = rowOf(result.trace.weights, head, shown);
      const token = largestIndex(row);
      const weight = row[token]!;
      return { name: weight < spreadBelow ? 'spread' : names[token]!, weight: formatNumber(weight, 2), spread: weight < 0.5 };
    });
    const inUse = Math.min(app.state.get().head, ids.length - 1);
    const key = JSON.stringify([names[shown], findings, inUse, ids]);
    if (key === summaryKey) return;
    summaryKey = key;
    query.replaceChildren(word(names[shown] ?? ''));
    refill(heads, ...ids.map((id, head) => headButton(id, head, head === inUse, findings[head]!)));
  }

  function headButton(id: PatternId, head: number, pressed: boolean, { name, weight, spread }: Finding) {
    const button = el(
      'button',
      {
        type: 'button',
        class: 'strip-head',
        title: `${patternOf(id).name}: ${patternOf(id).line}`,
        'aria-pressed': String(pressed),
      },
      headBadge(head + 1, id),
      el('span', { class: 'sr-only' }, `head ${head + 1} ${spread && name !== 'spread' ? 'mostly ' : ''}`),
      word(name),
      ' ',
      el('span', { class: 'number' }, weight),
    );
    button.addEventListener('click', () => update(app, { head }));
    return button;
  }

  const drawSoon = whenSeen(element, draw);
  draw();
  app.result.watch(() => {
    stale = true;
    drawSoon();
  });
  app.pointed.watch(drawSoon);
  app.state.watch(drawSoon);
  new ResizeObserver(() => {
    stale = true;
    drawSoon();
  }).observe(words);
  return element;
}

/** The key with the largest weight in a head's row. */
interface Finding {
  readonly name: string;
  readonly weight: string;
  /** True if the other keys together have most of the weight. */
  readonly spread: boolean;
}

const isMasked = ({ trace, tokens }: ForwardResult, query: number, key: number): boolean =>
  trace.maskedScores.data[query * tokens.length + key] === -Infinity;
