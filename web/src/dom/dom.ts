// Helpers that make elements. They set attributes and text, and never parse markup. They set no style attribute,
// because the page's security policy refuses it.

export type Child = Node | string;
type Attributes = Readonly<Record<string, string | number | boolean | undefined | (() => unknown)>>;

/**
 * An attribute that is `false` or `undefined` is not set; `true` sets it to the empty string. A function, such as
 * `onclick`, listens to the event.
 */
export function el<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  setAll(element, tag === 'button' ? { type: 'button', ...attributes } : attributes);
  element.append(...children);
  return element;
}

/** Like el(), for elements of SVG. */
export function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  setAll(element, attributes);
  element.append(...children);
  return element;
}

/** Sets only what differs, so that unchanged elements are not drawn again. */
export function setAll(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    const text = value === true ? '' : String(value);
    if (typeof value === 'function') element.addEventListener(name.slice(2), value);
    else if (value === undefined || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

/** Gives a parent exactly `count` children, reuses those that exist, and returns them. */
export function fit(parent: Element, count: number, make: () => Element): Element[] {
  while (parent.childElementCount > count) parent.lastElementChild!.remove();
  while (parent.childElementCount < count) parent.append(make());
  return [...parent.children];
}

/** Sets the text of an element if it differs, because setting the same text again costs a new layout. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Replaces the children of an element and restores the focus: to the same element if it is still there,
 * else to the focusable element at the same index. (An element that leaves the document loses the focus,
 * even if it is inserted again at once.)
 */
export function refill(element: Element, ...children: Child[]): void {
  const stops = () => [...element.querySelectorAll<HTMLElement>('button, [tabindex="0"]')];
  const focused = document.activeElement as HTMLElement;
  const position = stops().indexOf(focused);
  element.replaceChildren(...children);
  if (position >= 0) (element.contains(focused) ? focused : stops()[position])?.focus({ preventScroll: true });
}

/** Sets position and size in pixels through the CSSOM, which the security policy permits. */
export function place(element: HTMLElement, box: { left: number; top: number; width: number; height: number }): void {
  element.style.left = `${box.left}px`;
  element.style.top = `${box.top}px`;
  element.style.width = `${box.width}px`;
  element.style.height = `${box.height}px`;
}

/**
 * A token in a line of text, in its own writing direction. CSS shortens a long one with "…"; its title shows
 * the whole token.
 */
export function word(token: string): HTMLElement {
  return el('bdi', { class: 'word', title: token.length > 12 && token }, token);
}

export const pairOf = (query: string, key: string): Child[] => [word(query), ' → ', word(key)];

/** Text in which names such as W_Q get a subscript, and e^{x} a power. */
export function rich(text: string): Child[] {
  return text.split(/((?<=\b[Wd])_\w+|\^\{[^}]*\})/).map((part) => {
    if (part.startsWith('_')) return el('sub', {}, part.slice(1));
    if (!part.startsWith('^{')) return part;
    // Screen readers leave out that it is a power.
    return el('sup', {}, el('span', { class: 'sr-only' }, ' to the power of '), part.slice(2, -1));
  });
}

/** A badge with the number of a head, in the color of its pattern; hatched if the head is muted. */
export function headBadge(number: number, pattern: string, muted = false): HTMLElement {
  return el('span', { class: `badge head-${pattern}${muted ? ' is-muted' : ''}`, 'aria-hidden': 'true' }, String(number));
}

/** A share from 0 to 1 as a width in CSS. */
export const percentOf = (share: number): string => `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;

/** A bar whose filled part shows a share from 0 to 1. */
export function meter(share: number, className = ''): HTMLElement {
  const fill = el('span', {});
  fill.style.width = percentOf(share);
  return el('span', { class: `meter ${className}`, 'aria-hidden': 'true' }, fill);
}

/** A section of the page: its title, a line about it, and the tools to the right of both. */
export function panel(id: string, { title, lead, tools }: { title: string; lead?: Child; tools?: HTMLElement }, ...children: Child[]): HTMLElement {
  const line = typeof lead === 'string' ? el('p', { class: 'lead' }, lead) : lead;
  const head = [el('h2', { id: `${id}-title` }, title), ...(line ? [line] : [])];
  const top = tools ? [el('header', { class: 'row apart low panel-head' }, el('div', {}, ...head), tools)] : head;
  return el('section', { class: 'panel', id, 'aria-labelledby': `${id}-title` }, ...top, ...children);
}

/**
 * The index that an arrow key, Home or End leads to from `now`, around the ends; undefined for other keys.
 * `forward` is −1 from right to left; `down` and `up` are the keys that do the same.
 */
export function moved(
  { key, altKey, ctrlKey, metaKey }: KeyboardEvent,
  now: number,
  count: number,
  { forward = 1, down = '', up = '' } = {},
): number | undefined {
  const moves: Readonly<Record<string, number>> = {
    [down]: now + 1,
    [up]: now - 1,
    ArrowRight: now + forward,
    ArrowLeft: now - forward,
    Home: 0,
    End: count - 1,
  };
  const next = moves[key];
  return next === undefined || altKey || ctrlKey || metaKey ? undefined : (next + count) % count;
}

/** Calls `move` where the pointer presses an element, and where it drags to from there. */
export function onDrag(element: SVGElement, move: (event: PointerEvent) => void): void {
  element.addEventListener('pointerdown', (event) => {
    element.setPointerCapture(event.pointerId);
    move(event);
  });
  element.addEventListener('pointermove', (event) => element.hasPointerCapture(event.pointerId) && move(event));
}

export function download(blob: Blob, name: string): void {
  const url = URL.createObjectURL(blob);
  const link = el('a', { href: url, download: name });
  link.click();
  // Revoke the address later, because the browser reads the file after the click.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
