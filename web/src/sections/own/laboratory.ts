// The laboratory of a language model: what each layer would say next, how likely each word was, and experiments. Loaded once an
// opened model is seen.

import '../../styles/laboratory.css';
import { tokenNames } from '../../attention/tokens.js';
import { formatNumber, formatPercent, messageOf } from '../../base/format.js';
import { el, word } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { colorScale } from '../../maps/color_scale.js';
import { createLegend } from '../../maps/legend.js';
import { createMapFrame, saveButtons } from '../../maps/map_frame.js';
import type { MatrixView } from '../../maps/heat_map.js';
import type { Cell } from '../../maps/matrix_map.js';
import type { ModelClient } from '../../model/client.js';
import type { Lens } from '../../model/messages.js';
import type { App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { shareLine } from '../bend/bend.js';
import { createExperiment, type ExperimentModel } from './experiment.js';
import { lensProgram, programBox } from './program.js';

/** Natural logarithm of the probability at which a word has the strongest color: 1 in 3,000. */
const mostSurprising = 8;

export interface LaboratoryModel extends ExperimentModel {
  readonly text: string;
}

const lead =
  'Below each word stands the next word as the model guesses it, first from what comes in, then after every layer; the darker, the surer. The first row has read nothing yet, so it often repeats the word itself. Choose a cell to see its five likeliest words.';

/** Shows itself in `place`. */
export function createLaboratory(app: App, client: ModelClient, place: HTMLElement) {
  const frame = createMapFrame({ maxCell: 96, onPoint: (cell) => open(cell ?? chosen), onChoose: (cell) => open((chosen = cell)) }, 'the lens');
  const title = el('h4', { class: 'own-asked' });
  const list = el('ol', { class: 'under bars effect-list lab-likely' });
  const program = programBox('lens');
  const words = el('ol', { class: 'wrap lab-words', 'aria-label': 'How likely each token was' });
  const saves = saveButtons('the probabilities of the words', () => (shown ? { view: rowView(shown), title: 'Words' } : null));
  const problem = el('p', { class: 'hint', role: 'status' });
  const under = el('div', { class: 'row apart low map-under' }, createLegend('weights', 'probability').element, frame.saves);
  const results = el(
    'div',
    {},
    el('div', { class: 'lab-lens-maps' }, el('div', { class: 'column slim' }, frame.body, under), el('div', { class: 'slim' }, title, list)),
    el('h4', { class: 'own-asked' }, 'How likely the model found each word'),
    el('div', { class: 'row apart low lab-rated' }, words, saves),
    el('p', { class: 'hint' }, 'The stronger the color, the less the model expected the word from those before it.'),
    program.element,
  );
  const head = [el('h3', {}, 'What each layer would say next'), el('p', { class: 'hint' }, lead)];
  const lens = el('section', { class: 'part lab-lens', 'aria-label': 'Layer by layer' }, ...head, problem, results);
  const experiment = createExperiment(app, client);
  let shown: Lens | undefined;
  let chosen: Cell | undefined;
  let wanted: LaboratoryModel | undefined;
  let done = '';
  let busy = false;

  function open(cell: Cell | undefined): void {
    const view = frame.shown()?.view;
    if (!view || !shown || !cell || cell.row >= view.rows || cell.col >= view.cols) return;
    frame.map.highlight(cell);
    title.replaceChildren(`${view.rowLabels[cell.row]}, after `, word(view.colLabels![cell.col]!));
    list.replaceChildren(...shown.likeliest[cell.row * view.cols + cell.col]!.map(({ label, share }) => shareLine(label, share)));
  }

  function paintWords(): void {
    const color = colorScale(paintTheme.get(), 'signed', mostSurprising);
    const items = shown?.labels.map((label, at) => {
      const value = shown?.logProbs[at - 1];
      const said = value === undefined ? 'the first token' : `probability ${formatPercent(Math.exp(value), 1)}, ln ${formatNumber(value, 2)}`;
      const item = el('li', { title: said }, word(label), el('span', { class: 'sr-only' }, `, ${said}`));
      const { fill, ink } = color(value ?? 0);
      [item.style.backgroundColor, item.style.color] = [fill, ink];
      return item;
    });
    words.replaceChildren(...(items ?? []));
  }

  function draw(as: ViewName): void {
    if (!shown) return;
    const view = lensView(shown);
    frame.show({ view, title: 'Layer by layer' }, 'next word', as);
    if (!chosen || chosen.col >= view.cols || chosen.row >= view.rows) chosen = { row: view.rows - 1, col: view.cols - 1 };
    open(chosen);
    paintWords();
  }

  /** Looks at the latest text once the worker has time. */
  async function look(): Promise<void> {
    if (busy || !wanted || wanted.key + wanted.text === done) return;
    busy = true;
    const now = wanted;
    done = now.key + now.text;
    try {
      shown = await client.call('lens', now.text);
      problem.textContent = '';
      program.show(lensProgram(now, now.text));
      draw(now.view);
    } catch (error) {
      shown = undefined;
      problem.textContent = messageOf(error);
    }
    results.hidden = shown === undefined;
    busy = false;
    await look();
  }

  place.append(el('div', { class: 'lab' }, lens, experiment.element));
  paintTheme.watch(paintWords);
  return {
    follow(model: LaboratoryModel): void {
      const sameView = wanted?.view === model.view;
      wanted = model;
      if (!sameView) draw(model.view);
      experiment.follow(model);
      void look();
    },
    take: experiment.take,
  };
}

/** The likeliest word of each place with its probability; rows are what comes into each layer, and the output. */
export function lensView({ labels, likeliest }: Lens): MatrixView {
  const names = tokenNames(labels);
  const rows = likeliest.length / labels.length;
  return {
    ...{ rows, cols: labels.length, scale: 'weights', axes: ['', 'after the word'] },
    data: Float32Array.from(likeliest, ([first]) => first!.share),
    words: likeliest.map(([first]) => first!.label),
    rowLabels: Array.from({ length: rows }, (_, row) => (row === 0 ? 'input' : row === rows - 1 ? 'output' : `layer ${row}`)),
    colLabels: names,
  };
}

function rowView({ labels, logProbs }: Lens): MatrixView {
  const colLabels = tokenNames(labels).slice(1);
  return {
    ...{ rows: 1, cols: colLabels.length, scale: 'signed', axes: ['', 'token'], rowLabels: ['ln p'], colLabels },
    data: Float32Array.from(logProbs),
  };
}
