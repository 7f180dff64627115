// A button that copies a text and says so. If the browser forbids it, as over plain HTTP, the text is shown selected instead.

import { el } from '../dom/dom.js';

/** Milliseconds for which it says so. */
const pause = 2000;

/** The button says `copied` after a copy. If the browser refused it, the button says `refused` and shows the text, to be copied by hand. */
export function copyButton(label: string, { copied, refused }: Readonly<Record<'copied' | 'refused', string>>, text: () => string): HTMLElement {
  const button = el('button', { class: 'secondary' }, label);
  const said = el('span', { class: 'hint', role: 'status' });
  const field = el('input', { class: 'copy-field', type: 'text', readonly: true, 'aria-label': label, hidden: true });
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text());
      said.textContent = copied;
      setTimeout(() => (said.textContent = ''), pause);
    } catch {
      said.textContent = refused;
      field.hidden = false;
      field.value = text();
      field.select();
    }
  });
  return el('span', { class: 'row copy' }, button, said, field);
}
