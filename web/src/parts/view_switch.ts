// The switch between heat maps and tables of numbers.

import { el } from './dom.js';

export type ViewName = 'colours' | 'numbers';

export interface ViewSwitch {
  readonly element: HTMLElement;
  current(): ViewName;
}

export function createViewSwitch(label: string, onChange: () => void): ViewSwitch {
  let current: ViewName = 'colours';
  const buttons = (['colours', 'numbers'] as const).map((name) => {
    const button = el(
      'button',
      { type: 'button', 'aria-pressed': String(name === current) },
      name === 'colours' ? 'Colours' : 'Numbers',
    );
    button.addEventListener('click', () => {
      current = name;
      for (const other of buttons) other.setAttribute('aria-pressed', String(other === button));
      onChange();
    });
    return button;
  });
  const element = el('div', { class: 'segments', role: 'group', 'aria-label': label }, ...buttons);
  return { element, current: () => current };
}
