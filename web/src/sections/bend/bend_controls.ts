// The controls that bend a pass, each in the step that it changes. They change fields of the state, and show the current values.

import { maxWindow, temperatureRange, unbent, type Bend, type Divisor } from '../../attention/bend.js';
import { formatNumber, formatRoot } from '../../base/format.js';
import { choiceOf, stateSwitch } from '../../controls/choice.js';
import { createHeadPicker, toggleMuted } from '../../controls/head_picker.js';
import { el, rich, setText, type Child } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import type { StepId } from '../../state/page_state.js';
import { weightEditor } from './bend_weight.js';

export const bendControls = (app: App): readonly (readonly [step: StepId, ...controls: HTMLElement[]])[] => [
  ['scale', temperatureControl(app), divisorChoice(app)],
  ['mask', stateSwitch(app, 'causal', { id: 'bend-causal', name: ['Causal'], line: 'no word sees later words' }), windowRange(app)],
  ['softmax', weightEditor(app)],
  ['merge', muteButtons(app)],
  [
    'output',
    stateSwitch(app, 'withoutOutput', {
      id: 'bend-output',
      name: rich('W_O'),
      line: 'mixes the heads; without it, their outputs only stand side by side',
      shows: false,
    }),
  ],
];

/** A slider with its label, or a group of buttons with its name, and a line about it. */
function control(id: string, name: string, line: readonly Child[], ...content: HTMLElement[]): HTMLElement {
  const isGroup = content.length === 1;
  const title = isGroup ? el('span', { id, class: 'control-name' }, name) : el('label', { for: id, class: 'control-name' }, name);
  return el(
    'div',
    { class: 'control', ...(isGroup && { role: 'group', 'aria-labelledby': id }) },
    el('div', { class: 'row control-head' }, title, ...content),
    el('p', { class: 'hint', id: `${id}-hint` }, ...line),
  );
}

interface Range {
  readonly id: string;
  readonly name: string;
  readonly line: readonly Child[];
  readonly least: number;
  readonly most: number;
  readonly step: number;
  readonly read: (state: Bend) => number;
  readonly write: (position: number) => Partial<Bend>;
  readonly say: (state: Bend) => string;
}

function range(app: App, { id, name, line, least, most, step, read, write, say }: Range): HTMLElement {
  const slider = el('input', {
    ...{ type: 'range', id, min: least, max: most, step },
    'aria-describedby': `${id}-hint`,
  });
  const value = el('output', { for: id, class: 'number control-value' });
  slider.addEventListener('input', () => update(app, write(Number(slider.value)), id));
  app.state.watch((state) => {
    slider.value = String(read(state));
    value.textContent = say(state);
    slider.setAttribute('aria-valuetext', say(state));
  });
  return control(id, name, line, slider, value);
}

const windowRange = (app: App): HTMLElement =>
  range(app, {
    id: 'bend-window',
    name: 'Window',
    line: ['How many words to each side a word may look at.'],
    ...{ least: 0, most: maxWindow + 1, step: 1 },
    read: ({ window }) => (window < 0 ? maxWindow + 1 : window),
    write: (position) => ({ window: position > maxWindow ? -1 : position }),
    say: ({ window }) => (window < 0 ? 'all' : String(window)),
  });

/** The slider is logarithmic; its steps of 0.05 include 1. */
const temperatureControl = (app: App): HTMLElement => {
  const [least, most] = temperatureRange.map(Math.log10) as [number, number];
  return range(app, {
    id: 'bend-temperature',
    name: 'Temperature',
    line: ['Divides, too. Below 1 the largest weight takes more, above 1 the weights become more equal.'],
    ...{ least, most, step: 0.05 },
    read: ({ temperature }) => Math.log10(temperature),
    write: (position) => ({ temperature: Number((10 ** position).toPrecision(3)) }),
    say: ({ temperature }) => formatNumber(temperature, 2),
  });
};

function divisorChoice(app: App): HTMLElement {
  const option = (value: Divisor, label: string) => {
    const root = el('span', {});
    app.result.watch((result) => {
      const width = { head: result?.headDim, model: result?.embedDim, none: undefined }[value];
      setText(root, width === undefined ? '' : ` = ${formatRoot(width)}`);
    });
    return { value, label: [...rich(label), root], id: `bend-divisor-${value}` };
  };
  const options = [option('head', '√d_head'), option('model', '√d_model'), option('none', 'nothing')];
  const line = '√d_model is a common mistake: the weights become too equal. Without division one word takes nearly everything.';
  return control('bend-divisor', 'Scores ÷', rich(line), choiceOf(app, 'divisor', options));
}

function muteButtons(app: App): HTMLElement {
  const row = createHeadPicker((head) => toggleMuted(app, head), { verb: 'mute ', class: 'segments heads mutes' });
  const show = () => {
    const { muted, heads } = app.state.get();
    row.show(app.result.get() ?? { heads }, muted, (head) => muted.includes(head));
  };
  app.state.watch(show);
  app.result.watch(show);
  const line = 'The output of a muted head becomes 0. Its weights stay, but nothing uses them.';
  return control('bend-mute', 'Mute heads', [line], row.element);
}

export function resetButton(app: App): HTMLElement {
  const button = el('button', { class: 'secondary', id: 'bend-reset', onclick: () => update(app, unbent) }, 'Undo all changes');
  app.result.watch((result) => button.classList.toggle('is-idle', !result?.straight));
  return button;
}
