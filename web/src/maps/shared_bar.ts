// The weights of one row as the parts of one bar of length 1.

import { el, setText } from '../dom/dom.js';

/** A smaller part would be narrower than a pixel, and its place stays empty. */
const leastDrawn = 0.002;
/** A narrower part has no room for its word. */
const leastNamed = 0.09;

export function createSharedBar() {
  const element = el('div', { class: 'shared-bar', 'aria-hidden': 'true' });
  const parts: { readonly part: HTMLElement; readonly name: HTMLElement }[] = [];
  let drawn: readonly number[] = [];

  function make() {
    const name = el('bdi', {});
    const part = el('span', {}, name);
    element.append(part);
    return { part, name };
  }

  return {
    element,
    /** `head`: the class of the head's color. The part of `chosen` stands out. */
    show(weights: Float32Array, names: readonly string[], head: string, chosen: number | null): void {
      if (element.className !== `shared-bar ${head}`) element.className = `shared-bar ${head}`;
      drawn = [...weights.keys()].filter((key) => weights[key]! >= leastDrawn);
      while (parts.length < drawn.length) parts.push(make());
      parts.forEach(({ part, name }, i) => {
        const key = drawn[i];
        part.hidden = key === undefined;
        if (key === undefined) return;
        const width = `${(100 * weights[key]!).toFixed(2)}%`;
        if (part.style.width !== width) part.style.width = width;
        setText(name, weights[key]! >= leastNamed ? names[key]! : '');
        if (part.classList.contains('is-chosen') !== (key === chosen)) part.classList.toggle('is-chosen', key === chosen);
      });
    },
    /** The part of a key; undefined if it is too small to be drawn. */
    partOf: (key: number): HTMLElement | undefined => parts[drawn.indexOf(key)]?.part,
  };
}
