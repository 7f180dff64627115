// Buttons for undo and redo.

import type { App } from '../state/app.js';

/** Makes two buttons undo and redo changes of the page. */
export function connectUndo(app: App, undo: HTMLElement, redo: HTMLElement): void {
  undo.addEventListener('click', () => app.undo());
  redo.addEventListener('click', () => app.redo());
  app.history.moves.watch((moves) => {
    // aria-disabled keeps the focus where it is; a disabled button would lose it.
    undo.setAttribute('aria-disabled', String(!moves.undo));
    redo.setAttribute('aria-disabled', String(!moves.redo));
  });
}
