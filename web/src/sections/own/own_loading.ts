// The bar while a model is read, with a button that stops it.

import { el, setText } from '../../dom/dom.js';
import { formatBytes } from '../../model/limits.js';
import type { Loading } from '../../model/messages.js';

export interface LoadingBar {
  readonly element: HTMLElement;
  begin(): void;
  show(loading: Loading): void;
  end(): void;
}

export function loadingBar(onAbort: () => void): LoadingBar {
  const bar = el('progress', { class: 'own-progress', 'aria-label': 'Reading the model' });
  const text = el('span', { class: 'number own-loaded' });
  const abort = el('button', { class: 'secondary', id: 'own-abort' }, 'Stop');
  const element = el('div', { class: 'row own-loading', hidden: true }, bar, text, abort);
  abort.addEventListener('click', onAbort);
  return {
    element,
    begin() {
      bar.removeAttribute('value');
      setText(text, '');
      element.hidden = false;
    },
    show({ loaded, total }) {
      bar.max = Math.max(1, total);
      bar.value = loaded;
      setText(text, `${formatBytes(loaded)} of ${formatBytes(total)}`);
    },
    end() {
      // The button is about to go, and the focus with it.
      const hadFocus = element.contains(document.activeElement);
      element.hidden = true;
      if (hadFocus) document.getElementById('model-files')?.focus();
    },
  };
}
