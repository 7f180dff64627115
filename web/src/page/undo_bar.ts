// Undo and redo for the whole page: two buttons in the bar, and keyboard shortcuts. They announce the
// change, because it may be in a section that is not on the screen.

import { el, setText, svg } from '../dom/dom.js';
import type { App } from '../state/app.js';

const isMac = /Mac|iPhone|iPad/.test(navigator.platform);

/** An arrow that turns back; mirrored for redo. */
const arrow = (className: string) =>
  svg(
    'svg',
    { class: `undo-icon ${className}`, viewBox: '0 0 20 20', 'aria-hidden': 'true' },
    svg('path', { d: 'M8 3.5 4 7.5l4 4M4.5 7.5H12a4.25 4.25 0 0 1 0 8.5H8' }),
  );

export function undoBar(app: App): HTMLElement {
  const button = (id: 'undo' | 'redo', name: string, key: string, className: string) =>
    el('button', { id, 'aria-label': name, title: `${name} (${key})`, onclick: () => app[id]() }, arrow(className));
  const undo = button('undo', 'Undo', isMac ? '⌘Z' : 'Ctrl+Z', 'is-back');
  const redo = button('redo', 'Redo', isMac ? '⇧⌘Z' : 'Ctrl+Y', 'is-forth');
  const said = el('span', { class: 'undo-said cut', role: 'status' });
  const element = el('div', { class: 'undo-bar', role: 'group', 'aria-label': 'Undo and redo' }, said, undo, redo);
  app.history.moves.watch((moves) => {
    // aria-disabled keeps the focus where it is; a disabled button would lose it.
    undo.setAttribute('aria-disabled', String(!moves.undo));
    redo.setAttribute('aria-disabled', String(!moves.redo));
  });
  let timer: ReturnType<typeof setTimeout> | undefined;
  app.undone.watch((text) => {
    clearTimeout(timer);
    setText(said, text);
    // It lies over the page.
    timer = setTimeout(() => setText(said, ''), 4000);
  });
  document.addEventListener('keydown', (event) => byKeyboard(app, event));
  return element;
}

/** Handles Ctrl+Z and Ctrl+Y (⌘Z and ⇧⌘Z) outside of text fields, which have their own undo. */
function byKeyboard(app: App, event: KeyboardEvent): void {
  const inText = (event.target as Element).closest('textarea, input:not([type=checkbox], [type=range])');
  if (inText || event.altKey || !(event.ctrlKey || event.metaKey)) return;
  const key = event.key.toLowerCase();
  const redo = key === 'y' || (key === 'z' && event.shiftKey);
  if (!redo && key !== 'z') return;
  event.preventDefault();
  if (redo) app.redo();
  else app.undo();
}
