// The split into heads is a way of reading the same memory, and so is the wrong reshape.

import { el, svg } from '../dom/dom.js';
import { firstWrong, indexOf, placesOf, sourceOf, stridesOf, type SplitSize } from '../sections/split/split.js';
import type { MakeScene } from './stage.js';

const words = ['the', 'black', 'cat', 'sat'];
const size: SplitSize = { heads: 2, tokens: words.length, width: 8 };
const width = size.width / size.heads;
const [cell, gap, left] = [44, 60, 60];

export const split: MakeScene = (stage) => {
  const isOn = (name: string): boolean => stage.choices.number(name, 0, 0, 1) === 1;
  const cells = Array.from({ length: size.tokens * size.width }, (_, index) => {
    const { token, col } = sourceOf(index, size.width);
    const shape = svg('rect', { width: cell - 4, height: cell - 4, rx: 6 });
    const text = svg('text', { x: (cell - 4) / 2, y: cell / 2 + 3, 'text-anchor': 'middle' }, String(index + 1));
    return svg('g', { class: `story-cell word-${token} ${col < width ? 'head-previous' : 'head-first'}` }, shape, text);
  });
  const rows = words.map((word, token) => svg('text', { x: left - 12, y: 42 + token * cell + cell / 2, 'text-anchor': 'end' }, word));
  const titles = [0, 1].map((head) =>
    svg('text', { class: 'story-head', y: 24, 'text-anchor': 'middle' }, stage.words.plain('head', { n: head + 1 })),
  );
  const picture = svg(
    'svg',
    {
      class: 'story-split',
      viewBox: `0 0 ${left + size.width * cell + gap + 4} ${44 + words.length * cell}`,
      role: 'img',
      'aria-label': stage.words.plain('split.before'),
    },
    ...rows,
    ...titles,
    ...cells,
  );
  const button = (name: string, text: string) =>
    el('button', { class: 'secondary', id: `story-${name}`, onclick: () => flip(name) }, stage.words.plain(text));
  const [apart, wrong] = [button('apart', 'split.apart'), button('wrong', 'split.wrong')];

  function flip(name: string): void {
    stage.choices.set(name, isOn(name) ? 0 : 1);
    show();
  }

  function show(): void {
    const [isApart, isWrong] = [isOn('apart'), isOn('wrong')];
    apart.ariaPressed = String(isApart);
    wrong.ariaPressed = String(isWrong);
    const strides = stridesOf(size, isWrong);
    const offset = (head: number): number => left + head * (width * cell + (isApart ? gap : 0));
    titles.forEach((title, head) => {
      title.setAttribute('x', String(offset(head) + (width * cell) / 2));
      title.toggleAttribute('hidden', !isApart && !isWrong);
    });
    for (const at of placesOf(size)) {
      cells[indexOf(at, strides)]!.style.transform = `translate(${offset(at.head) + at.col * cell}px, ${40 + at.token * cell}px)`;
    }
    // Rows hold other words than their names say.
    picture.classList.toggle('is-wrong', isWrong);
    const place = firstWrong(size);
    if (!isWrong || !place) {
      stage.say('split.live', { start: indexOf({ head: 1, token: 0, col: 0 }, strides) + 1, step: strides.token });
      return;
    }
    const source = sourceOf(indexOf(place, strides), size.width);
    stage.say('split.livewrong', {
      row: place.token + 1,
      col: place.col + 1,
      word: words[place.token]!,
      othercol: source.col + 1,
      other: words[source.token]!,
    });
  }
  show();
  return {
    figure: picture,
    controls: el('div', { class: 'wrap story-controls' }, el('p', {}, stage.words.plain('split.do')), el('div', { class: 'row' }, apart, wrong)),
    onPage: '#text=the+black+cat+sat&step=split&at=steps',
  };
};
