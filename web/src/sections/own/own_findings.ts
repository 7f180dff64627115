// The measurements of the small English model: a sentence for each notable head, with a button that opens the head.

import { el } from '../../dom/dom.js';
import type { Findings } from '../../model/english.js';

export function createFindings(onOpen: (layer: number, head: number) => void) {
  const quality = el('p', { class: 'hint' });
  const list = el('ul', { class: 'own-habits' });
  const missing = el('p', { class: 'hint' });
  const summary = el('summary', {}, 'What its heads do, measured on text that it has not seen');
  const element = el('details', { class: 'own-findings', hidden: true }, summary, quality, list, missing);
  return {
    element,
    /** Undefined hides it. */
    show(findings: Findings | undefined): void {
      element.hidden = findings === undefined;
      if (!findings) return;
      quality.textContent = findings.quality;
      const items = findings.habits.map(({ layer, head, sentence }) => {
        const button = el('button', { class: 'secondary', onclick: () => onOpen(layer, head) }, `Layer ${layer + 1}, head ${head + 1}`);
        return el('li', {}, button, ` ${sentence}`);
      });
      list.replaceChildren(...items);
      missing.textContent = findings.missing;
      missing.hidden = findings.missing === '';
    },
  };
}
