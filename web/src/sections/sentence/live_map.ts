// The heat map of the selected head, next to the sentence.

import type { ForwardResult } from '../../attention/messages.js';
import { patternOf } from '../../attention/patterns.js';
import { tokenize, tokenNames } from '../../attention/tokens.js';
import { createViewSwitch } from '../../controls/view_switch.js';
import { el, headBadge } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { createLegend } from '../../maps/legend.js';
import { createMapFrame } from '../../maps/map_frame.js';
import { viewOf } from '../../maps/step_view.js';
import { chosen, inView, update, type App } from '../../state/app.js';

export function liveMap(app: App): HTMLElement {
  const title = el('h3', { class: 'live-title' });
  const frame = createMapFrame(
    {
      maxCell: 40,
      onPoint: (cell) => app.pointed.set(cell && { query: cell.row, key: cell.col }),
      onChoose: ({ row, col }) => update(app, { query: row, key: col }),
    },
    'the weights of the head in view',
  );
  const { map } = frame;
  const legend = createLegend('weights');
  const views = createViewSwitch(app, 'liveView', 'Show the head in view as');
  const under = el('div', { class: 'live-under' }, frame.saves, views.element);
  const element = el('div', { class: 'live', id: 'live-map' }, title, frame.body, legend.element, under);

  function draw(): void {
    const result = app.result.get();
    if (result) drawHead(result, chosen(app, result).head);
    else drawEmpty();
  }

  /** Reserves the space of the map before there are numbers, so that nothing moves when they come. */
  function drawEmpty(): void {
    const { heads, head, text, causal, window, edits } = app.state.get();
    const names = tokenNames(tokenize(text).tokens);
    element.hidden = names.length === 0;
    if (element.hidden) return;
    name(heads[head]!, head);
    legend.show({ masked: causal || window >= 0, edited: edits.length > 0 });
    const size = names.length;
    const data = new Float32Array(size * size);
    const view = { rows: size, cols: size, data, rowLabels: names, colLabels: names, scale: 'weights' } as const;
    map.show({ view, label: 'Attention weights, not computed yet', cellLabel: () => 'not computed yet' });
    map.highlight(null);
  }

  function drawHead(result: ForwardResult, head: number): void {
    element.hidden = false;
    const view = viewOf(result, 'weights', head);
    name(result.heads[head]!, head);
    legend.show({ masked: view.hidden !== undefined, edited: view.edited !== undefined });
    const title = `Attention weights of head ${head + 1}, ${patternOf(result.heads[head]!).name}`;
    frame.show({ view, title }, `head ${head + 1}`, views.current());
    drawMark();
  }

  function name(id: Parameters<typeof patternOf>[0], head: number): void {
    title.replaceChildren(
      headBadge(head + 1, id),
      el('span', { class: 'sr-only' }, `Head ${head + 1}: `),
      patternOf(id).name,
    );
  }

  function drawMark(): void {
    const result = app.result.get();
    if (!result) return;
    const { query, key } = inView(app, result);
    map.highlight({ row: query, col: key });
  }

  // The map measures its width, so draw it when the section is in the document, but before the first frame.
  queueMicrotask(draw);
  app.result.watch((_, previous) => previous !== undefined && draw());
  app.state.watch((state, previous) => {
    if (!previous) return;
    if (state.head !== previous.head || state.liveView !== previous.liveView || (state.text !== previous.text && !app.result.get())) draw();
    else if (state.query !== previous.query || state.key !== previous.key) drawMark();
  });
  app.pointed.watch(whenSeen(element, drawMark));
  return element;
}
