// The words of the sentence as a row of buttons: a click or an arrow key chooses a word, the pointer points at it.

import { directionOf } from '../attention/tokens.js';
import { differs } from '../base/store.js';
import { el, moved, refill, word } from '../dom/dom.js';
import { update, type App } from '../state/app.js';

/** `className`: the class of the buttons. */
export function createTokenRow(app: App, className: string, attributes: { class: string; 'aria-label': string }) {
  const element = el('div', { role: 'toolbar', ...attributes });
  let buttons: readonly HTMLButtonElement[] = [];
  const isNew = differs();

  function createButton(index: number): HTMLButtonElement {
    const button = el('button', { class: className, tabindex: -1, onclick: () => update(app, { query: index, key: null }) });
    button.addEventListener('pointerenter', () => app.pointed.set({ query: index, key: null }));
    button.addEventListener('pointerleave', () => app.pointed.set(null));
    return button;
  }

  element.addEventListener('keydown', (event) => {
    const now = buttons.indexOf(event.target as HTMLButtonElement);
    const next = moved(event, now, buttons.length, { forward: element.dir === 'rtl' ? -1 : 1 });
    if (next === undefined) return;
    event.preventDefault();
    const target = buttons[next]!;
    update(app, { query: buttons.indexOf(target), key: null }, 'arrow keys in the words');
    target.focus();
  });

  return {
    element,
    buttons: () => buttons,
    /** Writes the words. Returns true if they have changed. */
    name(names: readonly string[]): boolean {
      if (!isNew(names)) return false;
      element.dir = directionOf(names);
      if (buttons.length !== names.length) {
        buttons = names.map((_, i) => buttons[i] ?? createButton(i));
        refill(element, ...buttons);
      }
      names.forEach((name, i) => {
        if (buttons[i]!.textContent !== name) buttons[i]!.replaceChildren(word(name));
      });
      return true;
    },
    /** `shown` is pressed; Tab reaches `stop`. */
    mark(shown: number, stop: number): void {
      buttons.forEach((button, token) => {
        const pressed = String(token === shown);
        if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
        const tab = token === stop ? 0 : -1;
        if (button.tabIndex !== tab) button.tabIndex = tab;
      });
    },
  };
}
