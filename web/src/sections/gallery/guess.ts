// "Predict, then look": asks for the word that gets most in a row of weights that is not on the screen, and then shows the row.

import { largestIndex, rowOf } from '../../attention/matrix.js';
import { headName } from '../../attention/patterns.js';
import { tokenNames } from '../../attention/tokens.js';
import { formatPercent } from '../../base/format.js';
import { differs } from '../../base/store.js';
import { el, headBadge, word } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { chosen, update, type App } from '../../state/app.js';
import { questionsOf, type Question } from './questions.js';

export function guess(app: App): HTMLElement {
  const question = el('p', { class: 'guess-question' });
  const words = el('span', { class: 'row' });
  const said = el('p', { role: 'status' });
  const again = el('button', { class: 'secondary', hidden: true, onclick: ask }, 'Another');
  const element = el('div', { class: 'well column far guess' }, question, el('div', { class: 'row guess-words' }, words, said, again));
  let asked = 0;
  const isNew = differs();

  function ask(): void {
    const result = app.result.get();
    if (!result) return;
    const hadFocus = document.activeElement === again;
    const list = questionsOf(result, chosen(app, result).query);
    // Steps of a prime number lead to other words and heads each time.
    const next = list[(asked * 7) % Math.max(1, list.length)];
    asked += 1;
    element.hidden = next === undefined;
    again.hidden = true;
    said.textContent = '';
    if (!next) return;
    const names = tokenNames(result.tokens);
    const { head, query } = next;
    question.replaceChildren(
      el('strong', {}, 'Guess first: '),
      'which word gets most from ',
      el('strong', {}, word(names[query]!)),
      ' in ',
      headBadge(head + 1, result.heads[head]!),
      ` head ${head + 1}, ${headName(result, head)}?`,
    );
    words.replaceChildren(...names.map((_, key) => el('button', { class: 'secondary', onclick: () => answer(next, key) }, word(names[key]!))));
    if (hadFocus) words.querySelector('button')!.focus();
  }

  function answer({ head, query }: Question, key: number): void {
    const result = app.result.get();
    if (!result) return;
    const weights = rowOf(result.trace.weights, head, query);
    const best = largestIndex(weights);
    const names = tokenNames(result.tokens);
    const right = `${names[best]} gets ${formatPercent(weights[best]!)} from ${names[query]}`;
    const isRight = weights[key] === weights[best];
    said.textContent = isRight ? `Right: ${right}.` : `Not ${names[key]} (${formatPercent(weights[key]!)}): ${right}.`;
    again.hidden = false;
    again.focus();
    words.replaceChildren();
    update(app, { head, query, key: best });
  }

  const askSoon = whenSeen(element, () => {
    const { tokens, heads } = app.result.get() ?? {};
    // Heads that train or are bent keep their question.
    if (isNew([tokens, heads])) ask();
  });
  app.result.watch(askSoon);
  return element;
}
