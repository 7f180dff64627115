// A row of buttons for the values of a field of the state. The button of the current value is pressed.

import { el, type Child } from '../dom/dom.js';
import { update, type App } from '../state/app.js';
import type { FieldName, PageState } from '../state/page_state.js';

export interface Option<T> {
  readonly value: T;
  readonly label: string | readonly Child[];
  readonly id?: string;
  /** Other fields that a press changes. */
  readonly change?: Partial<PageState>;
}

export function choiceOf<N extends FieldName>(
  app: App,
  field: N,
  options: readonly Option<PageState[N]>[],
  attributes: Parameters<typeof el>[1] = {},
): HTMLElement {
  const buttons = options.map(({ value, label, id, change }) => {
    const button = el('button', { id, onclick: () => update(app, { [field]: value, ...change }) }, ...(typeof label === 'string' ? [label] : label));
    app.state.watch((state) => button.setAttribute('aria-pressed', String(state[field] === value)));
    return button;
  });
  return el('span', { class: 'segments', ...attributes }, ...buttons);
}
