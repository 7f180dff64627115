// The bar while a model is read, with a button that stops it.

import { el, setText } from '../../dom/dom.js';
import { formatBytes } from '../../model/limits.js';
import type { Loading } from '../../model/messages.js';

export function loadingBar(onAbort: () => void) {
  const bar = el('progress', { class: 'own-progress', 'aria-label': 'Reading the model' });
  const text = el('span', { class: 'number own-loaded' });
  const abort = el('button', { class: 'secondary', id: 'own-abort', onclick: onAbort }, 'Stop');
  const element = el('div', { class: 'row own-loading', hidden: true }, bar, text, abort);
  return {
    element,
    begin(): void {
      bar.removeAttribute('value');
      setText(text, '');
      element.hidden = false;
    },
    show({ loaded, total }: Loading): void {
      bar.max = Math.max(1, total);
      bar.value = loaded;
      setText(text, `${formatBytes(loaded)} of ${formatBytes(total)}`);
    },
    end(): void {
      // The button is about to go, and the focus with it.
      const hadFocus = element.contains(document.activeElement);
      element.hidden = true;
      if (hadFocus) document.getElementById('model-files')?.focus();
    },
  };
}
