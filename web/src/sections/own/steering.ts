// Changes the model while it writes: a head counts more, less or the other way round, gives what it gives for another sentence, or a
// direction is added to all words.

import { formatNumber } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import type { PageState } from '../../state/page_state.js';

type Kind = PageState['labChange'];

/** A name for each change, the strength with which it begins, and the range of its slider. */
const kinds: Readonly<Record<Kind, readonly [name: string, begin: number, range: number]>> = {
  none: ['as it is', 0, 0],
  scale: ['scale the open head', 0, 2],
  swap: ['swap the open head', 1, 0],
  steer: ['steer at the open layer', 2, 8],
};

function lineOf({ labChange: kind, labFactor: factor, ownLayer, ownHead }: PageState): string {
  const head = `Head ${ownHead + 1} of layer ${ownLayer + 1}`;
  if (kind === 'none') return 'Change something, and watch the text change with it.';
  if (kind === 'swap') return `${head} gives at every word what it gives at the end of the experiment’s second sentence.`;
  if (kind === 'scale') return `${head} counts ${formatNumber(factor, 1)} times${factor === 0 ? ': it is muted' : ''}.`;
  return `Before layer ${ownLayer + 1}, every word gets ${formatNumber(factor, 1)} times the difference between the experiment’s first and second sentence.`;
}

export function createSteering(app: App) {
  const kind = el('select', { id: 'lab-change' }, ...Object.entries(kinds).map(([value, [name]]) => el('option', { value }, name)));
  const slider = el('input', { type: 'range', id: 'lab-factor', step: 0.1, 'aria-label': 'How strongly' });
  const line = el('p', { class: 'hint lab-line' });
  kind.addEventListener('change', () => {
    const chosen = kind.value as Kind;
    update(app, { labChange: chosen, labFactor: kinds[chosen][1] });
  });
  slider.addEventListener('input', () => update(app, { labFactor: slider.valueAsNumber }, 'lab-factor'));
  app.state.watch((state) => {
    const { labChange, labFactor } = state;
    kind.value = labChange;
    const [, , range] = kinds[labChange];
    slider.hidden = range === 0;
    [slider.min, slider.max] = [String(-range), String(range)];
    slider.value = String(labFactor);
    setText(line, lineOf(state));
    slider.ariaValueText = line.textContent;
  });
  return el(
    'div',
    { class: 'lab-steering' },
    el('p', { class: 'row own-choice' }, el('label', { for: 'lab-change', class: 'control-name' }, 'The model'), kind, slider),
    line,
  );
}
