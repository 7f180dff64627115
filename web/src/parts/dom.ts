// Elements in one line each. Attributes only, never markup from text, and no inline styles:
// the page's security policy refuses those.

export type Child = Node | string;
type Attributes = Readonly<Record<string, string | number | boolean | undefined>>;

/** An attribute that is `false` or `undefined` is left out; `true` makes it empty. */
export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children);
  return element;
}

/**
 * Replaces what an element holds, and the focus stays: on the same element, or on the one that now has its
 * place among those to tab to. (Leaving the document loses it, even to come back at once.)
 */
export function refill(element: Element, ...children: Child[]): void {
  const stops = () => [...element.querySelectorAll<HTMLElement>('button, [tabindex="0"]')];
  const focused = document.activeElement as HTMLElement;
  const position = stops().indexOf(focused);
  element.replaceChildren(...children);
  if (position >= 0) (element.contains(focused) ? focused : stops()[position])?.focus({ preventScroll: true });
}

/** Places an element in pixels, through the CSSOM. */
export function place(
  element: HTMLElement,
  box: { left: number; top: number; width: number; height: number },
): void {
  element.style.left = `${box.left}px`;
  element.style.top = `${box.top}px`;
  element.style.width = `${box.width}px`;
  element.style.height = `${box.height}px`;
}

/** A token in a line of text. A long one ends in "…" by its style; whole it is in the document and in its title. */
export function word(token: string): HTMLElement {
  return el('span', { class: 'word', title: token.length > 12 && token }, token);
}

/** Two tokens: who looks, and where. */
export const pairOf = (query: string, key: string): Child[] => [word(query), ' → ', word(key)];

/** Text in which W_Q and the like are set with a subscript. */
export function rich(text: string): Child[] {
  return text.split(/(?<=\b[Wd])_(\w+)/).map((part, i) => (i % 2 ? el('sub', {}, part) : part));
}

/** The number of a head, in the colour of its pattern. */
export function headBadge(number: number, pattern: string): HTMLElement {
  return el('span', { class: `badge head-${pattern}`, 'aria-hidden': 'true' }, String(number));
}
