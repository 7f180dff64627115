// The continuation of a text by the visitor's own model: the new tokens, and at each the five likeliest ones.

import { formatMilliseconds, messageOf } from '../../base/format.js';
import { el, word } from '../../dom/dom.js';
import type { ModelClient } from '../../model/client.js';
import type { Next } from '../../model/messages.js';
import { shareLine } from '../bend/bend.js';

export function createContinuation(client: ModelClient, textNow: () => string, onProblem: (problem: string) => void) {
  const go = el('button', { class: 'secondary', id: 'own-continue' }, 'Continue the text');
  const written = el('p', { class: 'own-text', id: 'own-text', dir: 'auto' });
  const tokens = el('ol', { class: 'wrap own-tokens', 'aria-label': 'New tokens' });
  const summary = el('p', { class: 'hint', id: 'own-pace', role: 'status' });
  const title = el('h4', { class: 'own-asked' });
  const likely = el('ol', { class: 'effect-list own-likely', 'aria-label': 'The likeliest tokens in this place' });
  const result = el('div', { hidden: true }, written, tokens, title, likely, summary);
  const element = el('section', { class: 'part own-continue', 'aria-label': 'Continue the text' }, go, result);
  let run = 0;
  let steps: Next[] = [];

  /** Shows the likeliest tokens of a step. */
  function open(step: number): void {
    const { likeliest } = steps[step]!;
    [...tokens.querySelectorAll('button')].forEach((button, i) => button.setAttribute('aria-pressed', String(i === step)));
    title.replaceChildren(`Likeliest at new token ${step + 1}`);
    likely.replaceChildren(...likeliest.map(({ label, share }) => shareLine(label, share)));
  }

  function add(next: Next): void {
    const step = steps.push(next) - 1;
    const button = el('button', { class: 'own-token', onclick: () => open(step) }, word(next.likeliest[0]?.label ?? next.text));
    tokens.append(el('li', {}, button));
    written.textContent = `… ${steps.map(({ text }) => text).join('')}`;
    result.hidden = false;
    open(step);
  }

  function clear(): void {
    run += 1;
    steps = [];
    tokens.replaceChildren();
    summary.textContent = '';
    result.hidden = true;
  }

  go.addEventListener('click', async () => {
    clear();
    const own = run;
    try {
      for (let next = await client.call('start', textNow()); next && own === run; next = await client.call('next')) add(next);
      if (own !== run) return;
      const [first, ...rest] = steps.map(({ milliseconds }) => milliseconds);
      const mean = rest.reduce((sum, value) => sum + value, 0) / rest.length;
      summary.textContent =
        first === undefined
          ? 'For this model the text ends here.'
          : `${steps.length} new tokens; reading the text took ${formatMilliseconds(first)}${rest.length > 0 ? `, then ${formatMilliseconds(mean)} a token with the cache` : ''}.`;
      result.hidden = false;
    } catch (error) {
      if (own === run) onProblem(messageOf(error));
    }
  });
  return {
    element,
    /** Ends a running continuation, and removes its text and tokens. */
    clear,
  };
}
