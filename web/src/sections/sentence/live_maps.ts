// Small maps next to the sentence, one for each head in its color, and the weights of the pair that is pointed at or chosen.

import type { ForwardResult } from '../../attention/messages.js';
import { aboutHead, headName, patternIds, type PatternId } from '../../attention/patterns.js';
import { tokenize, tokenNames } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, headBadge, pairOf, refill, setAll, setText } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { cellText, hatchedAs } from '../../maps/cell_text.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { createLegend } from '../../maps/legend.js';
import { saveButtons, showMatrix, tables } from '../../maps/map_frame.js';
import { createMap, type Cell } from '../../maps/matrix_map.js';
import { viewOf } from '../../maps/step_view.js';
import { chosen, headsOf, inView, update, whenChanged, withNumbers, type App } from '../../state/app.js';

/** Narrow screens have no room for labels: there the readout names the words. */
const narrow = matchMedia('(max-width: 640px)');

/** The maps, and the tools that save them or show numbers. */
export function liveMaps(app: App) {
  const grid = el('div', { class: 'live-grid' });
  const readout = el('p', { class: 'readout live-readout' });
  const views = createViewSwitch(app, 'liveView', 'Show the head in view as');
  const saves = saveButtons('the weights of the head in view', () => {
    const result = app.result.get();
    if (!result) return null;
    const { head } = chosen(app, result);
    return { view: viewOf(result, 'weights', head), title: titleOf(result, head) };
  });
  const legend = createLegend('weights');
  const tools = el('div', { class: 'row live-tools' }, views, saves);
  const element = el('div', { class: 'under live', id: 'live-map' }, grid, readout, legend.element);
  type SmallMap = ReturnType<typeof create>;
  let maps: readonly SmallMap[] = [];

  function create(index: number) {
    const body = el('div', { class: 'close live-body' });
    const map = createMap({
      maxCell: 18,
      sizer: body,
      onPoint: (cell) => app.pointed.set(cell && { query: cell.row, key: cell.col }),
      onChoose: ({ row, col }) => update(app, { query: row, key: col, head: index }),
    });
    const name = el('span', { class: 'live-name' });
    const badge = headBadge(index + 1, 'previous');
    const button = el(
      'button',
      { class: 'badged live-title', onclick: () => update(app, { head: index }) },
      badge,
      el('span', { class: 'sr-only' }, `Head ${index + 1}: `),
      name,
    );
    return { element: el('div', { class: 'live-card' }, button, body), button, name, badge, body, map };
  }

  function draw(): void {
    const result = app.result.get();
    const state = app.state.get();
    const named = headsOf(app);
    const { heads } = named;
    const tokens = result?.tokens ?? tokenize(state.text).tokens;
    element.hidden = tokens.length === 0;
    if (element.hidden) return;
    if (maps.length !== heads.length) {
      maps = heads.map((_, head) => maps[head] ?? create(head));
      refill(grid, ...maps.map((small) => small.element));
    }
    const head = result ? chosen(app, result).head : state.head;
    // A table needs the whole width.
    const numbers = result !== null && app.state.get().liveView === 'numbers' && tables.get() !== null;
    grid.classList.toggle('is-numbers', numbers);
    const { muted } = state;
    legend.show({ masked: state.causal || state.window >= 0, edited: state.edits.length > 0, muted: muted.length > 0 });
    maps.forEach((small, index) => {
      const id = heads[index]!;
      const isMuted = muted.includes(index);
      setText(small.name, `${headName(named, index)}${isMuted ? ', muted' : ''}`);
      setAll(small.button, { title: aboutHead(named, index) });
      small.badge.className = `badge head-${id}`;
      small.element.className = `live-card head-${id}${isMuted ? ' is-muted' : ''}`;
      small.button.setAttribute('aria-pressed', String(index === head));
      small.body.hidden = numbers && index !== head;
      if (!small.body.hidden) drawMap(small, result, id, index, numbers);
    });
    drawMark();
  }

  function drawMap({ body, map }: SmallMap, result: ForwardResult | null, id: PatternId, head: number, numbers: boolean): void {
    if (!result) {
      const names = tokenNames(tokenize(app.state.get().text).tokens);
      const view = { ...small(id), rows: names.length, cols: names.length, data: new Float32Array(), rowLabels: names, colLabels: names };
      showMatrix(
        body,
        map,
        { view: { ...view, blank: true }, label: `Head ${head + 1}, not computed yet`, cellLabel: () => 'not computed yet' },
        'colors',
      );
      return;
    }
    const view = { ...viewOf(result, 'weights', head), ...small(id) };
    const cellLabel = ({ row, col }: Cell): string => `head ${head + 1}, ${cellText(view, row, col)}`;
    showMatrix(body, map, { view, label: `${titleOf(result, head)}, beside the sentence`, cellLabel }, numbers ? 'numbers' : 'colors');
  }

  const drawMark = withNumbers(app, (result) => {
    const { query, key } = inView(app, result);
    for (const { map } of maps) map.highlight({ row: query, col: key });
    if (key === null) {
      setText(readout, 'Each row looks at the columns.');
      return;
    }
    const names = tokenNames(result.tokens);
    const values = result.heads.map((id, head) => {
      const view = viewOf(result, 'weights', head);
      const value = hatchedAs(view, query, key) || formatNumber(view.data[query * view.cols + key]!, 2);
      return el('span', { class: 'badged strip-head' }, headBadge(head + 1, id, view.muted), el('span', { class: 'number' }, value));
    });
    readout.replaceChildren(el('span', {}, ...pairOf(names[query]!, names[key]!)), ...values);
  });

  // The maps measure their width, so draw them when the section is in the document, but before the first frame.
  queueMicrotask(draw);
  app.result.watch((_, previous) => previous !== undefined && draw());
  tables.watch((_, previous) => previous !== undefined && draw());
  whenChanged(app, ['head', 'liveView'], draw);
  whenChanged(app, ['query', 'key'], drawMark);
  whenChanged(app, ['text'], () => !app.result.get() && draw());
  narrow.addEventListener('change', draw);
  app.pointed.watch(whenSeen(element, drawMark));
  return { element, tools };
}

const titleOf = (result: ForwardResult, head: number): string => `Attention weights of head ${head + 1}, ${headName(result, head)}`;

/** Small maps have no numbers and no titles of their axes, and on a narrow screen no labels. */
const small = (id: PatternId): Pick<MatrixView, 'small' | 'bare' | 'scale' | 'headOf'> => ({
  small: true,
  bare: narrow.matches,
  scale: 'weights',
  headOf: () => patternIds.indexOf(id),
});
