// Sets one weight by hand: the weight of the selected pair in the selected head.

import { hides, type WeightEdit } from '../../attention/bend.js';
import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge, pairOf } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { viewOf } from '../../maps/step_view.js';
import { chosen, update, whenChanged, type App } from '../../state/app.js';

export function weightEditor(app: App): HTMLElement {
  const place = el('p', { class: 'badged edit-place', id: 'edit-place' });
  const shared = { min: 0, max: 1, step: 0.01, 'aria-labelledby': 'edit-place', 'aria-describedby': 'edit-line' };
  const slider = el('input', { type: 'range', id: 'edit-weight', ...shared });
  const field = el('input', { type: 'number', id: 'edit-number', class: 'number', ...shared });
  const line = el('p', { class: 'hint', id: 'edit-line' });
  const free = el('button', { class: 'secondary', id: 'edit-free' }, 'Unset');
  const clear = el('button', { class: 'secondary', id: 'edit-clear', onclick: () => update(app, { edits: [] }) });

  function selected(): { result: ForwardResult; place: Place } | null {
    const result = app.result.get();
    if (!result) return null;
    const { query, key, head } = chosen(app, result);
    return { result, place: { head, query, key: key ?? largestIndex(rowOf(result.trace.weights, head, query)) } };
  }

  const without = (edits: readonly WeightEdit[], { head, query, key }: Place) =>
    edits.filter((edit) => edit.head !== head || edit.query !== query || edit.key !== key);

  /** Chooses the pair, too: after a change, another key may have the largest weight. */
  function set(weight: number): void {
    const now = selected();
    if (!(weight >= 0 && weight <= 1)) return;
    if (!now || isLocked(now.result, now.place)) return show();
    const { query, key } = now.place;
    update(app, { edits: [...without(app.state.get().edits, now.place), { ...now.place, weight }], query, key }, 'edit-weight');
  }

  slider.addEventListener('input', () => set(Number(slider.value)));
  field.addEventListener('input', () => field.value !== '' && set(Number(field.value)));
  free.addEventListener('click', () => {
    const now = selected();
    if (now) update(app, { edits: without(app.state.get().edits, now.place) });
  });

  function show(): void {
    const now = selected();
    if (!now) return;
    const { result, place: at } = now;
    const { edits } = app.state.get();
    clear.textContent = edits.length === 0 ? 'Unset all' : `Unset all (${edits.length})`;
    clear.setAttribute('aria-disabled', String(edits.length === 0));
    const locked = isLocked(result, at);
    // Use aria-disabled: disabled inputs would lose the focus when the mask changes.
    for (const input of [slider, field]) input.setAttribute('aria-disabled', String(locked));
    const isSet = without(edits, at).length < edits.length;
    free.setAttribute('aria-disabled', String(!isSet));
    line.textContent = lineText(result, at, isSet);
    const view = viewOf(result, 'weights', at.head);
    const weight = view.data[at.query * view.cols + at.key]!;
    place.replaceChildren(
      headBadge(at.head + 1, result.heads[at.head]!, result.bend.muted.includes(at.head)),
      el('span', { class: 'sr-only' }, `Weight in head ${at.head + 1}, `),
      el('span', {}, ...pairOf(view.rowLabels[at.query]!, view.rowLabels[at.key]!)),
    );
    slider.value = weight.toFixed(2);
    slider.setAttribute('aria-valuetext', formatNumber(weight, 2));
    if (document.activeElement !== field || locked) field.value = weight.toFixed(2);
  }

  const element = el(
    'div',
    { class: 'control edit', role: 'group', 'aria-label': 'Set a weight' },
    el('div', { class: 'row edit-inputs' }, place, slider, field, free, clear),
    line,
  );
  show();
  app.result.watch(whenSeen(element, show));
  whenChanged(app, ['query', 'key', 'head'], show);
  return element;
}

type Place = Omit<WeightEdit, 'weight'>;

const isHidden = ({ causal, bend }: ForwardResult, { query, key }: Place): boolean => hides(causal, bend.window, query, key);

const isOnly = (result: ForwardResult, { head, query }: Place): boolean =>
  result.tokens.filter((_, key) => !isHidden(result, { head, query, key })).length === 1;

const isLocked = (result: ForwardResult, place: Place): boolean => isHidden(result, place) || isOnly(result, place);

function lineText(result: ForwardResult, place: Place, isSet: boolean): string {
  if (isHidden(result, place)) return 'The mask hides this word, so its weight stays exactly 0.';
  if (isOnly(result, place)) return 'This row has only one visible word, so its weight stays 1.';
  return isSet
    ? 'You set this weight. The others shrink or grow together, so the row still adds up to 1.'
    : 'Set this weight by hand: the others shrink or grow together, so the row still adds up to 1.';
}
