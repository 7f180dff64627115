// The likeliest next words of the words model as bars: pressing one writes it at the end of the text.

import { maxTokens, tokenNames } from '../../attention/tokens.js';
import { formatPercent } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';

/** The text with one more word: signs follow without a space. */
export const withWord = (text: string, word: string): string => {
  const begun = text.trimEnd();
  const close = /^([,.;:?!)]|--)/.test(word) || begun === '' || /(--|\()$/.test(begun);
  return `${begun}${close ? '' : ' '}${word}`;
};

export function nextWords(app: App): HTMLElement {
  const rows = Array.from({ length: 5 }, (_, i) => {
    const name = el('bdi', { class: 'next-word' });
    const fill = el('span', { class: 'next-fill' });
    const share = el('span', { class: 'number' });
    const button = el('button', { class: 'next-bar', onclick: () => write(i) }, name, el('span', { class: 'next-room' }, fill), share);
    return { button, name, fill, share };
  });
  const rest = el('p', { class: 'hint next-rest' });
  const said = el('p', { class: 'sr-only', role: 'status' });
  const title = el('h3', { id: 'next-title' }, 'Next word');
  const list = el('ol', {}, ...rows.map(({ button }) => el('li', {}, button)));
  const element = el('div', { class: 'next', role: 'group', 'aria-labelledby': 'next-title' }, title, list, rest, said);
  let written = '';

  const isFull = (): boolean => (app.result.get()?.tokens.length ?? 0) >= maxTokens;

  function write(index: number): void {
    const word = app.result.get()?.next?.words[index]?.word;
    if (word === undefined || isFull()) return;
    written = word;
    update(app, { text: withWord(app.state.get().text, word), query: null, key: null });
  }

  function draw(): void {
    element.hidden = app.state.get().source !== 'novels' || (app.result.get() === null && app.state.get().text.trim() === '');
    const result = app.result.get();
    const next = result?.next;
    if (!next) return;
    // The word in view may be an earlier one.
    setText(title, `Next word after “${tokenNames(result.tokens).at(-1)}”`);
    rows.forEach(({ button, name, fill, share }, i) => {
      const { word, share: part } = next.words[i]!;
      setText(name, word);
      setText(share, formatPercent(part));
      fill.style.width = `${(100 * part).toFixed(1)}%`;
      button.setAttribute('aria-label', `Write “${word}”, ${formatPercent(part)}`);
      button.setAttribute('aria-disabled', String(isFull()));
    });
    const listed = next.words.reduce((sum, { share }) => sum + share, 0);
    const others = formatPercent(Math.max(0, 1 - listed - next.unknown));
    setText(rest, `others ${others}, words it does not know ${formatPercent(next.unknown)}`);
    const best = next.words.slice(0, 3).map(({ word, share }) => `${word} ${formatPercent(share)}`);
    if (written) setText(said, `${written} is written. Next: ${best.join(', ')}.`);
    written = '';
  }

  app.result.watch(draw);
  app.state.watch(({ source }, before) => source !== before?.source && draw());
  return element;
}
