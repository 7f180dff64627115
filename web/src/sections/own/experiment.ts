// An experiment with two sentences that differ in a word: each part of the model in turn gets its value from the second sentence,
// and maps show how far that moves the answer.

import { maxCharacters, tokenNames } from '../../attention/tokens.js';
import { formatNumber, messageOf } from '../../base/format.js';
import { el, word, type Child } from '../../dom/dom.js';
import { createLegend } from '../../maps/legend.js';
import { createMapFrame } from '../../maps/map_frame.js';
import { largestOf, type MatrixView } from '../../maps/heat_map.js';
import type { Matrix } from '../../attention/matrix.js';
import type { Cell } from '../../maps/matrix_map.js';
import { textsOf, wordsOf } from '../../model/change.js';
import type { ModelClient } from '../../model/client.js';
import type { BeforeAfter, Pair, Patched, PatchKind } from '../../model/messages.js';
import { update, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { shareLine } from '../bend/bend.js';
import { experimentProgram, programBox, type ProgramModel } from './program.js';
import type { Ready } from './ready_experiments.js';

export interface ExperimentModel extends ProgramModel {
  /** Differs for each model that is opened. */
  readonly key: string;
  readonly view: ViewName;
  readonly samples: readonly [string, string];
  /** Experiments whose results are known. */
  readonly ready: readonly Ready[];
}

type MapName = PatchKind | 'estimate';

const maps: readonly { readonly name: MapName; readonly title: string; readonly line: string }[] = [
  { name: 'heads', title: 'By head', line: 'One head at a time gets its output from the second sentence.' },
  { name: 'estimate', title: 'By head, estimated', line: 'The same from one gradient (attribution): fast, and only a first guess.' },
  { name: 'positions', title: 'By position', line: 'What stands at one word, before one layer, comes from the second sentence.' },
];

/** The change of the metric in each part; parts that are still to come have none. */
export function changeView(name: MapName, { labels }: Pair, { shape, data }: Matrix, clean: number, known = data.length): MatrixView {
  const [rows, cols] = shape as [number, number];
  const numbers = (count: number): string[] => Array.from({ length: count }, (_, at) => String(at + 1));
  const [first, second] = labels.map(tokenNames) as [readonly string[], readonly string[]];
  const differs = (at: number): boolean => labels[0][at] !== labels[1][at];
  return {
    ...{ rows, cols, scale: 'signed', rowLabels: numbers(rows), axes: ['layer', name === 'positions' ? 'word' : 'head'] },
    colLabels: name === 'positions' ? first.map((label, at) => (differs(at) ? `${label}/${second[at]}` : label)) : numbers(cols),
    data: Float32Array.from(data, (value, at) => (at < known ? value - clean : 0)),
    ...(known === 0 && { blank: true }),
  };
}

export function createExperiment(app: App, client: ModelClient) {
  const texts = el('textarea', { id: 'lab-texts', rows: 2, maxlength: maxCharacters, dir: 'auto', spellcheck: 'false' });
  const words = [1, 2].map((at) => el('input', { id: `lab-word-${at}`, type: 'text', maxlength: 40, spellcheck: 'false', placeholder: 'likeliest' }));
  const run = el('button', { class: 'secondary', id: 'lab-run', onclick: () => void start() }, 'Run the experiment');
  const stop = el('button', { class: 'secondary', id: 'lab-stop', hidden: true, onclick: () => end() }, 'Stop');
  const progress = el('progress', { class: 'own-progress', 'aria-label': 'The experiment', max: 1, hidden: true });
  const status = el('p', { class: 'hint lab-status', role: 'status' });
  const ready = el('div', { class: 'row lab-ready', role: 'group', 'aria-label': 'Experiments that work on this model' });
  const readyLine = el('p', { class: 'hint' });
  const cards = maps.map(({ name, title, line }) => createCard(name, title, line));
  const changedTitle = el('h4', { class: 'own-asked' });
  const changedLists = [el('ol', { class: 'effect-list lab-likely' }), el('ol', { class: 'effect-list own-likely' })];
  const changed = el(
    'div',
    { class: 'lab-changed', hidden: true, role: 'status' },
    changedTitle,
    el(
      'div',
      { class: 'row' },
      ...changedLists.map((list, at) => el('div', { class: 'slim' }, el('p', { class: 'control-name' }, at === 0 ? 'Before' : 'After'), list)),
    ),
  );
  const program = programBox('experiment');
  const results = el('div', { hidden: true }, el('div', { class: 'lab-maps' }, ...cards.map(({ element }) => element)), changed, program.element);
  const element = el(
    'section',
    { class: 'part lab-experiment', 'aria-label': 'Experiment' },
    el('h3', {}, 'Which part makes the difference?'),
    el(
      'p',
      { class: 'hint' },
      'Two sentences that differ in a word. Each part of the model in turn gets its value from the second one; the color is how far that moves the answer.',
    ),
    ready,
    readyLine,
    el('label', { for: 'lab-texts', class: 'control-name' }, 'Two sentences of equally many tokens, one a line'),
    texts,
    el(
      'div',
      { class: 'row lab-controls' },
      ...words.map((input, at) =>
        el('span', { class: 'row' }, el('label', { for: input.id, class: 'control-name' }, at === 0 ? 'Answer' : 'against'), input),
      ),
      run,
      progress,
      stop,
    ),
    status,
    results,
  );
  let model: ExperimentModel | undefined;
  let pair: Pair | undefined;
  let runs = 0;
  let running = false;
  let asked = 0;

  function createCard(name: MapName, title: string, line: string) {
    const kind = name === 'positions' ? 'positions' : 'heads';
    const readout = el('p', { class: 'readout number' }, '\u00a0');
    const legend = createLegend('signed');
    const frame = createMapFrame({ maxCell: 52, onPoint: (cell) => point(cell), onChoose: (cell) => void choose(kind, cell) }, title.toLowerCase());
    const problem = el('p', { class: 'hint', hidden: true });
    let content: readonly [Matrix, number] | undefined;

    function point(cell: Cell | null): void {
      const view = frame.shown()?.view;
      frame.map.highlight(cell);
      readout.textContent = cell && view ? formatNumber(view.data[cell.row * view.cols + cell.col]!) : '\u00a0';
    }

    const element = el(
      'div',
      { class: 'column card' },
      el('h4', { class: 'own-asked' }, title),
      el('p', { class: 'card-line' }, line),
      problem,
      frame.body,
      readout,
      el('div', { class: 'row apart low map-under' }, legend.element, frame.saves),
    );
    return {
      element,
      name,
      show(matrix: Matrix, known?: number): void {
        content = [matrix, known ?? matrix.data.length];
        this.draw();
      },
      fail(why: string): void {
        problem.textContent = why;
        problem.hidden = why === '';
        frame.body.hidden = why !== '';
      },
      draw(): void {
        if (!content || !pair || !model) return;
        const [matrix, known] = content;
        const view = changeView(name, pair, matrix, name === 'estimate' ? 0 : pair.metrics[0], known);
        legend.show({ masked: false, limit: largestOf(view) });
        frame.show({ view, title }, 'change', model.view);
      },
      forget: (): void => void (content = undefined),
    };
  }

  const cardOf = (name: MapName) => cards.find((card) => card.name === name)!;

  /** Shows what a part changes in the next word. */
  async function choose(kind: PatchKind, { row, col }: Cell): Promise<void> {
    if (!pair || running) return;
    asked += 1;
    const own = asked;
    try {
      const lists: BeforeAfter = await client.call('changed', kind, row, col);
      if (own !== asked) return;
      const part = kind === 'heads' ? [`head ${col + 1} of layer ${row + 1}`] : [word(pair.labels[1][col]!), ` before layer ${row + 1}`];
      changedTitle.replaceChildren('Next word with ', ...(part as Child[]), ' from the second sentence');
      lists.forEach((list, at) => changedLists[at]!.replaceChildren(...list.map(({ label, share }) => shareLine(label, share))));
      changed.hidden = false;
    } catch (error) {
      status.textContent = messageOf(error);
    }
  }

  function setRunning(now: boolean): void {
    const hadFocus = document.activeElement === (now ? run : stop);
    running = now;
    run.hidden = now;
    stop.hidden = progress.hidden = !now;
    if (hadFocus) (now ? stop : run).focus();
  }

  function end(): void {
    runs += 1;
    if (running) void client.call('stop').catch(() => {});
    setRunning(false);
  }

  function clear(): void {
    end();
    pair = undefined;
    results.hidden = changed.hidden = true;
    status.textContent = '';
    program.show(undefined);
  }

  async function start(): Promise<void> {
    if (!model) return;
    clear();
    const own = runs;
    setRunning(true);
    progress.removeAttribute('value');
    try {
      const begun = await client.call('pair', textsOf(app.state.get(), model.samples), wordsOf(app.state.get()));
      if (own !== runs) return;
      pair = begun;
      tell(begun);
      cards.forEach((card) => card.forget());
      results.hidden = false;
      const { attribution } = begun;
      cardOf('estimate').fail(typeof attribution === 'string' ? `No estimate for this model: ${attribution}` : '');
      if (typeof attribution !== 'string') cardOf('estimate').show(attribution);
      for (const kind of ['heads', 'positions'] as const) {
        const values = await client.call('patch', kind);
        if (own !== runs) return;
        cardOf(kind).show(values);
      }
      const of = model;
      program.show(() => experimentProgram(of, begun));
    } catch (error) {
      if (own === runs) status.textContent = messageOf(error);
    }
    if (own === runs) setRunning(false);
  }

  function tell({ words: [one, two], metrics: [clean, corrupt] }: Pair): void {
    const logit = (value: number): HTMLElement => el('strong', { class: 'number' }, formatNumber(value));
    status.replaceChildren(
      ...['The logit of ', word(one), ' minus that of ', word(two), ' is '],
      ...[logit(clean), ' after the first sentence and ', logit(corrupt), ' after the second. '],
      ...['Maps show how far one part alone moves the first number. Choose a cell to see the next words.'],
    );
  }

  function fill(): void {
    const state = app.state.get();
    if (texts.value !== state.labTexts) texts.value = state.labTexts;
    wordsOf(state).forEach((value, at) => {
      const input = words[at]!;
      if (input.value !== value) input.value = value;
    });
  }

  texts.addEventListener('input', () => update(app, { labTexts: texts.value }, 'lab-texts'));
  for (const input of words) {
    input.addEventListener('input', () => update(app, { labWords: words.map(({ value }) => value).join('\n') }, 'lab-words'));
    input.addEventListener('keydown', ({ key }) => key === 'Enter' && void start());
  }
  app.state.watch((state, before) => {
    fill();
    if (before && (state.labTexts !== before.labTexts || state.labWords !== before.labWords)) clear();
  });

  return {
    element,
    follow(next: ExperimentModel): void {
      if (next.key !== model?.key) {
        clear();
        texts.placeholder = next.samples.join('\n');
        ready.replaceChildren(
          ...next.ready.map((each) => {
            const begin = (): void => {
              update(app, each.state);
              readyLine.textContent = each.line;
              void start();
            };
            return el('button', { class: 'secondary', onclick: begin }, each.title);
          }),
        );
        ready.hidden = next.ready.length === 0;
        readyLine.textContent = '';
      }
      const sameView = next.view === model?.view;
      model = next;
      if (!sameView) cards.forEach((card) => card.draw());
    },
    /** Takes the metrics of a patch that runs. */
    take({ patched, known, values }: Patched): void {
      if (!running || !pair) return;
      progress.value = (known / values.data.length + (patched === 'positions' ? 1 : 0)) / 2;
      cardOf(patched).show(values, known);
    },
    clear,
  };
}
