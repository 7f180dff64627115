// Compares sentences by the visitor's own model: the cosines of their vectors as a small table.

import { formatNumber, messageOf } from '../../base/format.js';
import { el, word } from '../../dom/dom.js';
import { maxCharacters } from '../../attention/tokens.js';
import type { ModelClient } from '../../model/client.js';
import type { Similarities } from '../../model/messages.js';
import { update, type App } from '../../state/app.js';

/** More sentences make no table that can be read. */
const mostSentences = 8;

const samples = {
  text: ['A cat sleeps on the sofa.', 'The kitten naps on a couch.', 'Share prices fell on Monday.'],
  ids: ['1 2 3 4', '1 2 3 5', '9 8 7 6'],
};

export function createComparison(app: App, client: ModelClient) {
  const field = el('textarea', { id: 'own-sentences', rows: 4, maxlength: maxCharacters, dir: 'auto' });
  const problem = el('p', { class: 'hint', role: 'status' });
  const table = el('table', { class: 'own-similar' });
  const element = el(
    'section',
    { class: 'part own-compare', 'aria-label': 'Similar sentences' },
    el('h3', {}, 'Which sentences are alike?'),
    el('label', { for: 'own-sentences', class: 'control-name' }, `Sentences, one a line, at most ${mostSentences}`),
    field,
    el('div', { class: 'table-scroll', tabindex: 0, role: 'group', 'aria-label': 'Similarities' }, table),
    el(
      'p',
      { class: 'hint' },
      'The cosine of the angle between the vectors of two sentences: 1 for the same direction, near 0 for nothing in common.',
    ),
    problem,
  );
  let wanted: { readonly readsText: boolean };
  let shown: object | undefined;
  let shownLines = '';
  let busy = false;

  async function follow(model: { readonly readsText: boolean }): Promise<void> {
    wanted = model;
    const usual = samples[model.readsText ? 'text' : 'ids'];
    const { ownSentences } = app.state.get();
    if (field.value !== ownSentences) field.value = ownSentences;
    field.placeholder = usual.join('\n');
    const given = ownSentences.split('\n').filter((line) => line.trim() !== '');
    const lines = (given.length > 0 ? given : usual).slice(0, mostSentences);
    if (busy || (shown === model && shownLines === lines.join('\n'))) return;
    [busy, shown, shownLines] = [true, model, lines.join('\n')];
    try {
      fill(lines, await client.call('compare', lines));
      problem.textContent = given.length > mostSentences ? `Only the first ${mostSentences} of ${given.length} sentences are compared.` : '';
    } catch (error) {
      table.replaceChildren();
      problem.textContent = messageOf(error);
    }
    busy = false;
    await follow(wanted);
  }

  function fill(lines: readonly string[], { data }: Similarities): void {
    const numbers = lines.map((_, i) => el('th', { scope: 'col' }, String(i + 1)));
    const rows = lines.map((line, row) =>
      el(
        'tr',
        {},
        el('th', { scope: 'row' }, `${row + 1} `, word(line)),
        ...lines.map((_, col) => {
          const value = data[row * lines.length + col]!;
          const cell = el('td', { class: 'number' }, formatNumber(value, 2));
          cell.style.setProperty('--share', String(Math.max(0, Math.min(1, value))));
          return cell;
        }),
      ),
    );
    table.replaceChildren(el('thead', {}, el('tr', {}, el('td', {}), ...numbers)), el('tbody', {}, ...rows));
  }

  field.addEventListener('input', () => update(app, { ownSentences: field.value }, 'own-sentences'));
  return {
    element,
    follow,
  };
}
