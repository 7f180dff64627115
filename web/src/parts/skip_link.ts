// The link that skips the header.

/** Moves the focus by script, because the part of the address after '#' holds the page's state. */
export function skipLink(): void {
  document.getElementById('skip-link')?.addEventListener('click', (event) => {
    event.preventDefault();
    document.getElementById('page')?.focus();
  });
}
