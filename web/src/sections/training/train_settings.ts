// The settings of a training: experiment, heads, layers, seed and learning rate.

import { choiceOf } from '../../controls/choice.js';
import { el, setText } from '../../dom/dom.js';
import { update, type App } from '../../state/app.js';
import { fields, type PageState } from '../../state/page_state.js';
import { factsOf, headChoices, kinds, layerChoices, mostSeed, rates, settingsOf } from '../../training/settings.js';

export function trainFields(app: App): HTMLElement {
  const problem = el('p', { class: 'hint train-problem', id: 'train-problem', role: 'alert', hidden: true });
  const say = (text: string): void => {
    problem.textContent = text;
    problem.hidden = text === '';
  };
  app.state.watch(() => say(''));
  return el(
    'div',
    { class: 'train-settings' },
    el(
      'div',
      { class: 'wrap fields' },
      choice(app, 'trainHeads', 'Heads', headChoices),
      choice(app, 'layers', 'Layers', layerChoices),
      seedField(app, say),
      rateField(app, say),
    ),
    problem,
  );
}

export function kindButtons(app: App): HTMLElement {
  const options = kinds.map(({ kind, title }) => ({
    ...{ value: kind, label: title, id: `train-${kind}` },
    change: { trainHeads: null, layers: null },
  }));
  return choiceOf(app, 'train', options, { role: 'group', 'aria-label': 'Experiment' });
}

/** Describes the model's task, with an example from the sequence of the maps. */
export function aboutTask(app: App): HTMLElement {
  const line = el('p', { class: 'under train-line' });
  const example = el('p', { class: 'hint line train-example' });
  app.training.view.watch(({ curve, tokens }, previous) => {
    const facts = factsOf(curve.settings.kind);
    setText(line, facts.line);
    if (tokens === previous?.tokens) return;
    const names = [...tokens].map((token) => facts.tokens[token]!);
    example.replaceChildren(...(curve.settings.kind === 'fourJobs' ? fourAnswers(names) : pattern(names)));
  });
  return el('div', { class: 'train-about' }, line, example);
}

const token = (name: string): HTMLElement => el('b', { class: 'symbol' }, name);

/** The end of the sequence, with the four correct answers. */
function fourAnswers(names: readonly string[]): (Node | string)[] {
  const latest = (wanted: string): number => names.findLastIndex((name) => wanted.includes(name));
  const places = [names.length - 2, names.length - 3, latest('aeio'), latest('★☆✦✧')];
  const first = Math.min(...places);
  if (first < 0) return ['\u00a0'];
  const [previous, before, vowel, star] = places.map((place) => token(names[place]!)) as HTMLElement[];
  return [
    ...['At the end of ', ...names.slice(first).flatMap((name) => [token(name), ' '])],
    ...['the answers are ', previous!, ' (previous), ', before!, ' (two back), ', vowel!],
    ...[' (latest vowel) and ', star!, ' (latest star).'],
  ];
}

function pattern(names: readonly string[]): (Node | string)[] {
  if (names.length === 0) return ['\u00a0'];
  const last = names.at(-1)!;
  const earlier = names.lastIndexOf(last, names.length - 2);
  const next = names[earlier + 1];
  if (earlier < 0 || next === undefined) return ['\u00a0'];
  return [
    ...['In ', ...names.flatMap((name) => [token(name), ' ']), 'the last ', token(last)],
    ...[' has occurred before, and ', token(next), ' followed it: so ', token(next), ' comes next.'],
  ];
}

function choice(app: App, name: 'trainHeads' | 'layers', label: string, options: readonly number[]): HTMLElement {
  const select = el('select', { id: `train-${name}` }, ...options.map((value) => el('option', { value }, String(value))));
  select.addEventListener('change', () => update(app, { [name]: Number(select.value) }));
  app.state.watch((state) => {
    const { heads, layers } = settingsOf(state);
    select.value = String(name === 'layers' ? layers : heads);
  });
  return field(label, select);
}

type Say = (problem: string) => void;

/** A text field for a number. An invalid text changes nothing, and the page says why. */
function numberField<N extends 'seed' | 'rate'>(app: App, name: N, problem: string, say: Say): HTMLInputElement {
  const input = el('input', {
    ...{ id: `train-${name}`, type: 'text', autocomplete: 'off', spellcheck: 'false' },
    ...{ inputmode: name === 'seed' ? 'numeric' : 'decimal', 'aria-describedby': 'train-problem' },
  });
  input.addEventListener('change', () => {
    const value = fields[name].fromText(input.value.trim().replace(',', '.'));
    input.setAttribute('aria-invalid', String(value === undefined));
    if (value === undefined) say(`${problem} “${input.value.slice(0, 20)}” changes nothing; the run goes on as it was.`);
    else update(app, { [name]: value } as Partial<PageState>);
    if (value === app.state.get()[name]) say('');
  });
  app.state.watch((state) => {
    input.value = fields[name].toText(state[name]);
    input.setAttribute('aria-invalid', 'false');
  });
  return input;
}

function seedField(app: App, say: Say): HTMLElement {
  const input = numberField(app, 'seed', `The seed is a whole number from 0 to ${mostSeed}.`, say);
  const next = (): void => update(app, { seed: (app.state.get().seed + 1) % (mostSeed + 1) });
  const another = el('button', { class: 'secondary', id: 'train-another-seed', onclick: next }, 'Another seed');
  return field('Seed', input, another);
}

const rateField = (app: App, say: Say): HTMLElement =>
  field('Learning rate', numberField(app, 'rate', `The learning rate is a number from ${rates.least.toFixed(5)} to ${rates.most}.`, say));

const field = (label: string, input: HTMLElement, ...more: HTMLElement[]): HTMLElement =>
  el('div', { class: 'row field' }, el('label', { for: input.id }, label), input, ...more);
