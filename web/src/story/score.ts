// A score is a dot product: a query that turns among the keys of three words.

import { el, onDrag, setAll, svg } from '../dom/dom.js';
import { bars, slider } from './parts.js';
import { programsOf } from './program.js';
import type { MakeScene } from './stage.js';

const keys = [
  { word: 'the', at: [0.9, 0.5] },
  { word: 'barked', at: [1.2, 2.1] },
  { word: 'river', at: [-1.9, 0.7] },
  { word: 'my', at: [-0.6, -1.0] },
] as const;
/** Length of the query. */
const length = 2.2;
const queryAt = (degrees: number): readonly [number, number] => [
  length * Math.cos((degrees * Math.PI) / 180),
  length * Math.sin((degrees * Math.PI) / 180),
];
/** Units of the picture for a length of 1. */
const unit = 70;
const endOf = ([x, y]: readonly [number, number]) => ({ x2: (unit * x).toFixed(1), y2: (-unit * y).toFixed(1) });
/** A word stands beyond its arrow's tip, on the side that the arrow points to. */
function labelAt([x, y]: readonly [number, number]) {
  const [across, up] = [x / Math.hypot(x, y), y / Math.hypot(x, y)];
  const place = { x: (unit * x + 12 * across).toFixed(1), y: (-unit * y - 20 * up + 7).toFixed(1) };
  return { ...place, 'text-anchor': Math.abs(across) < 0.5 ? 'middle' : across > 0 ? 'start' : 'end' };
}

export const score: MakeScene = (stage) => {
  const arrow = svg('line', { class: 'story-arrow is-query', 'marker-end': 'url(#story-tip-query)' });
  const name = svg('text', { class: 'is-query' }, 'dog');
  const grip = svg('circle', { r: 24, class: 'story-grip' });
  const tip = (id: string, kind: string) =>
    svg(
      'marker',
      { id, viewBox: '0 0 10 10', refX: 8, refY: 5, markerWidth: 5, markerHeight: 5, orient: 'auto' },
      svg('path', { d: 'M0 0L10 5L0 10z', class: kind }),
    );
  const plane = svg(
    'svg',
    { class: 'story-plane', viewBox: '-225 -190 450 360', 'aria-hidden': 'true' },
    svg('defs', {}, tip('story-tip-query', 'is-query'), tip('story-tip-key', '')),
    svg('circle', { r: unit * length, class: 'story-orbit' }),
    ...keys.flatMap(({ word, at }) => [
      svg('line', { class: 'story-arrow', 'marker-end': 'url(#story-tip-key)', ...endOf(at) }),
      svg('text', labelAt(at), word),
    ]),
    arrow,
    name,
    grip,
  );
  const list = bars(keys.map(({ word }) => word));
  const range = { name: 'angle', least: -180, most: 180, step: 1, otherwise: 20, spoken: (value: number) => `${value}°` };
  const angle = slider(stage, stage.words.plain('score.do'), range, () => show());
  onDrag(plane, ({ clientX, clientY }) => {
    const point = new DOMPoint(clientX, clientY).matrixTransform(plane.getScreenCTM()!.inverse());
    angle.set(Math.round((Math.atan2(-point.y, point.x) * 180) / Math.PI));
  });

  const input = () => ({
    q: { data: Float32Array.from(queryAt(angle.value())), shape: [1, 2] },
    k: { data: Float32Array.from(keys.flatMap(({ at }) => [...at])), shape: [keys.length, 2] },
    v: { data: Float32Array.from(keys.flatMap(({ at }) => [...at])), shape: [keys.length, 2] },
  });

  function show(): void {
    const query = queryAt(angle.value());
    setAll(arrow, endOf(query));
    setAll(name, labelAt(query));
    setAll(grip, { cx: endOf(query).x2, cy: endOf(query).y2 });
    stage.ask(
      () => stage.engine.attend(input()),
      ({ products, weights }) => {
        const best = products.indexOf(Math.max(...products));
        list.show(weights, (i) => `${stage.words.number(products[i]!, 2)} → ${stage.words.percent(weights[i]!)}`);
        const [[a, c], { word, at }] = [query, keys[best]!];
        stage.say(
          'score.live',
          {
            word,
            a: stage.words.number(a, 2),
            b: stage.words.number(at[0], 2),
            c: stage.words.number(c, 2),
            d: stage.words.number(at[1], 2),
            score: stage.words.number(products[best]!, 2),
          },
          { word, share: stage.words.percent(weights[best]!) },
        );
      },
    );
  }
  show();
  return { figure: el('div', { class: 'story-pair' }, plane, list.element), controls: angle.element, programs: () => programsOf(input()) };
};
