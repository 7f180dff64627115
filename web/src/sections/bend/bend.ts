// "Bend it": the visitor changes one part of the pass, and sees the effect on the weights and on the output.

import type { ForwardResult } from '../../attention/messages.js';
import { headName } from '../../attention/patterns.js';
import { formatNumber, formatPercent } from '../../base/format.js';
import { createHeadPicker } from '../../controls/head_picker.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, meter, panel, rich, word } from '../../dom/dom.js';
import { announced } from '../../dom/live_region.js';
import { whenSeen } from '../../dom/when_seen.js';
import { createLegend } from '../../maps/legend.js';
import { createWeightsFrame } from '../../maps/map_frame.js';
import { viewOf } from '../../maps/step_view.js';
import { chosen, inView, update, whenChanged, withNumbers, withResult, type App } from '../../state/app.js';
import { bendControls, resetButton } from './bend_controls.js';
import { weightEditor } from './bend_weight.js';

export function bendSection(app: App): HTMLElement {
  const lead = 'Change something and see what it does to the weights and to the output.';
  const picture = el('div', { class: 'column bend-picture' }, weightsMap(app), weightEditor(app));
  const all = el('div', { class: 'bend' }, bendControls(app), picture, effect(app));
  return withResult(app, panel('bend', { title: 'Bend it', lead, tools: resetButton(app) }, all));
}

/** The weights of the selected head, with a switch between heads. */
function weightsMap(app: App): HTMLElement {
  const picker = createHeadPicker((head) => update(app, { head }));
  const name = el('span', { class: 'head-name', 'aria-hidden': 'true' });
  const legend = createLegend('weights');
  const views = createViewSwitch(app, 'bendView', 'Show the weights as');
  const { body, map, ...frame } = createWeightsFrame(app, 'these weights');

  const show = withNumbers(app, (result) => {
    const { head } = chosen(app, result);
    const view = viewOf(result, 'weights', head);
    picker.show(result, result.bend.muted, (index) => index === head);
    name.textContent = headName(result, head);
    legend.show({ masked: view.hidden !== undefined, edited: view.edited !== undefined, muted: view.muted });
    frame.show({ view, title: `Bent weights of head ${head + 1}, ${headName(result, head)}` }, `head ${head + 1}`, views.current());
    point();
  });

  const point = withNumbers(app, (result) => {
    const { query, key } = inView(app, result);
    map.highlight({ row: query, col: key });
  });

  show();
  app.result.watch(whenSeen(body, show));
  app.pointed.watch(whenSeen(body, point));
  whenChanged(app, ['head', 'bendView'], show);
  whenChanged(app, ['query', 'key'], point);
  return el(
    'div',
    {},
    el('div', { class: 'row step-controls' }, picker.element, name, views.element),
    body,
    el('div', { class: 'row apart low map-under' }, legend.element, frame.saves),
  );
}

const mostWords = 5;

/** Lists the outputs that changed, and the entropy of the selected head, compared with the pass without a bend. */
function effect(app: App): HTMLElement {
  const summary = el('p', { class: 'lead effect-summary' });
  const list = el('ol', { class: 'effect-list' });

  const show = withNumbers(app, (result) => {
    const { head } = chosen(app, result);
    const { straight, statistics } = result;
    if (!straight) {
      summary.textContent = 'Nothing is changed yet.';
      list.replaceChildren();
      return;
    }
    const [before, after] = [straight.statistics.entropy[head]!, statistics.entropy[head]!];
    const entropy = `Head ${head + 1}’s entropy: ${formatNumber(before, 2)} → ${formatNumber(after, 2)}. `;
    if (result.bend.withoutOutput) {
      const { headDim } = result;
      const sideBySide = `Without W_O, columns 1 to ${headDim} of the output are simply head 1, the next ${headDim} head 2, and so on.`;
      summary.replaceChildren(entropy, ...rich(sideBySide));
      list.replaceChildren();
      return;
    }
    const changes = changesOf(result).filter(({ share }) => share >= 0.0005);
    summary.textContent =
      entropy +
      (changes.length === 0
        ? 'No output changed by 0.1 % or more.'
        : `${changes.length} of ${result.tokens.length} outputs changed${changes.length > mostWords ? ', these the most' : ''}:`);
    list.replaceChildren(...changes.slice(0, mostWords).map(({ label, share }) => shareLine(label, share)));
  });

  const element = announced(el('div', { class: 'effect' }, el('h3', {}, 'What it does'), summary, list));
  show();
  app.result.watch(whenSeen(element, show));
  whenChanged(app, ['head'], show);
  return element;
}

interface Change {
  readonly label: string;
  /** Norm of the difference divided by the norm of the output without the bend. */
  readonly share: number;
}

export function changesOf(result: ForwardResult): Change[] {
  const { straight, trace } = result;
  const cols = trace.output.shape.at(-1)!;
  const { rowLabels } = viewOf(result, 'weights', 0);
  const length = (values: Float32Array) => Math.hypot(...values);
  return rowLabels
    .map((label, row) => {
      const part = (data: Float32Array) => data.subarray(row * cols, (row + 1) * cols);
      const before = part(straight!.output.data);
      const difference = part(trace.output.data).map((value, col) => value - before[col]!);
      return { label, share: length(difference) / (length(before) || 1) };
    })
    .sort((a, b) => b.share - a.share);
}

/** A word with a bar and a percentage. */
export function shareLine(label: string, share: number): HTMLElement {
  const percent = el('span', { class: 'number' }, formatPercent(share, share < 0.1 ? 1 : 0));
  return el('li', {}, word(label), meter(share, 'effect-bar'), percent);
}
