// Draws arcs from the chosen word to the words that each head attends to: one color per head, thicker for a larger
// weight, with the head's number at its strongest words.

import { fit, setAll, setText, svg } from '../../dom/dom.js';

export type WordBox = Readonly<Record<'left' | 'right' | 'top' | 'bottom', number>>;

/** The boxes of words within the element that they are placed in. */
export const boxesOf = (words: readonly HTMLElement[]): WordBox[] =>
  words.map(({ offsetLeft: left, offsetTop: top, offsetWidth, offsetHeight }) => ({
    left,
    top,
    right: left + offsetWidth,
    bottom: top + offsetHeight,
  }));

export interface Arc {
  readonly head: number;
  readonly className: string;
  readonly query: number;
  readonly key: number;
  readonly weight: number;
  /** True if the head's number stands at the end of the arc. */
  readonly numbered: boolean;
}

/** A weight is drawn if it is at least this share of the largest weight in its row. */
const leastShare = 1 / 3;
/** Every key with at least this weight shows the head's number; so does the row's strongest key. */
const numberedFrom = 0.3;

/** If no weight of a row reaches this value, the row is too spread out for arcs. */
export const spreadBelow = 0.08;
const mostArcs = 12;

/** The arcs of one head's row of weights; none for a row that is spread out. */
export function arcsOf(row: ArrayLike<number>, query: number, head: number, className: string): Arc[] {
  const weights = Array.from(row);
  const most = Math.max(...weights);
  if (!(most >= spreadBelow)) return [];
  const strongest = weights.indexOf(most);
  const keys = [...weights.keys()].filter((key) => weights[key]! >= most * leastShare);
  keys.sort((a, b) => weights[b]! - weights[a]!);
  return keys.slice(0, mostArcs).map((key) => {
    const weight = weights[key]!;
    return { head, className, query, key, weight, numbered: key === strongest || weight >= numberedFrom };
  });
}

const markRadius = 8;
const f = (value: number): string => value.toFixed(1);
const middleOf = ({ left, right }: WordBox): number => (left + right) / 2;

interface Line {
  readonly top: number;
  readonly bottom: number;
  /**
   * x positions at which an arc can cross the line, from left to right: before the first word, between two words, and
   * after the last word.
   */
  readonly gaps: readonly number[];
}

/** Pixels between the first or last word of a line and an arc that passes outside of the line. */
const lineMargin = 8;

export function linesOf(words: readonly WordBox[]): Line[] {
  const tops = [...new Set(words.map(({ top }) => top))].sort((a, b) => a - b);
  return tops.map((top) => {
    const line = words.filter((word) => word.top === top).sort((a, b) => a.left - b.left);
    const between = line.slice(1).map(({ left }, i) => (line[i]!.right + left) / 2);
    return {
      top,
      bottom: Math.max(...line.map(({ bottom }) => bottom)),
      gaps: [line[0]!.left - lineMargin, ...between, line.at(-1)!.right + lineMargin],
    };
  });
}

/**
 * The gap nearest to `x`, where an arc crosses the line without touching a word; `x` itself if it is outside of the
 * line.
 */
function crossing({ gaps }: Line, x: number): number {
  if (x <= gaps[0]! || x >= gaps.at(-1)!) return x;
  return gaps.reduce((best, gap) => (Math.abs(gap - x) < Math.abs(best - x) ? gap : best));
}

/** The word at which an arc starts or ends, and the offset from the middle of the word in pixels. */
interface End {
  readonly word: WordBox;
  readonly aside: number;
}

/**
 * The curve between two words as the `d` of an SVG path, and the position of the number. Words on one line are joined
 * by an arc above the line. Between lines, the curve bends in the space between them, and crosses each line on its way
 * in a gap between words.
 */
export function curve(source: End, target: End, lines: readonly Line[], head: number) {
  const [from, to] = [source.word, target.word];
  const [x0, x1] = [middleOf(from) + source.aside, middleOf(to) + target.aside];
  const away = markRadius + 2;
  if (from.top !== to.top) {
    const up = from.top > to.top;
    const [y0, y1] = up ? [from.top, to.bottom + away] : [from.bottom, to.top - away];
    const onTheWay = lines.filter(({ top }) => (top - from.top) * (top - to.top) < 0);
    if (up) onTheWay.reverse();
    let [x, y] = [x0, y0];
    let d = `M${f(x)} ${f(y)}`;
    const curveTo = (nextX: number, nextY: number): void => {
      const bend = (nextY - y) * 0.6;
      d += `C${f(x)} ${f(y + bend)} ${f(nextX)} ${f(nextY - bend)} ${f(nextX)} ${f(nextY)}`;
      [x, y] = [nextX, nextY];
    };
    for (const line of onTheWay) {
      const [enter, leave] = up ? [line.bottom, line.top] : [line.top, line.bottom];
      const wanted = x0 + ((x1 - x0) * (enter - y0)) / (y1 - y0);
      // Several heads may share a gap, which is narrow: use half of the offset.
      curveTo(crossing(line, wanted) + source.aside / 2, enter);
      d += `V${f(leave)}`;
      y = leave;
    }
    curveTo(x1, y1);
    return { d, x: x1, y: y1 };
  }
  const above = lines.findLast(({ bottom }) => bottom <= from.top);
  const room = from.top - (above?.bottom ?? 0);
  const distance = Math.abs(middleOf(to) - middleOf(from));
  if (from === to) {
    // An arc from a word to itself is a loop with the number at its top.
    const y = from.top - away - 4;
    return { d: `M${f(x0 - 5)} ${f(from.top)}C${f(x0 - 26)} ${f(y - 12)} ${f(x0 + 26)} ${f(y - 12)} ${f(x0 + 5)} ${f(from.top)}`, x: x1, y };
  }
  const y1 = to.top - away;
  const lift = Math.min(room - 3, away + 8 + distance * 0.16 + head * 3);
  // A cubic curve reaches three quarters of the height of its control points.
  const high = from.top - lift / 0.75;
  return { d: `M${f(x0)} ${f(from.top)}C${f(x0)} ${f(high)} ${f(x1)} ${f(high)} ${f(x1)} ${f(y1)}`, x: x1, y: y1 };
}

export function createArcs() {
  const lines = svg('g', {});
  const marks = svg('g', {});
  const element = svg('svg', { class: 'arcs', 'aria-hidden': 'true' }, lines, marks);

  return {
    element,
    show(arcs: readonly Arc[], words: readonly WordBox[]): void {
      const textLines = linesOf(words);
      const drawn = arcs.filter(({ query, key }) => words[query] && words[key]);
      const heads = [...new Set(drawn.map(({ head }) => head))];
      const numbered = drawn.filter((arc) => arc.numbered);
      fit(lines, drawn.length, () => svg('path', {}));
      fit(marks, numbered.length, () => svg('g', {}, svg('circle', { r: markRadius }), svg('text', { y: 3.5, 'text-anchor': 'middle' })));
      let mark = 0;
      drawn.forEach((arc, i) => {
        const sameKey = numbered.filter(({ key }) => key === arc.key);
        const place = sameKey.indexOf(arc);
        const end = arc.numbered ? (place - (sameKey.length - 1) / 2) * (2 * markRadius + 1) : 0;
        const start = (heads.indexOf(arc.head) - (heads.length - 1) / 2) * 4;
        const [source, target] = [
          { word: words[arc.query]!, aside: start },
          { word: words[arc.key]!, aside: end },
        ];
        const { d, x, y } = curve(source, target, textLines, arc.head);
        setAll(lines.children[i]!, {
          d,
          class: `arc ${arc.className}`,
          'stroke-width': (1.5 + 3.5 * arc.weight).toFixed(1),
          opacity: (0.4 + 0.6 * arc.weight).toFixed(2),
        });
        if (!arc.numbered) return;
        const group = marks.children[mark]!;
        mark += 1;
        setAll(group, { class: `arc-mark ${arc.className}`, transform: `translate(${f(x)} ${f(y)})` });
        setText(group.lastElementChild!, String(arc.head + 1));
      });
    },
  };
}
