// "Your sentence": the text, the choice of heads, and the causal switch.

import { patternIds, patterns, type PatternId } from '../../attention/patterns.js';
import { presetOf, presets } from '../../attention/presets.js';
import { maxCharacters, maxTokens, tokenize } from '../../attention/tokens.js';
import { sourceSwitch } from '../../controls/source_switch.js';
import { stateSwitch } from '../../controls/choice.js';
import { el, headBadge, rich, setText } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { inView, update, whenViewed, type App } from '../../state/app.js';
import { liveMaps } from './live_maps.js';
import { captionOf } from './looks.js';
import { tokenStrip } from './token_strip.js';

export function sentenceSection(app: App): HTMLElement {
  return el(
    'section',
    { class: 'panel', id: 'your-sentence', 'aria-labelledby': 'sentence-title' },
    el('h2', { id: 'sentence-title' }, 'Your sentence'),
    el(
      'div',
      { class: 'sentence-grid' },
      el(
        'div',
        { class: 'sentence-main' },
        textField(app),
        presetRow(app),
        presetLine(app),
        tokenStrip(app),
        sourceSwitch(app),
        el(
          'div',
          { class: 'sentence-choices' },
          headChooser(app),
          stateSwitch(app, 'causal', {
            id: 'causal',
            name: ['Causal'],
            line: 'each word sees only itself and earlier words, as in GPT',
          }),
        ),
      ),
      liveMaps(app),
    ),
    aboutWeights(app),
  );
}

function textField(app: App): HTMLElement {
  const field = el('textarea', {
    ...{ id: 'sentence', class: 'sentence-field', dir: 'auto', rows: 1, placeholder: 'Type a sentence' },
    ...{ maxlength: maxCharacters, spellcheck: 'false', autocomplete: 'off' },
    ...{ 'aria-labelledby': 'sentence-title', 'aria-describedby': 'sentence-notice' },
  });
  const notice = el('p', { id: 'sentence-notice', class: 'hint', role: 'status' });
  field.addEventListener('input', () => update(app, { text: field.value }, 'typing'));
  app.state.watch(({ text }, previous) => {
    if (text === previous?.text) return;
    if (field.value !== text) field.value = text;
    const { tokens, found } = tokenize(text);
    const said = [
      found > maxTokens && `${found} tokens: only the first ${maxTokens} are used.`,
      tokens.length === 0 && 'Type a word, or pick a sentence below.',
      text.length >= maxCharacters && `The text field holds ${maxCharacters} characters; the rest was cut.`,
    ];
    notice.textContent = said.filter(Boolean).join(' ');
    notice.hidden = notice.textContent === '';
  });
  return el('div', { class: 'sentence-entry' }, field, notice);
}

/** Buttons for the example sentences, after a button for the visitor's own sentence. */
function presetRow(app: App): HTMLElement {
  const row = el('div', { class: 'presets', role: 'group', 'aria-label': 'Example sentences' });
  let own = '';
  const ownButton = el('button', { class: 'preset is-own', onclick: () => update(app, { text: own, query: null, key: null }) });
  app.state.watch(({ text }) => {
    if (text.trim() !== '' && !presetOf(text)) own = text;
    if (own !== '' && !ownButton.isConnected) row.prepend(ownButton);
    const short = [...own].slice(0, 24).join('');
    ownButton.textContent = `Yours: ${short}${short.length < own.length ? '…' : ''}`;
    ownButton.setAttribute('aria-pressed', String(text === own));
  });
  const buttons = presets.map(({ text, heads, causal, query }) => {
    const button = el('button', { class: 'preset' }, text);
    button.addEventListener('click', () => {
      const { head } = app.state.get();
      const fitting = { heads, causal, query, head: Math.min(head, heads.length - 1) };
      update(app, { text, key: null, ...(app.heads.get().given ? { query: null } : fitting) });
    });
    app.state.watch((state) => button.setAttribute('aria-pressed', String(state.text === text)));
    return button;
  });
  row.append(...buttons);
  return row;
}

/** Says where the heads look from the word in view. */
function presetLine(app: App): HTMLElement {
  const line = el('p', { class: 'preset-line hint' });
  const show = whenSeen(line, () => {
    const result = app.result.get();
    const { query, text } = app.state.get();
    const pick = query === null ? ' Click a word to look from there.' : '';
    setText(line, result ? captionOf(result, inView(app, result).query, text) + pick : '');
  });
  whenViewed(app, show);
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
    el('div', { class: 'wrap chips' }, ...chips),
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
  app.heads.watch(({ given }) => {
    element.hidden = given !== null;
  });
  return element;
}

function aboutWeights(app: App): HTMLElement {
  return onlyOfRules(
    app,
    'details',
    { class: 'part about' },
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
      ...patterns.flatMap(({ id, name, how, carries }) => [
        el('dt', { class: `head-${id}` }, el('span', { class: 'swatch', 'aria-hidden': 'true' }), name),
        el('dd', {}, ...rich(`${how} W_V copies the ${carries} block.`)),
      ]),
    ),
  );
}
