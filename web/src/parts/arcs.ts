// The arcs from the chosen word to the words that each head looks at: one colour a head, thicker for a
// larger weight, with the head's number at its strongest word.

import { svg } from './svg.js';

/** Where a word is, in pixels. */
export interface WordBox {
  readonly x: number;
  readonly top: number;
  readonly bottom: number;
}

export interface Arc {
  readonly head: number;
  /** CSS class that sets the colour. */
  readonly className: string;
  readonly query: number;
  readonly key: number;
  readonly weight: number;
  /** Whether the head's number stands at the end. */
  readonly numbered: boolean;
}

/** A weight is drawn from this share of its row's largest weight on. */
const leastShare = 1 / 3;
/** All the keys of a head with a weight of at least this have its number. */
const numberedFrom = 0.3;

/** A row with no larger weight is spread over so many words that arcs would only be in the way. */
export const spreadBelow = 0.08;
const mostArcs = 12;

/** The arcs of one head's row of weights; none for a row that is spread evenly. */
export function arcsOf(row: ArrayLike<number>, query: number, head: number, className: string): Arc[] {
  const weights = Array.from(row);
  const most = Math.max(...weights);
  if (!(most >= spreadBelow)) return [];
  const strongest = weights.indexOf(most);
  const keys = [...weights.keys()].filter((key) => weights[key]! >= most * leastShare);
  keys.sort((a, b) => weights[b]! - weights[a]!);
  return keys
    .slice(0, mostArcs)
    .map((key) => {
      const weight = weights[key]!;
      return { head, className, query, key, weight, numbered: key === strongest || weight >= numberedFrom };
    });
}

const markRadius = 8;
const f = (value: number): string => value.toFixed(1);

/** The curve between two points, and where the number stands. `room`: pixels above a line of words. */
function curve(from: WordBox, to: WordBox, start: number, end: number, room: number, head: number) {
  const [x0, x1] = [from.x + start, to.x + end];
  const away = markRadius + 2;
  if (from.top > to.bottom || to.top > from.bottom) {
    // On different lines: an S through the space between them.
    const up = from.top > to.bottom;
    const [y0, y1] = up ? [from.top, to.bottom + away] : [from.bottom, to.top - away];
    const bend = (y1 - y0) * 0.6;
    return { d: `M${f(x0)} ${f(y0)}C${f(x0)} ${f(y0 + bend)} ${f(x1)} ${f(y1 - bend)} ${f(x1)} ${f(y1)}`, x: x1, y: y1 };
  }
  const distance = Math.abs(to.x - from.x);
  if (from === to) {
    // To the word itself: a loop with the number at its top.
    const y = from.top - away - 4;
    return { d: `M${f(x0 - 5)} ${f(from.top)}C${f(x0 - 26)} ${f(y - 12)} ${f(x0 + 26)} ${f(y - 12)} ${f(x0 + 5)} ${f(from.top)}`, x: x1, y };
  }
  const y1 = to.top - away;
  const lift = Math.min(room - 3, away + 8 + distance * 0.16 + head * 3);
  // A cubic curve reaches three quarters of the height of its control points.
  const high = from.top - lift / 0.75;
  return {
    d: `M${f(x0)} ${f(from.top)}C${f(x0)} ${f(high)} ${f(x1)} ${f(high)} ${f(x1)} ${f(y1)}`,
    x: x1,
    y: y1,
  };
}

export interface ArcPicture {
  readonly element: SVGSVGElement;
  show(arcs: readonly Arc[], words: readonly WordBox[], room: number): void;
}

export function createArcs(): ArcPicture {
  const lines = svg('g', {});
  const marks = svg('g', {});
  const element = svg('svg', { class: 'arcs', 'aria-hidden': 'true' }, lines, marks);

  return {
    element,
    show(arcs, words, room) {
      const drawn = arcs.filter(({ query, key }) => words[query] && words[key]);
      const heads = [...new Set(drawn.map(({ head }) => head))];
      const numbered = drawn.filter((arc) => arc.numbered);
      fit(lines, drawn.length, () => svg('path', {}));
      fit(marks, numbered.length, () =>
        svg('g', {}, svg('circle', { r: markRadius }), svg('text', { y: 3.5, 'text-anchor': 'middle' })),
      );
      let mark = 0;
      drawn.forEach((arc, i) => {
        const beside = numbered.filter(({ key }) => key === arc.key);
        const place = beside.indexOf(arc);
        const end = arc.numbered ? (place - (beside.length - 1) / 2) * (2 * markRadius + 1) : 0;
        const start = (heads.indexOf(arc.head) - (heads.length - 1) / 2) * 4;
        const { d, x, y } = curve(words[arc.query]!, words[arc.key]!, start, end, room, arc.head);
        setAttributes(lines.children[i]!, {
          d,
          class: `arc ${arc.className}`,
          'stroke-width': (1.5 + 3.5 * arc.weight).toFixed(1),
          opacity: (0.4 + 0.6 * arc.weight).toFixed(2),
        });
        if (!arc.numbered) return;
        const group = marks.children[mark]!;
        mark += 1;
        setAttributes(group, { class: `arc-mark ${arc.className}`, transform: `translate(${f(x)} ${f(y)})` });
        const label = String(arc.head + 1);
        if (group.lastElementChild!.textContent !== label) group.lastElementChild!.textContent = label;
      });
    },
  };
}

/** Gives a group exactly `count` children, and keeps those it has. */
function fit(group: SVGGElement, count: number, make: () => SVGElement): void {
  while (group.childElementCount > count) group.lastElementChild!.remove();
  while (group.childElementCount < count) group.append(make());
}

/** Sets the attributes that differ, so that what stays the same is not drawn again. */
function setAttributes(element: Element, attributes: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
}
