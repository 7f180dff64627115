// A cache keeps the keys and values of earlier words, so that only the row of the new word is computed.

import '../styles/generate.css';
import { uniform } from '../base/random.js';
import { el } from '../dom/dom.js';
import { cacheBytes, multiplyAdds } from '../training/multiply_adds.js';
import { slider } from './parts.js';
import { programsOf } from './program.js';
import type { MakeScene } from './stage.js';

const most = 48;
/** Attention in a model of the size of GPT-2, without its MLPs and logits. */
const model = { layers: 12, embedDim: 768, vocabSize: 0 };
const columns = 16;

/** Numbers from −1 to 1, the same in every run. */
function noise(count: number, seed: number): Float32Array {
  const next = uniform(seed);
  return Float32Array.from({ length: count }, () => 2 * next() - 1);
}
const [queries, keys, values] = [1, 2, 3].map((seed) => noise(most * columns, seed)) as [Float32Array, Float32Array, Float32Array];

export const cache: MakeScene = (stage) => {
  const { language } = stage.words;
  const inWords = (count: number): string =>
    count.toLocaleString(language, { notation: 'compact', compactDisplay: 'long', maximumSignificantDigits: 3 });
  const kilobytes = (bytes: number): string => `${Math.round(bytes / 1000).toLocaleString(language)}\u00a0kB`;
  const rows = (['with', 'without'] as const).map((name) => {
    const cells = Array.from({ length: most }, () => el('span', { class: 'row-cell' }));
    const title = el('p', { class: 'hint' }, stage.words.plain(`cache.${name}`));
    return { cells, element: el('div', {}, title, el('div', { class: 'row-cells story-cells', 'aria-hidden': 'true' }, ...cells)) };
  });
  const key = (kind: string, name: string) =>
    el('span', { class: 'legend-item' }, el('span', { class: `row-cell ${kind}`, 'aria-hidden': 'true' }), stage.words.plain(name));
  const legend = el('p', { class: 'row hint story-legend' }, key('is-now', 'cache.new'), key('is-kept', 'cache.kept'));
  const length = slider(stage, stage.words.plain('cache.do'), { name: 'written', least: 1, most, step: 1, otherwise: 12 }, () => ask());
  const part = (data: Float32Array, from: number, to: number) => ({ data: data.slice(from * columns, to * columns), shape: [to - from, columns] });
  /** All rows up to `count`, or the last one alone with all keys and values. */
  const input = (count: number, from: number) => ({
    q: part(queries, from, count),
    k: part(keys, 0, count),
    v: part(values, 0, count),
    causal: true,
  });

  function ask(): void {
    const count = length.value();
    stage.ask(
      () => Promise.all([stage.engine.attend(input(count, 0)), stage.engine.attend(input(count, count - 1))]),
      ([all, last]) => {
        const end = all.output.subarray((count - 1) * columns);
        const difference = last.output.reduce((worst, value, i) => Math.max(worst, Math.abs(value - end[i]!)), 0);
        for (const [way, { cells }] of rows.entries())
          cells.forEach((cell, i) => {
            cell.className = `row-cell ${i >= count ? '' : i === count - 1 || way === 1 ? 'is-now' : 'is-kept'}`;
          });
        stage.say(
          'cache.live',
          { n: count, with: inWords(multiplyAdds(model, count - 1, count)), without: inWords(multiplyAdds(model, 0, count)) },
          { difference: stage.words.number(difference, difference === 0 ? 0 : 8), bytes: kilobytes(cacheBytes(model, count)) },
        );
      },
    );
  }
  ask();
  return {
    figure: el('div', { class: 'column story-column' }, ...rows.map(({ element }) => element), legend),
    controls: length.element,
    programs: () => programsOf(input(length.value(), length.value() - 1)),
  };
};
