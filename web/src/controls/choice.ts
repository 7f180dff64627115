// Controls of a field of the state: a row of buttons for its values, where the button of the current value is pressed; the
// switch between heat maps and tables; a switch that is on or off.

import { el, type Child } from '../dom/dom.js';
import { update, type App } from '../state/app.js';
import { viewNames, type FieldName, type PageState } from '../state/page_state.js';

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

type ViewField = Extract<FieldName, `${string}View`>;

export function createViewSwitch(app: App, field: ViewField, label: string): HTMLElement {
  const options = viewNames.map((value) => ({ value, label: value === 'colors' ? 'Colors' : 'Numbers' }));
  return choiceOf(app, field, options, { class: 'segments view-switch', role: 'group', 'aria-label': label });
}

type FlagField = { [name in FieldName]: PageState[name] extends boolean ? name : never }[FieldName];

/** `shows` is the value of the field at which the switch is on. */
export function stateSwitch(
  app: App,
  field: FlagField,
  { id, name, line, shows = true }: { id: string; name: readonly Child[]; line: string; shows?: boolean },
): HTMLElement {
  const box = el('input', { type: 'checkbox', role: 'switch', id });
  box.addEventListener('change', () => update(app, { [field]: box.checked === shows }));
  app.state.watch((state) => {
    box.checked = state[field] === shows;
  });
  return el(
    'label',
    { class: 'switch', for: id },
    box,
    el('span', { class: 'switch-track', 'aria-hidden': 'true' }),
    el('span', {}, el('strong', {}, ...name), ' ', el('span', { class: 'switch-line' }, line)),
  );
}
