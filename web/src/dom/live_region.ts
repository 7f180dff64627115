// Regions whose changes a screen reader announces.

const seen = new Map<Element, boolean>();

/** A region speaks while it is on the screen, unless the focus is in another section. */
function update(): void {
  const section = document.activeElement?.closest('section');
  for (const [region, isSeen] of seen) {
    // It comes back to the list if it is shown again.
    if (!region.isConnected) seen.delete(region);
    const live = isSeen && (!section || section.contains(region)) ? 'polite' : 'off';
    if (region.ariaLive !== live) region.ariaLive = live;
  }
}

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) seen.set(target, isIntersecting);
  update();
});
document.addEventListener('focusin', update);
document.addEventListener('focusout', update);

/**
 * Announces the changes of an element only while it is on the screen, and while the visitor is not at work in another
 * section: one key in the text field changes what several sections say.
 */
export function announced(element: HTMLElement): HTMLElement {
  element.ariaLive = 'off';
  watcher.observe(element);
  return element;
}
