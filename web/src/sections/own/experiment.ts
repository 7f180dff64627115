// An experiment with two sentences that differ in a word: each part of the model in turn gets its value from the second sentence,
// and maps show how far that moves the answer.

import { maxCharacters, tokenNames } from '../../attention/tokens.js';
import { formatNumber, messageOf } from '../../base/format.js';
import { el, setText, word } from '../../dom/dom.js';
import { createLegend } from '../../maps/legend.js';
import { createMapFrame } from '../../maps/map_frame.js';
import { largestOf, type MatrixView } from '../../maps/heat_map.js';
import type { Matrix } from '../../attention/matrix.js';
import type { Cell } from '../../maps/matrix_map.js';
import { linesOf, textsOf, wordsOf } from './change.js';
import type { ModelClient } from '../../model/client.js';
import type { Pair, Patched, PatchKind } from '../../model/messages.js';
import { goToElement } from '../../page/places.js';
import { update, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { shareLine } from '../bend/bend.js';
import { experimentProgram, programBox, type ProgramModel } from './program.js';
import { readyExperiments, type Ready } from './ready_experiments.js';

export interface ExperimentModel extends ProgramModel {
  /** Differs for each model that is opened. */
  readonly key: string;
  readonly view: ViewName;
  readonly samples: readonly [string, string];
  /** True for the little Llama, whose experiments are ready. */
  readonly ready: boolean;
}

type MapName = PatchKind | 'estimate';

const maps: readonly (readonly [name: MapName, title: string, line: string])[] = [
  ['heads', 'By head', 'One head at a time gets its output from the second sentence.'],
  ['estimate', 'By head, estimated', 'The same from one gradient (attribution): fast, and only a first guess.'],
  ['positions', 'By position', 'What stands at one word, before one layer, comes from the second sentence.'],
];

const lead =
  'Two sentences that differ in a word. Each part of the model in turn gets its value from the second one; the color is how far that moves the answer.';

/** The change of the metric in each part; parts that are still to come have none. */
export function changeView(name: MapName, { labels }: Pair, { shape, data }: Matrix, clean: number, known = data.length): MatrixView {
  const [rows, cols] = shape as [number, number];
  const numbers = (count: number): string[] => Array.from({ length: count }, (_, at) => String(at + 1));
  const [first, second] = labels.map(tokenNames) as [readonly string[], readonly string[]];
  const both = first.map((label, at) => (labels[0][at] === labels[1][at] ? label : `${label}/${second[at]}`));
  return {
    ...{ rows, cols, scale: 'signed', rowLabels: numbers(rows), axes: ['layer', name === 'positions' ? 'word' : 'head'] },
    colLabels: name === 'positions' ? both : numbers(cols),
    data: Float32Array.from(data, (value, at) => (at < known ? value - clean : 0)),
  };
}

export function createExperiment(app: App, client: ModelClient) {
  const texts = el('textarea', { id: 'lab-texts', rows: 2, maxlength: maxCharacters, dir: 'auto', spellcheck: 'false' });
  const tooMany = el('p', { class: 'hint lab-too-many', role: 'status' });
  const words = [1, 2].map((at) => el('input', { id: `lab-word-${at}`, type: 'text', maxlength: 40, spellcheck: 'false', placeholder: 'likeliest' }));
  const run = el('button', { class: 'secondary', id: 'lab-run', onclick: () => void start() }, 'Run the experiment');
  const stop = el('button', { class: 'secondary', id: 'lab-stop', hidden: true, onclick: () => end() }, 'Stop');
  const progress = el('progress', { class: 'own-progress', 'aria-label': 'The experiment', max: 1, hidden: true });
  const status = el('p', { class: 'hint lab-status', role: 'status' });
  const ready = el('div', { class: 'row lab-ready', role: 'group', 'aria-label': 'Experiments that work on this model' });
  const readyLine = el('p', { class: 'hint' });
  const cards = maps.map((map) => createCard(...map));
  const title = el('h4', { class: 'own-asked' });
  const lists = [1, 2].map(() => el('ol', { class: 'under bars effect-list lab-likely' }));
  const beforeAfter = lists.map((list, at) => el('div', { class: 'slim' }, el('p', { class: 'control-name' }, at === 0 ? 'Before' : 'After'), list));
  const changed = el('div', { class: 'lab-changed', hidden: true, role: 'status' }, title, el('div', { class: 'lab-pair' }, ...beforeAfter));
  const program = programBox('experiment');
  const results = el('div', { hidden: true }, el('div', { class: 'lab-maps' }, ...cards.map(({ element }) => element)), changed, program.element);
  const answers = words.map((input, at) => el('label', { class: 'row field' }, at === 0 ? 'Answer' : 'against', input));
  const element = el(
    'section',
    { class: 'part lab-experiment', 'aria-label': 'Experiment' },
    el('h3', {}, 'Which part makes the difference?'),
    el('p', { class: 'hint' }, lead),
    ready,
    readyLine,
    el('label', { for: 'lab-texts', class: 'control-name' }, 'Two sentences of equally many tokens, one a line'),
    texts,
    tooMany,
    el('div', { class: 'row lab-controls' }, ...answers, run, progress, stop),
    status,
    results,
  );
  let model: ExperimentModel | undefined;
  let pair: Pair | undefined;
  let runs = 0;
  let running = false;

  function createCard(name: MapName, mapTitle: string, line: string) {
    const head = [el('h4', { class: 'own-asked' }, mapTitle), el('p', { class: 'hint' }, line)];
    const readout = el('p', { class: 'readout number' });
    const legend = createLegend('signed');
    const onChoose = (cell: Cell): void => void choose(name === 'positions' ? 'positions' : 'heads', cell);
    const frame = createMapFrame({ maxCell: 52, onPoint: point, onChoose }, mapTitle.toLowerCase());
    let content: readonly [Matrix, number | undefined] | undefined;

    function point(cell: Cell | null): void {
      const view = frame.shown()?.view;
      frame.map.highlight(cell);
      readout.textContent = cell && view ? formatNumber(view.data[cell.row * view.cols + cell.col]!) : '\u00a0';
    }

    function draw(): void {
      if (!content || !pair || !model) return;
      const view = changeView(name, pair, content[0], name === 'estimate' ? 0 : pair.metrics[0], content[1]);
      legend.show({ masked: false, limit: largestOf(view) });
      frame.show({ view, title: mapTitle }, 'change', model.view);
    }

    const under = el('div', { class: 'row apart low map-under' }, legend.element, frame.saves);
    return {
      element: el('div', { class: 'column card' }, ...head, frame.body, readout, under),
      draw,
      /** Shows metrics, of which so many are known, or why there are none. */
      show(matrix: Matrix | string, known?: number): void {
        const why = typeof matrix === 'string' ? matrix : undefined;
        frame.body.hidden = under.hidden = why !== undefined;
        readout.textContent = why ?? '\u00a0';
        content = typeof matrix === 'string' ? undefined : [matrix, known];
        draw();
      },
    };
  }

  const show = (name: MapName, matrix: Matrix | string, known?: number): void =>
    cards[maps.findIndex(([each]) => each === name)]!.show(matrix, known);

  async function choose(kind: PatchKind, { row, col }: Cell): Promise<void> {
    if (!pair || running) return;
    const part = kind === 'heads' ? `head ${col + 1} of layer ${row + 1}` : `“${pair.labels[1][col]!}” before layer ${row + 1}`;
    try {
      const found = await client.call('changed', kind, row, col);
      title.textContent = `Next word with ${part} from the second sentence`;
      found.forEach((likely, at) => lists[at]!.replaceChildren(...likely.map(({ label, share }) => shareLine(label, share))));
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
    const [own, of] = [runs, model];
    setRunning(true);
    progress.removeAttribute('value');
    try {
      const begun = await client.call('pair', textsOf(app.state.get(), of.samples), wordsOf(app.state.get()));
      if (own !== runs) return;
      pair = begun;
      tell(begun);
      results.hidden = false;
      show('estimate', begun.attribution);
      for (const kind of ['heads', 'positions'] as const) {
        const values = await client.call('patch', kind);
        if (own !== runs) return;
        show(kind, values);
      }
      program.show(experimentProgram(of, begun));
    } catch (error) {
      if (own === runs) status.textContent = messageOf(error);
    }
    if (own === runs) setRunning(false);
  }

  function tell({ words: [one, two], metrics }: Pair): void {
    const [clean, corrupt] = metrics.map((value) => el('strong', { class: 'number' }, formatNumber(value))) as [HTMLElement, HTMLElement];
    const said = ['The logit of ', word(one), ' minus that of ', word(two), ' is ', clean, ' after the first sentence and ', corrupt];
    status.replaceChildren(
      ...said,
      ' after the second. Maps show how far one part alone moves the first number. Choose a cell to see the next words.',
    );
  }

  texts.addEventListener('input', () => update(app, { labTexts: texts.value }, 'lab-texts'));
  for (const input of words) {
    input.addEventListener('input', () => update(app, { labWords: words.map(({ value }) => value).join('\n') }, 'lab-words'));
    input.addEventListener('keydown', ({ key }) => key === 'Enter' && void start());
  }
  app.state.watch((state, before) => {
    const given = [state.labTexts, ...wordsOf(state)];
    [texts, ...words].forEach((field, at) => field.value === given[at] || (field.value = given[at]!));
    const { length } = linesOf(state.labTexts);
    setText(tooMany, length > 2 ? `Only the first two of ${length} lines are compared.` : '');
    if (before && (state.labTexts !== before.labTexts || state.labWords !== before.labWords)) clear();
  });

  return {
    element,
    follow(next: ExperimentModel): void {
      const before = model;
      model = next;
      if (next.view !== before?.view) cards.forEach(({ draw }) => draw());
      if (next.key === before?.key) return;
      clear();
      texts.placeholder = next.samples.join('\n');
      const begin = ({ state, line }: Ready): void => {
        update(app, state);
        readyLine.textContent = line;
        void start();
        // Steering changes the text that is written further up on the page.
        if (state.labChange === 'steer') goToElement(document.querySelector<HTMLElement>('.own-continue'));
      };
      ready.replaceChildren(...readyExperiments.map((each) => el('button', { class: 'secondary', onclick: () => begin(each) }, each.title)));
      ready.hidden = !next.ready;
      readyLine.textContent = '';
    },
    take({ patched, known, values }: Patched): void {
      if (!running || !pair) return;
      progress.value = (known / values.data.length + (patched === 'positions' ? 1 : 0)) / 2;
      show(patched, values, known);
    },
  };
}
