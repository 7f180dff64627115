// The sentence as tokens. For the chosen token, bars under the others show its weights in each head.

import { inView, update, type App } from '../app.js';
import type { ForwardResult } from '../messages.js';
import { el, headBadge, refill, word } from './dom.js';
import { formatNumber } from './format.js';

interface TokenButton {
  readonly element: HTMLButtonElement;
  readonly bars: readonly HTMLElement[];
}

export function tokenStrip(app: App): HTMLElement {
  const strip = el('div', { class: 'strip', role: 'group', 'aria-label': 'Tokens' });
  const summary = el('p', { id: 'strip-summary', class: 'strip-summary' });
  const element = el('div', { class: 'strip-box' }, strip, summary);
  let shape = '';
  let buttons: readonly TokenButton[] = [];

  function show(): void {
    const result = app.result.get();
    element.hidden = result === null;
    if (!result) return;
    const key = JSON.stringify([result.tokens, result.heads]);
    if (key !== shape) build(result, key);
    const { query } = inView(app, result);
    buttons.forEach(({ element: button, bars }, token) => {
      const hidden = result.causal && token > query;
      button.setAttribute('aria-pressed', String(token === query));
      button.classList.toggle('is-hidden', hidden);
      bars.forEach((bar, head) => {
        bar.style.height = `${(100 * weightOf(result, head, query, token)).toFixed(1)}%`;
      });
    });
    describe(result, query);
  }

  function build(result: ForwardResult, key: string): void {
    shape = key;
    buttons = result.tokens.map((token, index) => {
      const bars = result.heads.map((id) => el('span', { class: `bar head-${id}` }));
      const button = el(
        'button',
        { type: 'button', class: 'token', 'aria-describedby': 'strip-summary' },
        word(token),
        el('span', { class: 'bars', 'aria-hidden': 'true' }, ...bars),
      );
      const choose = (burst?: string) => update(app, { query: index, key: null }, burst);
      button.addEventListener('focus', () => choose('walk through the words'));
      button.addEventListener('click', () => choose());
      button.addEventListener('pointerenter', () => app.pointed.set({ query: index, key: null }));
      button.addEventListener('pointerleave', () => app.pointed.set(null));
      return { element: button, bars };
    });
    refill(strip, ...buttons.map((button) => button.element));
  }

  function describe(result: ForwardResult, query: number): void {
    const parts = result.heads.flatMap((id, head) => {
      const [token, weight] = strongest(result, head, query);
      const spread = weight < 0.5 ? ['spread, most on '] : [];
      return [
        el(
          'span',
          { class: 'strip-head' },
          headBadge(head + 1, id),
          el('span', { class: 'sr-only' }, `head ${head + 1} `),
          ...spread,
          word(result.tokens[token]!),
          ' ',
          el('span', { class: 'number' }, formatNumber(weight, 2)),
        ),
        ' ',
      ];
    });
    summary.replaceChildren(el('strong', {}, word(result.tokens[query]!)), ' looks at ', ...parts);
  }

  app.result.watch(show);
  app.pointed.watch(show);
  app.state.watch(({ query }, previous) => {
    if (query !== previous?.query) show();
  });
  return element;
}

function weightOf({ trace, tokens }: ForwardResult, head: number, query: number, key: number): number {
  return trace.weights.data[(head * tokens.length + query) * tokens.length + key]!;
}

function strongest(result: ForwardResult, head: number, query: number): [token: number, weight: number] {
  let best = 0;
  const weights = result.tokens.map((_, key) => weightOf(result, head, query, key));
  weights.forEach((weight, key) => {
    if (weight > weights[best]!) best = key;
  });
  return [best, weights[best]!];
}
