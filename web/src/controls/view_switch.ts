// The switch between heat maps and tables of numbers.

import { el } from '../dom/dom.js';
import { update, type App } from '../state/app.js';
import { viewNames, type FieldName, type ViewName } from '../state/page_state.js';

export interface ViewSwitch {
  readonly element: HTMLElement;
  current(): ViewName;
}

type ViewField = Extract<FieldName, `${string}View`>;

/** Makes a switch for one field of the state. To learn of a change, watch the state. */
export function createViewSwitch(app: App, field: ViewField, label: string): ViewSwitch {
  const current = (): ViewName => app.state.get()[field];
  const buttons = viewNames.map((name) => {
    const button = el('button', { type: 'button' }, name === 'colors' ? 'Colors' : 'Numbers');
    button.addEventListener('click', () => update(app, { [field]: name }));
    app.state.watch((state) => button.setAttribute('aria-pressed', String(state[field] === name)));
    return button;
  });
  const element = el('div', { class: 'segments view-switch', role: 'group', 'aria-label': label }, ...buttons);
  return { element, current };
}
