// Three lessons for a class. Their words are lines of a text file, so that others can translate them.

import { el, rich } from '../dom/dom.js';
import { readTexts, type Words } from './language.js';

export async function lessons({ language }: Words, addressOf: (scene: string) => string): Promise<HTMLElement> {
  const texts = await readTexts(language, 'lessons');
  const text = (name: string): string => texts.get(name) ?? '';
  /** The numbers from 1 on that have a text of this name. */
  const counted = (name: (n: number) => string): number[] => [1, 2, 3, 4, 5, 6].filter((n) => texts.has(name(n)));
  return el(
    'article',
    { class: 'story-scene story-lessons' },
    el('h1', {}, text('title')),
    el('p', { class: 'story-before' }, text('before')),
    ...counted((n) => `lesson${n}`).map((n) =>
      el(
        'section',
        { class: 'far' },
        el('h2', {}, text(`lesson${n}`)),
        el('p', {}, text(`lesson${n}.aim`)),
        el(
          'ol',
          {},
          ...counted((task) => `lesson${n}.${task}`).map((task) => {
            const name = `lesson${n}.${task}`;
            const [scene, choices] = text(`${name}.scene`).split('#') as [string, string?];
            const link = el('a', { href: addressOf(scene) + (choices ? `#${choices}` : '') }, ...rich(text(name)));
            return el('li', {}, link, el('details', {}, el('summary', {}, text('answer')), el('p', {}, ...rich(text(`${name}.answer`)))));
          }),
        ),
      ),
    ),
  );
}
