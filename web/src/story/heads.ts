// One sentence, read by up to four hand-built heads.

import { unbent } from '../attention/bend.js';
import { rowOf } from '../attention/matrix.js';
import { patternOf, type PatternId } from '../attention/patterns.js';
import { defaultQuery, tokenize, tokenNames } from '../attention/tokens.js';
import { el, headBadge } from '../dom/dom.js';
import { choice, sentence, smallMap } from './parts.js';
import type { MakeScene } from './stage.js';

const patterns: readonly PatternId[] = ['previous', 'first', 'same', 'nearby'];
const { tokens } = tokenize('I saw the dog and the dog ran');
const names = tokenNames(tokens);

export const heads: MakeScene = (stage) => {
  const usual = defaultQuery(tokens);
  const query = (): number => stage.choices.number('word', usual, 0, tokens.length - 1);
  const line = sentence(names, (word) => {
    stage.choices.set('word', word);
    ask();
  });
  const count = choice(stage, stage.words.plain('heads'), 'readers', [1, 2, 3, 4], 4, () => ask());
  const maps = patterns.map((pattern, head) => smallMap(head, pattern));
  const looks = el('ul', { class: 'row story-looks' });

  function ask(): void {
    const used = patterns.slice(0, count.now());
    stage.ask(
      () => stage.engine.forward({ tokens, heads: used, causal: false, bend: unbent }),
      ({ trace: { weights } }) => {
        const rows = used.map((_, head) => rowOf(weights, head, query()));
        line.show(
          rows,
          query(),
          used.map((pattern) => `head-${pattern}`),
        );
        maps.forEach(({ element, show }, head) => {
          const isUsed = head < used.length;
          element.classList.toggle('is-off', !isUsed);
          const name = stage.words.plain('head', { n: head + 1 });
          const size = tokens.length ** 2;
          show(name, isUsed ? weights.data.subarray(head * size, (head + 1) * size) : new Float32Array(size), names, name, query());
        });
        looks.replaceChildren(
          ...rows.map((row, head) => {
            const best = row.indexOf(Math.max(...row));
            return el(
              'li',
              { class: 'badged', title: patternOf(used[head]!).name },
              headBadge(head + 1, used[head]!),
              `${names[best]} ${stage.words.percent(row[best]!)}`,
            );
          }),
        );
        stage.say('heads.live', { word: names[query()]! });
      },
    );
  }
  ask();
  return {
    figure: el(
      'div',
      { class: 'column story-column' },
      line.element,
      looks,
      el('div', { class: 'story-maps' }, ...maps.map(({ element }) => element)),
    ),
    controls: el('div', { class: 'wrap story-controls' }, el('p', {}, stage.words.plain('heads.do')), count.element),
    onPage: '#text=I+saw+the+dog+and+the+dog+ran&at=use-it',
  };
};
