// The likeliest next words of the words model, or of the visitor's, as bars: pressing one writes it at the end of the text.

import { isUnbent } from '../../attention/bend.js';
import { maxTokens, tokenNames } from '../../attention/tokens.js';
import { formatPercent } from '../../base/format.js';
import { el, meter, percentOf, setText } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';

/** The text with one more word: signs follow without a space. */
export const withWord = (text: string, word: string): string => {
  const begun = text.trimEnd();
  const close = /^([,.;:?!)]|--)/.test(word) || begun === '' || /(--|\()$/.test(begun);
  return `${begun}${close ? '' : ' '}${word}`;
};

export function nextWords(app: App): HTMLElement {
  const rows = Array.from({ length: 5 }, (_, i) => {
    const name = el('bdi', { class: 'cut next-word' });
    const bar = meter(0);
    const share = el('span', { class: 'number' });
    const button = el('button', { class: 'next-bar', onclick: () => write(i) }, name, bar, share);
    return { button, name, fill: bar.firstElementChild as HTMLElement, share };
  });
  const rest = el('p', { class: 'hint wide next-rest' });
  const said = el('p', { class: 'sr-only', role: 'status' });
  const title = el('h3', { id: 'next-title' }, 'Next word');
  const list = el('ol', {}, ...rows.map(({ button }, i) => el('li', { class: i > 2 && 'wide' }, button)));
  const element = el('div', { class: 'next', role: 'group', 'aria-labelledby': 'next-title' }, title, list, rest, said);
  let written = '';

  const isFull = (): boolean => (app.result.get()?.tokens.length ?? 0) >= maxTokens;

  function write(index: number): void {
    const next = app.result.get()?.next?.words[index];
    if (next === undefined || next.written === '' || isFull()) return;
    written = next.word;
    const { text } = app.state.get();
    update(app, { text: next.written === undefined ? withWord(text, next.word) : text + next.written, query: null, key: null });
  }

  function draw(): void {
    const { source, text } = app.state.get();
    const result = app.result.get();
    const next = result?.next;
    const ofNovels = source === 'novels';
    // Numbers of the source before are still there while a model reads.
    element.hidden = result ? !next || ofNovels !== (result.reads !== undefined) : !ofNovels || text.trim() === '';
    if (!next || element.hidden) return;
    // The word in view may be an earlier one.
    setText(title, `Next word after “${tokenNames(result.tokens).at(-1)}”`);
    rows.forEach(({ button, name, fill, share }, i) => {
      const { word, share: part, written: writes } = next.words[i] ?? { word: '', share: 0 };
      setText(name, word);
      setText(share, formatPercent(part));
      fill.style.width = percentOf(part);
      button.setAttribute('aria-label', `Write “${word}”, ${formatPercent(part)}`);
      button.setAttribute('aria-disabled', String(isFull() || writes === ''));
    });
    const listed = next.words.reduce((sum, { share }) => sum + share, 0);
    const others = formatPercent(Math.max(0, 1 - listed - next.unknown));
    const bent = isUnbent(result.bend) ? '' : ', with nothing bent';
    setText(rest, `others ${others}${ofNovels ? `, words it does not know ${formatPercent(next.unknown)}` : bent}`);
    const best = next.words.slice(0, 3).map(({ word, share }) => `${word} ${formatPercent(share)}`);
    if (written) setText(said, `${written} is written. Next: ${best.join(', ')}.`);
    written = '';
  }

  app.result.watch(draw);
  app.state.watch(({ source }, before) => source !== before?.source && draw());
  return element;
}
