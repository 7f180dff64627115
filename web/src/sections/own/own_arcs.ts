// The text that a model with encoder and decoder reads, the text that it writes, and the weights of a head between them as arcs.

import { el, svg, word } from '../../dom/dom.js';

/** Weights below this one have no arc. */
const least = 0.04;

export function createArcs() {
  const [read, written] = ['What it reads', 'What it writes'].map((label) => el('p', { class: 'own-arc-words', 'aria-label': label, role: 'group' }));
  const arcs = svg('svg', { viewBox: '0 0 100 100', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  const element = el('div', { class: 'own-arcs', hidden: true, tabindex: 0, role: 'group', 'aria-label': 'Both texts' }, read!, arcs, written!);
  return {
    element,
    /** `weights`: (rows, columns) of the written and the read tokens. */
    show(rows: readonly string[], columns: readonly string[], weights: Float32Array): void {
      [columns, rows].forEach((names, at) => [read!, written!][at]!.replaceChildren(...names.map((name) => word(name))));
      element.style.setProperty('--words', String(Math.max(rows.length, columns.length)));
      const middle = (at: number, count: number): number => (100 * (at + 0.5)) / count;
      const strong = [...weights.keys()].filter((at) => weights[at]! >= least);
      arcs.replaceChildren(
        ...strong.map((at) => {
          const [from, to] = [middle(at % columns.length, columns.length), middle(Math.floor(at / columns.length), rows.length)];
          return svg('path', { d: `M ${from} 0 C ${from} 50 ${to} 50 ${to} 100`, 'stroke-opacity': weights[at]! });
        }),
      );
    },
  };
}
