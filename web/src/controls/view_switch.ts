// The switch between heat maps and tables of numbers.

import type { App } from '../state/app.js';
import { viewNames, type FieldName, type ViewName } from '../state/page_state.js';
import { choiceOf } from './choice.js';

type ViewField = Extract<FieldName, `${string}View`>;

/** Makes a switch for one field of the state. To learn of a change, watch the state. */
export function createViewSwitch(app: App, field: ViewField, label: string) {
  const current = (): ViewName => app.state.get()[field];
  const options = viewNames.map((value) => ({ value, label: value === 'colors' ? 'Colors' : 'Numbers' }));
  const element = choiceOf(app, field, options, { class: 'segments view-switch', role: 'group', 'aria-label': label });
  return { element, current };
}
