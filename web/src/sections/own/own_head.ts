// The open head of the visitor's own model: its map or table, of a picture that of one of its patches.

import type { ModelInfo } from 'multihead/models';
import type { Matrix } from '../../attention/matrix.js';
import { colorOf } from '../../attention/patterns.js';
import { tokenNames } from '../../attention/tokens.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge } from '../../dom/dom.js';
import { createLegend } from '../../maps/legend.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { createMapFrame } from '../../maps/map_frame.js';
import type { Cell } from '../../maps/matrix_map.js';
import type { TextAttention } from '../../model/messages.js';
import { update, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { pairText } from '../gallery/gallery.js';
import { createArcs } from './own_arcs.js';

interface Shown {
  /** (N, N), of cross-attention (written, read). */
  readonly weights: Float32Array;
  readonly names: readonly string[];
  readonly rows: readonly string[];
  /** Patches in a row of the picture; 0 for text. */
  readonly side: number;
}

/**
 * The weights of the class token on the patches of a picture, (layers, heads, side, side), each head as shares of its
 * largest: the weights of hundreds of patches are all near 0.
 */
export function classMaps({ shape, data }: Matrix, side: number): Matrix {
  const [layers, heads, tokens] = shape as [number, number, number];
  const maps = new Float32Array(layers * heads * side ** 2);
  for (let at = 0; at < layers * heads; at += 1) {
    // The class token is the first query; the patches are the last keys.
    const row = data.subarray(at * tokens ** 2 + tokens - side ** 2, at * tokens ** 2 + tokens);
    const largest = row.reduce((most, weight) => Math.max(most, weight), 1e-9);
    maps.set(
      row.map((weight) => weight / largest),
      at * side ** 2,
    );
  }
  return { shape: [layers, heads, side, side], data: maps };
}

export function createOwnHead(app: App) {
  const frame = createMapFrame(
    {
      maxCell: 44,
      onPoint: (cell) => point(cell),
      onChoose: (cell) => update(app, { ownQuery: queryAt(cell) }),
    },
    'the weights of this head',
  );
  const readout = el('p', { class: 'readout' }, '\u00a0');
  const title = el('h3', { class: 'badged' });
  const legend = createLegend('weights');
  const arcs = createArcs();
  const strongest = el('p', { class: 'wrap hint legend' });
  const whole = el(
    'button',
    { class: 'secondary', id: 'own-class-token', onclick: () => update(app, { ownQuery: null }) },
    'Where the class token looks',
  );
  const under = el('div', { class: 'row apart low map-under' }, legend.element, strongest, frame.saves);
  const element = el(
    'article',
    { class: 'own-head' },
    el('div', { class: 'column card own-map' }, title, arcs.element, frame.body, readout, under, whole),
  );
  let shown: Shown | undefined;

  /** The query of a cell: its row, or its patch. */
  const queryAt = ({ row, col }: Cell): number => (shown?.side ? firstPatch(shown) + row * shown.side + col : row);

  /** The query in the state; without one, the last word or the class token. */
  function chosenQuery({ rows, side }: Shown): number {
    return Math.min(app.state.get().ownQuery ?? (side ? 0 : rows.length - 1), rows.length - 1);
  }

  function point(cell: Cell | null): void {
    const view = frame.shown()?.view;
    if (!view || !shown) return;
    frame.map.highlight(cell ?? markOf(shown, chosenQuery(shown)));
    if (!cell) readout.textContent = '\u00a0';
    else if (shown.side) {
      const patch = el('span', {}, `patch ${cell.row + 1}, ${cell.col + 1} `);
      readout.replaceChildren(patch, el('strong', { class: 'number' }, formatNumber(view.data[cell.row * view.cols + cell.col]!)));
    } else readout.replaceChildren(...pairText(view, cell.row, cell.col));
  }

  // Without a chosen query the class token is shown.
  return {
    element,
    show(attention: TextAttention, { layer, head }: { layer: number; head: number }, { causal }: ModelInfo, as: ViewName): void {
      const [, heads, queries, keys] = attention.weights.shape as [number, number, number, number];
      const begin = (layer * heads + head) * queries * keys;
      const weights = attention.weights.data.subarray(begin, begin + queries * keys);
      const { side, written } = attention;
      const names = tokenNames(attention.labels);
      shown = { weights, names, rows: written ? tokenNames(written) : names, side };
      arcs.element.hidden = written === undefined;
      if (written) arcs.show(shown.rows, names, weights);
      const query = chosenQuery(shown);
      const badge = headBadge(head + 1, colorOf(head));
      title.replaceChildren(badge, ` Layer ${layer + 1}, head ${head + 1}`);
      readout.textContent = '\u00a0';
      const name = `Layer ${layer + 1}, head ${head + 1}`;
      const view = side ? patchView(shown, query) : textView(shown, head, causal && !written);
      frame.show({ view, title: side ? `${name}, where ${shown.names[query]} looks` : name }, `head ${head + 1}`, as);
      frame.map.highlight(markOf(shown, query));
      legend.show({ masked: causal && !written });
      legend.element.hidden = side > 0;
      strongest.hidden = side === 0;
      strongest.textContent = `The strongest color is a weight of ${formatNumber(view.data.reduce((most, weight) => Math.max(most, weight), 0))}.`;
      whole.hidden = side === 0 || query === 0;
    },
  };
}

/** The class token and registers come before the patches. */
const firstPatch = ({ names, side }: Shown): number => names.length - side ** 2;

/** The patch of a query; null for a token before the patches, and for text, whose rows are queries. */
function markOf(shown: Shown, query: number): Cell | null {
  const { side } = shown;
  const patch = query - firstPatch(shown);
  return side && patch >= 0 ? { row: Math.floor(patch / side), col: patch % side } : null;
}

const textView = ({ weights, names, rows }: Shown, head: number, causal: boolean): MatrixView => ({
  ...{ rows: rows.length, cols: names.length, rowLabels: rows, colLabels: names, scale: 'weights', data: weights, headOf: () => head },
  ...(rows !== names && { axes: ['written', 'read'] }),
  ...(causal && { hidden: (row: number, col: number) => col > row }),
});

/** The weights of one query on the patches of the picture. */
function patchView(shown: Shown, query: number): MatrixView {
  const { weights, names, side } = shown;
  const numbers = Array.from({ length: side }, (_, i) => String(i + 1));
  const data = weights.subarray(query * names.length + firstPatch(shown), (query + 1) * names.length);
  return { rows: side, cols: side, rowLabels: numbers, colLabels: numbers, axes: ['row', 'column'], scale: 'signed', data };
}
