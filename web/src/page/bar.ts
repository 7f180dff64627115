// The sentence and the heads in the bar at the top of the page, once they have left the screen.

import { tokenNames } from '../attention/tokens.js';
import { createHeadPicker, toggleMuted } from '../controls/head_picker.js';
import { sourceList } from '../controls/source_switch.js';
import { createTokenRow } from '../controls/token_row.js';
import { el, setText } from '../dom/dom.js';
import { whenSeen } from '../dom/when_seen.js';
import { chosen, inView, update, whenViewed, type App } from '../state/app.js';

/** The words and the heads. They are drawn only while they are shown, so that typing in the text field costs nothing here. */
export function sentenceBar(app: App, header: HTMLElement): HTMLElement {
  const words = createTokenRow(app, 'bar-word', { class: 'bar-words', 'aria-label': 'Words' });
  const heads = createHeadPicker((head) => update(app, { head }), { class: 'bar-heads', 'aria-label': 'Head in view' });
  const mute = el('button', { class: 'wide bar-mute', id: 'bar-mute' });
  const element = el('div', { class: 'bar-sentence', hidden: true }, words.element, heads.element, mute, sourceList(app));

  mute.addEventListener('click', () => {
    const result = app.result.get();
    if (result) toggleMuted(app, chosen(app, result).head);
  });

  function draw(): void {
    const result = app.result.get();
    heads.element.hidden = mute.hidden = result === null;
    if (element.hidden || !result) return;
    words.name(tokenNames(result.tokens));
    const { query } = inView(app, result);
    const { head, query: stop } = chosen(app, result);
    words.mark(query, stop);
    const { muted } = app.state.get();
    heads.show(result, muted, (index) => index === head);
    setText(mute, muted.includes(head) ? `Unmute ${head + 1}` : `Mute ${head + 1}`);
    mute.setAttribute('aria-pressed', String(muted.includes(head)));
    bringInSight(words.element, stop);
    bringInSight(heads.element, head);
  }

  /** Index of the child that each row was last scrolled to, and the width that the row had. */
  const inSight = new Map<HTMLElement, string>();

  /** Scrolls a row so that one of its children is in the middle, if another one was or if the row has another width. */
  function bringInSight(row: HTMLElement, index: number): void {
    const child = row.children[index] as HTMLElement | undefined;
    const key = `${index} ${row.clientWidth} ${row.scrollWidth}`;
    if (!child || inSight.get(row) === key) return;
    inSight.set(row, key);
    row.scrollLeft = child.offsetLeft - row.offsetLeft - (row.clientWidth - child.offsetWidth) / 2;
  }

  const drawSoon = whenSeen(header, draw);
  whenViewed(app, drawSoon);
  new ResizeObserver(drawSoon).observe(element);
  /** Watches the words of the first section: when they are above the screen, the bar shows its own. */
  const watcher = new IntersectionObserver(
    (entries) => {
      // A busy page gets several entries at once; the last one is the current one.
      const { isIntersecting, boundingClientRect: box } = entries.at(-1)!;
      // Without a sentence there are no words: they have no width.
      const away = !isIntersecting && box.width > 0 && box.bottom < 100;
      if (element.hidden === !away) return;
      header.classList.toggle('is-away', away);
      // The focus must not vanish with the element.
      if (!away && element.contains(document.activeElement)) document.getElementById('page')?.focus({ preventScroll: true });
      element.hidden = !away;
      drawSoon();
    },
    { rootMargin: '-56px 0px 0px' },
  );
  queueMicrotask(() => {
    const strip = document.querySelector('.strip-box');
    if (strip) watcher.observe(strip);
  });
  return element;
}
