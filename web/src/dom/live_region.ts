// Regions whose changes a screen reader announces.

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.setAttribute('aria-live', isIntersecting ? 'polite' : 'off');
});

/**
 * Announces the changes of an element only while it is on the screen: one key in the text field changes what several
 * sections say.
 */
export function announced(element: HTMLElement): HTMLElement {
  element.setAttribute('aria-live', 'off');
  watcher.observe(element);
  return element;
}
