// Lists the outputs that a bend changes, and says by how much.

import type { ForwardResult } from '../../attention/messages.js';
import { formatNumber, formatPercent } from '../../base/format.js';
import { el, meter, rich, word } from '../../dom/dom.js';
import { isOnScreen, say } from '../../dom/live_region.js';
import { whenSeen } from '../../dom/when_seen.js';
import { viewOf } from '../../maps/step_view.js';
import { chosen, whenChanged, withNumbers, type App } from '../../state/app.js';

const mostWords = 5;

/** Lists the outputs that changed, and the entropy of the selected head, compared with the pass without a bend. */
export function effect(app: App): HTMLElement {
  const summary = el('p', { class: 'effect-summary' });
  const list = el('ol', { class: 'under bars effect-list' });

  const show = withNumbers(app, (result) => {
    const { head } = chosen(app, result);
    const { straight, statistics } = result;
    element.hidden = !straight;
    if (!straight) return;
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

  const element = el('div', { class: 'under effect' }, summary, list);
  show();
  let shown = app.result.get();
  app.result.watch(
    whenSeen(element, () => {
      const before = summary.textContent!;
      show();
      if (shown && !element.hidden && summary.textContent !== before && isOnScreen(element)) say(summary.textContent!, element);
      shown = app.result.get();
    }),
  );
  whenChanged(app, ['head'], show);
  return element;
}

interface Change {
  readonly label: string;
  /** Norm of the difference divided by the norm of the output without the bend. */
  readonly share: number;
}

function changesOf(result: ForwardResult): Change[] {
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

export function shareLine(label: string, share: number): HTMLElement {
  const percent = el('span', { class: 'number' }, formatPercent(share, share < 0.1 ? 1 : 0));
  return el('li', {}, word(label), meter(share, 'effect-bar'), percent);
}
