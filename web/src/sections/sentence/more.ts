// What "⋯ More" holds: the causal switch, the choice of hand-built heads, and how these were made. It loads with the sections below.

import { patternIds, patterns, type PatternId } from '../../attention/patterns.js';
import { stateSwitch } from '../../controls/choice.js';
import { el, headBadge, rich } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';

const how: Readonly<Record<PatternId, string>> = {
  previous: 'W_Q rotates the position code back by one step; W_K selects the position code.',
  first: 'The query always asks for the first position; W_K selects the position code.',
  same: 'One half compares words: equal words score high. The other half compares positions, with a minus: a word does not choose itself.',
  nearby: 'W_Q and W_K select only the two slowest speeds of the position code, whose cosines decrease slowly with distance.',
  next: 'W_Q rotates the position code forward by one step; W_K selects the position code.',
  letter: 'W_Q and W_K both select the code of the first letter.',
  average: 'W_Q is zero.',
  itself: 'W_Q and W_K both select the position code.',
};

export function addMore(app: App): void {
  const causal = stateSwitch(app, 'causal', { id: 'causal', name: ['Causal'], line: 'each word sees only itself and earlier words, as in GPT' });
  document.querySelector('.more')?.append(measured(app), causal, headChooser(app), aboutWeights(app));
}

function measured(app: App): HTMLElement {
  const line = el('p', { class: 'hint' });
  app.result.watch((result) => {
    const { names = [], lines = [] } = result?.given ?? {};
    line.hidden = lines.length === 0;
    const copies = 'A head that copies looks at what followed the same word last time, and makes that word likelier here. ';
    const measured = lines.map((each, head) => `Head ${head + 1}: ${each}.`).join(' ');
    line.textContent = `${names.includes('copies') ? copies : ''}Measured on text that the model was not trained on: ${measured}`;
  });
  return line;
}

function headChooser(app: App): HTMLElement {
  const hint = el('p', { class: 'hint', role: 'status', hidden: true }, 'At least one head is needed.');
  const chips = patterns.map(({ id, name, line }) => {
    const box = el('input', { type: 'checkbox', name: 'heads', value: id });
    const badge = headBadge(1, id);
    box.addEventListener('change', () => {
      const heads = toggled(app.state.get().heads, id, box.checked);
      hint.hidden = heads.length > 0;
      if (heads.length === 0) box.checked = true;
      else update(app, { heads });
    });
    app.state.watch(({ heads }) => {
      const place = heads.indexOf(id);
      box.checked = place >= 0;
      badge.textContent = place >= 0 ? String(place + 1) : '';
    });
    return el('label', { class: 'chip-box', title: line }, box, badge, el('span', {}, name));
  });
  return onlyOfRules(
    app,
    'fieldset',
    { class: 'choice' },
    el('legend', {}, 'Hand-built heads'),
    el('p', { class: 'hint what-head' }, 'For each word, a head decides how much to look at every word. These shares, its weights, add up to 1.'),
    el('div', { class: 'row chips' }, ...chips),
    hint,
  );
}

/** The chosen heads after one was switched on or off, in the order of the list of patterns. */
function toggled(heads: readonly PatternId[], id: PatternId, on: boolean): PatternId[] {
  return patternIds.filter((other) => (other === id ? on : heads.includes(other)));
}

/** An element that is about hand-built heads, hidden while others are shown. */
function onlyOfRules(app: App, ...made: Parameters<typeof el>): HTMLElement {
  const element = el(...made);
  const show = (): void => {
    element.hidden = app.heads.get().given !== null || app.state.get().source === 'novels';
  };
  app.heads.watch(show);
  app.state.watch(show);
  return element;
}

function aboutWeights(app: App): HTMLElement {
  return onlyOfRules(
    app,
    'details',
    { class: 'part hint about' },
    el('summary', {}, el('strong', {}, 'These heads were written by hand, not trained. '), 'Open to see how.'),
    el(
      'p',
      {},
      ...rich('Each W_Q, W_K, W_V and W_O was written to produce one attention pattern. '),
      'They are ordinary matrices, with 64 input features and 16 outputs per head, and the same code would run trained ones. ' +
        'The rows of x are computed by rules, too: the position as sines and cosines, a code for the word, a code for its first letter, ' +
        'and a few traits of its spelling.',
    ),
    el(
      'dl',
      {},
      ...patterns.flatMap(({ id, name, carries }) => [
        el('dt', { class: `head-${id}` }, el('span', { class: 'swatch', 'aria-hidden': 'true' }), name),
        el('dd', {}, ...rich(`${how[id]} W_V copies the ${carries} block.`)),
      ]),
    ),
  );
}
