// Light or dark theme: the system's, until the visitor chooses one.

import { createStore, type Store } from '../base/store.js';
import { el } from './dom.js';

export type Theme = 'light' | 'dark';

const key = 'multihead-theme';
const system = matchMedia('(prefers-color-scheme: dark)');

/** The visitor's earlier choice. If the browser forbids storage, a choice lasts until reload. */
function remembered(): Theme | undefined {
  try {
    const value = localStorage.getItem(key);
    return value === 'light' || value === 'dark' ? value : undefined;
  } catch {
    return undefined;
  }
}

function remember(choice: Theme): void {
  try {
    localStorage.setItem(key, choice);
  } catch {
    // Storage is forbidden: the choice is not kept.
  }
}

let choice = remembered();
const current = (): Theme => choice ?? (system.matches ? 'dark' : 'light');

export const theme: Store<Theme> = createStore(current());

/**
 * The page has two colors for the browser's own bars, one per theme. Both elements get the color of the theme in use.
 */
const bars = [...document.querySelectorAll<HTMLMetaElement>('meta[name=theme-color]')];
const barColors: Readonly<Record<string, string>> = Object.fromEntries(
  bars.map(({ media, content }) => [media.includes('dark') ? 'dark' : 'light', content]),
);

function apply(): void {
  if (choice) document.documentElement.dataset['theme'] = choice;
  theme.set(current());
  for (const bar of bars) bar.content = barColors[current()] ?? bar.content;
}

/** `names`: the names of the button, in the dark theme and in the light one. */
export function themeToggle(names = ['Use the light theme', 'Use the dark theme']): HTMLElement {
  const icon = el('span', { class: 'theme-icon', 'aria-hidden': 'true' });
  const button = el('button', { class: 'icon-button', type: 'button' }, icon);
  button.addEventListener('click', () => {
    choice = current() === 'dark' ? 'light' : 'dark';
    remember(choice);
    apply();
  });
  theme.watch((now) => {
    button.setAttribute('aria-label', names[now === 'dark' ? 0 : 1]!);
  });
  return button;
}

system.addEventListener('change', apply);
apply();
