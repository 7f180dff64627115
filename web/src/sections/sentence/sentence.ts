// "Your sentence": the text, the choice of heads, and the causal switch.

import { novelsTexts, presetOf, presets } from '../../attention/presets.js';
import { maxCharacters, maxTokens, tokenize } from '../../attention/tokens.js';
import { sourceSwitch } from '../../controls/source_switch.js';
import { el, setText } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { inView, update, whenViewed, type App } from '../../state/app.js';
import { liveMaps } from './live_maps.js';
import { captionOf, marksOf } from './looks.js';
import { nextWords } from './next_words.js';
import { tokenStrip } from './token_strip.js';

export function sentenceSection(app: App): HTMLElement {
  const maps = liveMaps(app);
  return el(
    'section',
    { class: 'panel', id: 'your-sentence', 'aria-labelledby': 'sentence-title' },
    el('h2', { id: 'sentence-title', class: 'sr-only' }, 'Your sentence'),
    textField(app),
    presetRow(app),
    el('div', { class: 'sentence-figure' }, tokenStrip(app), nextWords(app)),
    presetLine(app),
    sourceSwitch(app),
    maps.element,
    el('details', { class: 'under more' }, el('summary', { class: 'hint', 'aria-label': 'More choices' }, '⋯ More'), maps.tools),
  );
}

function textField(app: App): HTMLElement {
  const field = el('textarea', {
    ...{ id: 'sentence', class: 'sentence-field', dir: 'auto', rows: 1, placeholder: 'Type a sentence' },
    ...{ maxlength: maxCharacters, spellcheck: 'false', autocomplete: 'off' },
    ...{ 'aria-label': 'Your sentence', 'aria-describedby': 'sentence-notice' },
  });
  const notice = el('p', { id: 'sentence-notice', class: 'close hint', role: 'status' });
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

/** Buttons for the example sentences of the heads in use, after a button for the visitor's own sentence. */
function presetRow(app: App): HTMLElement {
  const row = el('div', { class: 'presets', role: 'group', 'aria-label': 'Example sentences' });
  let own = '';
  const ownButton = el('button', { class: 'preset is-own', onclick: () => update(app, { text: own, query: null, key: null }) });
  const opening = (): string => {
    const { model } = app.sources.get();
    return typeof model === 'object' ? model.opening : '';
  };
  app.state.watch(({ text }) => {
    if (text.trim() !== '' && !presetOf(text) && !novelsTexts.includes(text) && text !== opening()) own = text;
    if (own !== '' && !ownButton.isConnected) row.prepend(ownButton);
    const short = [...own].slice(0, 24).join('');
    ownButton.textContent = `Yours: ${short}${short.length < own.length ? '…' : ''}`;
    ownButton.setAttribute('aria-pressed', String(text === own));
  });
  const add = (
    textOf: () => string,
    of: 'novels' | 'rules' | 'model',
    press = () => update(app, { text: textOf(), query: null, key: null }),
  ): void => {
    const button = el('button', { class: 'preset', onclick: press });
    const show = (): void => {
      const { source, text } = app.state.get();
      button.hidden = (source === 'novels' || (source === 'model' && opening() !== '') ? source : 'rules') !== of;
      setText(button, textOf());
      button.setAttribute('aria-pressed', String(text === textOf()));
    };
    app.state.watch(show);
    app.sources.watch(show);
    row.append(button);
  };
  for (const text of novelsTexts) add(() => text, 'novels');
  add(opening, 'model');
  for (const { text, heads, causal, query } of presets) {
    const textOf = (): string => text;
    add(textOf, 'rules', () => {
      const { head } = app.state.get();
      const fitting = { heads, causal, query, head: Math.min(head, heads.length - 1) };
      update(app, { text, key: null, ...(app.heads.get().given ? { query: null } : fitting) });
    });
  }
  return row;
}

function presetLine(app: App): HTMLElement {
  const line = el('p', { class: 'close hint line preset-line' });
  const show = whenSeen(line, () => {
    const result = app.result.get();
    const { query, text, source } = app.state.get();
    const pick = query === null ? ` Click a word to look from there${source === 'novels' ? ', or change one above' : ''}.` : '';
    setText(line, result ? captionOf(result, inView(app, result).query, text) + marksOf(result, inView(app, result).query) + pick : '');
  });
  whenViewed(app, show);
  return line;
}
