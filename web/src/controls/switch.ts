// A switch for a field of the state that is on or off.

import { el, type Child } from '../dom/dom.js';
import { update, type App } from '../state/app.js';
import type { FieldName, PageState } from '../state/page_state.js';

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
