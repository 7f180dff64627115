// Changes the model while it writes: a head counts more, less or the other way round, gives what it gives for another sentence, or a
// direction is added to all words.

import { formatNumber } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import type { PageState } from '../../state/page_state.js';

type Kind = PageState['labChange'];

const names: Readonly<Record<Kind, string>> = {
  none: 'as it is',
  scale: 'scale the open head',
  swap: 'swap the open head',
  steer: 'steer at the open layer',
};

/** The strength with which a change begins, and the range of its slider. */
const begins: Readonly<Record<Kind, number>> = { none: 0, scale: 0, swap: 1, steer: 2 };
const ranges = { scale: 2, steer: 8 } as const;

function lineOf({ labChange: kind, labFactor: factor, ownLayer, ownHead }: PageState): string {
  const head = `Head ${ownHead + 1} of layer ${ownLayer + 1}`;
  if (kind === 'none') return 'Change something, and watch the text change with it.';
  if (kind === 'swap') return `${head} gives at every word what it gives at the end of the experiment’s second sentence.`;
  if (kind === 'scale') return `${head} counts ${formatNumber(factor, 1)} times${factor === 0 ? ': it is muted' : ''}.`;
  return `Before layer ${ownLayer + 1}, every word gets ${formatNumber(factor, 1)} times the difference between the experiment’s first and second sentence.`;
}

export function createSteering(app: App) {
  const kind = el('select', { id: 'lab-change' }, ...Object.entries(names).map(([value, name]) => el('option', { value }, name)));
  const slider = el('input', { type: 'range', id: 'lab-factor', step: 0.1, 'aria-label': 'How strongly' });
  const line = el('p', { class: 'hint lab-line' });
  kind.addEventListener('change', () => {
    const chosen = kind.value as Kind;
    update(app, { labChange: chosen, labFactor: begins[chosen] });
  });
  slider.addEventListener('input', () => update(app, { labFactor: slider.valueAsNumber }, 'lab-factor'));
  app.state.watch((state) => {
    const { labChange, labFactor } = state;
    kind.value = labChange;
    const range = labChange === 'scale' || labChange === 'steer' ? ranges[labChange] : 0;
    slider.hidden = range === 0;
    [slider.min, slider.max] = [String(-range), String(range)];
    slider.value = String(labFactor);
    const text = lineOf(state);
    slider.ariaValueText = text;
    setText(line, text);
  });
  return el(
    'div',
    { class: 'lab-steering' },
    el('p', { class: 'row own-choice' }, el('label', { for: 'lab-change', class: 'control-name' }, 'The model'), kind, slider),
    line,
  );
}
