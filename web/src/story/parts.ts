// Parts of several scenes: a slider that can play, a choice, bars, a sentence with arcs, and a small map.

import { patternIds, type PatternId } from '../attention/patterns.js';
import { el, headBadge, meter, percentOf, setText } from '../dom/dom.js';
import { reducedMotion } from '../dom/reduced_motion.js';
import { formatPercent } from '../base/format.js';
import type { MatrixView } from '../maps/heat_map.js';
import { createMap, type Cell, type Mark } from '../maps/matrix_map.js';
import { arcsOf, boxesOf, createArcs } from '../sections/sentence/arcs.js';
import type { Stage } from './stage.js';

export interface Range {
  readonly name: string;
  readonly least: number;
  readonly most: number;
  readonly step: number;
  readonly otherwise: number;
  /** Returns the value in words, which stand next to the slider. Without it the value is not shown. */
  spoken?(value: number): string;
}

/** Milliseconds in which "Show me" moves a slider to both ends and back. */
const playTime = 5000;

/** A slider whose value the address keeps, with a button that moves it by itself. */
export function slider({ words, choices }: Stage, label: string, range: Range, onMove: (value: number) => void) {
  const { name, least, most, step, otherwise } = range;
  const input = el('input', { type: 'range', id: `story-${name}`, min: least, max: most, step, class: 'story-slider' });
  const shown = el('output', { class: 'number story-value', for: input.id });
  const button = el('button', { class: 'secondary story-play' }, words.plain('play'));
  let playing = 0;

  /** Shows the value in words next to the slider, and gives it to screen readers. */
  function speak(value: number): void {
    if (!range.spoken) return;
    input.setAttribute('aria-valuetext', range.spoken(value));
    setText(shown, range.spoken(value));
  }
  function take(value: number): void {
    choices.set(name, value);
    speak(value);
    onMove(value);
  }
  function stop(): void {
    cancelAnimationFrame(playing);
    playing = 0;
    setText(button, words.plain('play'));
  }
  function play(): void {
    if (playing !== 0) return stop();
    const [begin, from] = [performance.now(), Number(input.value)];
    setText(button, words.plain('stop'));
    const frame = (now: number): void => {
      const share = Math.max(0, (now - begin) / playTime);
      // A sine from where it stands: up to one end, down to the other, and back.
      const wave = Math.sin(2 * Math.PI * Math.min(share, 1));
      input.valueAsNumber = share >= 1 ? from : from + wave * (wave > 0 ? most - from : from - least);
      take(Number(input.value));
      if (share >= 1) stop();
      else playing = requestAnimationFrame(frame);
    };
    playing = requestAnimationFrame(frame);
  }

  input.addEventListener('input', () => {
    stop();
    take(Number(input.value));
  });
  button.addEventListener('click', play);
  const showPlay = (): void => {
    button.hidden = reducedMotion.matches;
    if (button.hidden) stop();
  };
  reducedMotion.addEventListener('change', showPlay);
  showPlay();
  input.valueAsNumber = choices.number(name, otherwise, least, most);
  speak(Number(input.value));
  const element = el(
    'div',
    { class: 'story-control' },
    el('label', { for: input.id }, label),
    el('div', { class: 'row' }, input, ...(range.spoken ? [shown] : []), button),
  );
  return {
    element,
    value: (): number => Number(input.value),
    set(value: number): void {
      stop();
      input.valueAsNumber = value;
      take(Number(input.value));
    },
  };
}

/** A row of buttons for numbers. The button of the present number is pressed. */
export function choice(
  { choices }: Stage,
  label: string,
  name: string,
  values: readonly number[],
  otherwise: number,
  onChoose: (value: number) => void,
) {
  const buttons = values.map((value) => el('button', { onclick: () => choose(value) }, String(value)));
  const now = (): number => choices.number(name, otherwise, values[0]!, values.at(-1)!);
  const mark = (): void => buttons.forEach((button, i) => button.setAttribute('aria-pressed', String(values[i] === now())));
  function choose(value: number): void {
    choices.set(name, value);
    mark();
    onChoose(value);
  }
  mark();
  const group = el('div', { class: 'segments', role: 'group', 'aria-label': label }, ...buttons);
  return { element: el('div', { class: 'row story-choice' }, el('span', { 'aria-hidden': 'true' }, label), group), now };
}

/** A list with a bar for each name. The length of a bar is a share from 0 to 1; `shown` gives the text at its end. */
export function bars(names: readonly string[]) {
  const rows = names.map((name) => {
    const [bar, number] = [meter(0), el('span', { class: 'number' })];
    return { row: el('li', {}, el('bdi', {}, name), bar, number), fill: bar.firstElementChild as HTMLElement, number };
  });
  return {
    element: el('ul', { class: 'bars story-bars' }, ...rows.map(({ row }) => row)),
    show(shares: ArrayLike<number>, shown: (i: number) => string = (i) => formatPercent(shares[i]!)): void {
      const most = Math.max(...Array.from(shares));
      rows.forEach(({ row, fill, number }, i) => {
        fill.style.width = percentOf(shares[i]!);
        setText(number, shown(i));
        row.classList.toggle('is-most', shares[i] === most);
      });
    },
  };
}

/** A sentence whose words can be pressed, with an arc for each weight of each head. */
export function sentence(tokens: readonly string[], onChoose?: (word: number) => void) {
  const words = tokens.map((token, i) =>
    onChoose ? el('button', { class: 'token story-word', onclick: () => onChoose(i) }, token) : el('span', { class: 'token story-word' }, token),
  );
  const arcs = createArcs();
  const line = el('p', { class: 'wrap story-words' }, ...words);
  const element = el('div', { class: 'story-sentence' }, arcs.element, line);
  let last: { rows: readonly ArrayLike<number>[]; query: number; classes: readonly string[] } | undefined;

  function draw(): void {
    if (!last) return;
    const { rows, query, classes } = last;
    arcs.element.setAttribute('viewBox', `0 0 ${Math.max(1, element.clientWidth)} ${Math.max(1, element.clientHeight)}`);
    arcs.show(
      rows.flatMap((row, head) => arcsOf(row, query, head, classes[head]!)),
      boxesOf(words),
    );
  }
  new ResizeObserver(draw).observe(element);
  return {
    element,
    /** `rows`: for each head the weights of the word `query`. */
    show(rows: readonly ArrayLike<number>[], query: number, classes: readonly string[]): void {
      last = { rows, query, classes };
      words.forEach((word, i) => {
        word.classList.toggle('is-query', i === query);
        if (onChoose) word.setAttribute('aria-pressed', String(i === query));
      });
      draw();
    },
  };
}

/** A map of the weights of a head. */
export function smallMap(head: number, pattern: PatternId) {
  const map = createMap({ maxCell: 28, onPoint: (cell) => map.highlight(cell ?? rest) });
  const name = el('span', {});
  const caption = el('figcaption', { class: 'badged' }, headBadge(head + 1, pattern), name);
  let rest: Mark | null = null;
  return {
    element: el('figure', { class: 'slim story-map-card' }, caption, map.element),
    /** `query`: the row that is marked. */
    show(title: string, data: Float32Array, tokens: readonly string[], label: string, query?: number): void {
      setText(name, title);
      const size = { rows: tokens.length, cols: tokens.length, rowLabels: tokens, colLabels: tokens };
      const view: MatrixView = { ...size, data, scale: 'weights', bare: true, small: true, headOf: () => patternIds.indexOf(pattern) };
      const cellLabel = ({ row, col }: Cell): string => `${tokens[row]} → ${tokens[col]}: ${formatPercent(data[row * size.cols + col]!)}`;
      map.show({ view, label, cellLabel });
      map.highlight((rest = query === undefined ? null : { row: query, col: null }));
    },
  };
}
