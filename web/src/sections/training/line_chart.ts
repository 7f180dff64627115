// A chart of a few lines over the steps of a training, with a mark at one step.

import { el, fit, onDrag, setAll, setText, svg } from '../../dom/dom.js';
import type { Point } from '../../training/curve.js';

export interface ChartLine {
  /** Suffix of the line's CSS class line-…, which sets color and dashes. */
  readonly name: string;
  readonly points: readonly Point[];
}

export interface ChartContent {
  /** The accessible name of the picture, which states its content in words. */
  readonly label: string;
  readonly lines: readonly ChartLine[];
  readonly lastStep: number;
  /** The top of the vertical scale, which begins at 0. */
  readonly top: number;
  readonly title: string;
  readonly format: (value: number) => string;
  readonly mark: number;
}

/** Space around the plot; the scrubber below a chart has the same sides. */
export const chartSides = { left: 44, right: 14 } as const;
const above = 26;
const below = 24;

/** `onPoint` receives the step that the pointer presses or drags to. */
export function createLineChart(onPoint: (step: number) => void) {
  const [levels, labels] = [svg('g', {}), svg('g', {})];
  const grid = svg('g', { class: 'chart-grid' }, levels, labels);
  const lines = svg('g', {});
  const mark = svg('line', { class: 'chart-mark' });
  const dots = svg('g', {});
  const picture = svg('svg', { role: 'img', class: 'chart-picture' }, grid, lines, mark, dots);
  const element = el('div', { class: 'chart' }, picture);
  let content: ChartContent | undefined;
  let size = { width: 0, height: 0 };

  const x = (step: number): number => {
    const { left, right } = chartSides;
    return left + (step / Math.max(1, content!.lastStep)) * (size.width - left - right);
  };
  const y = (value: number): number => above + (1 - Math.min(1, value / content!.top)) * (size.height - above - below);

  function draw(): void {
    if (!content || size.width <= 0) return;
    setAll(picture, { viewBox: `0 0 ${size.width} ${size.height}`, 'aria-label': content.label });
    drawGrid(content);
    fit(lines, content.lines.length, () => svg('path')).forEach((path, i) => {
      const { name, points } = content!.lines[i]!;
      setAll(path, { class: `chart-line line-${name}`, d: pathOf(points) });
    });
    setAll(mark, { x1: x(content.mark), x2: x(content.mark), y1: above, y2: size.height - below });
    const marked = content.lines.flatMap(({ name, points }) => {
      const point = points.findLast(({ step }) => step <= content!.mark);
      return point ? [{ name, point }] : [];
    });
    fit(dots, marked.length, () => svg('circle')).forEach((dot, i) => {
      const { name, point } = marked[i]!;
      setAll(dot, { class: `chart-dot line-${name}`, r: 4, cx: x(point.step), cy: y(point.value) });
    });
  }

  function drawGrid({ lastStep, top, format, title }: ChartContent): void {
    const steps = ticks(lastStep, size.width < 480 ? 3 : 6);
    const values = ticks(top, 4);
    fit(levels, values.length, () => svg('line')).forEach((line, i) => {
      const level = y(values[i]!);
      setAll(line, { x1: chartSides.left, x2: size.width - chartSides.right, y1: level, y2: level });
    });
    const texts = [
      ...values.map((value) => ({ x: chartSides.left - 7, y: y(value) + 4, 'text-anchor': 'end', text: format(value) })),
      ...steps.map((step) => ({ x: x(step), y: size.height - 6, 'text-anchor': 'middle', text: String(step) })),
      // Between the last two numbers of the axis, where there is space.
      { x: (x(steps.at(-2) ?? 0) + x(steps.at(-1)!)) / 2, y: size.height - 6, 'text-anchor': 'middle', text: 'step' },
      { x: chartSides.left - 7, y: 11, 'text-anchor': 'end', text: title },
    ];
    fit(labels, texts.length, () => svg('text')).forEach((element, i) => {
      const { text, ...attributes } = texts[i]!;
      setAll(element, attributes);
      setText(element, text);
    });
  }

  /** Averages adjacent points if a line has at least as many points as pixels: one mean for every 1.3 to 2 pixels. */
  function pathOf(points: readonly Point[]): string {
    const each = Math.max(1, Math.floor((2 * points.length) / size.width));
    let path = '';
    for (let i = 0; i < points.length; i += each) {
      const some = points.slice(i, i + each);
      const value = some.reduce((sum, point) => sum + point.value, 0) / some.length;
      path += `${path ? 'L' : 'M'}${x(some.at(-1)!.step).toFixed(1)} ${y(value).toFixed(1)}`;
    }
    return path;
  }

  onDrag(picture, ({ clientX }) => {
    if (!content) return;
    const { left, width } = picture.getBoundingClientRect();
    const share = (clientX - left - chartSides.left) / (width - chartSides.left - chartSides.right);
    onPoint(Math.round(Math.min(1, Math.max(0, share)) * content.lastStep));
  });

  new ResizeObserver(() => {
    size = { width: element.clientWidth, height: element.clientHeight };
    draw();
  }).observe(element);

  return {
    element,
    show(next: ChartContent): void {
      content = next;
      draw();
    },
  };
}

/** Round numbers from 0 to `most`, about `count` of them: multiples of 1, 2 or 5 times a power of ten. */
export function ticks(most: number, count: number): number[] {
  const raw = most / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999)!;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
