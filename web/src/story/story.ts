// The story: eight scenes of one screen each, at ?scene=NAME. With &embed=1 a scene stands alone, for slides and pages of
// others; ?scene=all shows all of them, and prints as a handout. The numbers that a visitor chose are after the '#'.

import './story.css';
import { messageOf } from '../base/format.js';
import { el, refill } from '../dom/dom.js';
import { themeToggle } from '../dom/theme.js';
import type { StartWorker } from '../state/app.js';
import { createEngine } from './engine.js';
import { languages, readWords, wantedLanguage, type Words } from './language.js';
import { lessons } from './lessons.js';
import { cache } from './cache.js';
import { compromise } from './compromise.js';
import { heads } from './heads.js';
import { jobs } from './jobs.js';
import { mask } from './mask.js';
import { score } from './score.js';
import { split } from './split.js';
import { temperature } from './temperature.js';
import { sceneIds, type Choices, type Engine, type MakeScene, type Scene, type SceneId, type Stage } from './stage.js';

const scenes: Readonly<Record<SceneId, MakeScene>> = { compromise, score, temperature, heads, split, mask, jobs, cache };

/** Where a scene is: its name, its language and whether it stands alone. */
interface Place {
  readonly scene: string;
  readonly embed: boolean;
  readonly words: Words;
}

const addressOf = (scene: string, { language }: Words, embed = false): string =>
  `?scene=${scene}${language === 'en' ? '' : `&lang=${language}`}${embed ? '&embed=1' : ''}`;

/** The visitor's numbers in the address, after the '#'. */
function choicesOf(): Choices {
  const now = (): URLSearchParams => new URLSearchParams(location.hash.slice(1));
  return {
    number(name, otherwise, least, most) {
      const text = now().get(name) ?? '';
      const value = Number(text);
      return text !== '' && value >= least && value <= most ? value : otherwise;
    },
    set(name, value) {
      const all = now();
      all.set(name, String(value));
      history.replaceState(null, '', `${location.search}#${all.toString()}`);
    },
  };
}

/** The scene with its words around it. */
function article(id: SceneId, { scene, words, embed }: Place, engine: Engine): HTMLElement {
  const live = el('p', { class: 'story-live', role: 'status' });
  const after = el('p', { class: 'story-after' });
  let latest = 0;
  const stage: Stage = {
    words,
    engine,
    choices: choicesOf(),
    say(name, values, ends) {
      live.replaceChildren(...words.shown(name, values));
      after.replaceChildren(...(ends === null ? [] : words.shown(`${id}.after`, ends)));
    },
    ask(call, show) {
      const mine = (latest += 1);
      call().then(
        (answer) => mine === latest && show(answer),
        (error: unknown) => mine === latest && live.replaceChildren(...words.shown('failed', { why: messageOf(error) })),
      );
    },
  };
  const made = scenes[id](stage);
  if (scene === 'all') made.start?.();
  const title = el('h2', { id: `scene-${id}` }, words.plain(`${id}.title`));
  const so = el('details', { class: 'story-so' }, el('summary', {}, words.plain('so')), el('p', {}, ...words.shown(`${id}.so`)));
  return el(
    'article',
    { class: 'story-scene', 'aria-labelledby': title.id },
    title,
    el('p', { class: 'story-before' }, ...words.shown(`${id}.before`)),
    el('div', { class: 'story-figure' }, made.figure),
    made.controls,
    el('div', { class: 'story-ends' }, live, after),
    ...(embed ? [] : [so, codeOf(made, words)]),
  );
}

/** The programs, made when they are opened, and the way to the numbers on the page. */
function codeOf({ programs, onPage }: Scene, words: Words): HTMLElement {
  const body = el('div', {});
  const details = el('details', { class: 'story-code' }, el('summary', {}, words.plain('code')), body);
  details.addEventListener('toggle', () => {
    if (!details.open) return;
    const texts = programs?.() ?? [];
    body.replaceChildren(
      ...texts.map((text) =>
        el(
          'div',
          {},
          el('pre', { class: 'program', tabindex: '0' }, text),
          copyButton(words.plain('code.copy'), () => text, words),
        ),
      ),
      ...(onPage === undefined ? [] : [el('p', {}, el('a', { href: `./${onPage}` }, words.plain('code.page')))]),
    );
  });
  return details;
}

function copyButton(label: string, textOf: () => string, words: Words): HTMLElement {
  const button = el('button', { class: 'secondary' }, label);
  button.addEventListener('click', () => {
    navigator.clipboard.writeText(textOf()).then(
      () => (button.textContent = words.plain('copied')),
      // Without permission the text can still be selected.
      () => prompt(label, textOf()),
    );
  });
  return button;
}

/** The markup of a frame with the scene as it stands. */
const frameOf = (scene: string, words: Words): string =>
  `<iframe src="${new URL(addressOf(scene, words, true) + location.hash, location.href).href.replaceAll('&', '&amp;')}" width="960" height="640" title="${words.plain(`${scene}.title`).replaceAll('"', '&quot;')}"></iframe>`;

/** Back, next, and the scenes by number. */
function tour(id: SceneId, words: Words): HTMLElement {
  const at = sceneIds.indexOf(id);
  const step = (to: number, name: 'previous' | 'next') =>
    sceneIds[to]
      ? el(
          'a',
          { class: name === 'next' ? 'primary' : 'secondary', href: addressOf(sceneIds[to], words), rel: name === 'next' ? 'next' : 'prev' },
          words.plain(name),
        )
      : '';
  const dots = sceneIds.map((scene, i) =>
    el('li', {}, el('a', { href: addressOf(scene, words), title: words.plain(`${scene}.title`), 'aria-current': i === at && 'page' }, String(i + 1))),
  );
  return el(
    'nav',
    { class: 'row apart story-tour', 'aria-label': words.plain('scenes') },
    el('span', {}, step(at - 1, 'previous')),
    el('span', { class: 'story-position' }, words.plain('position', { n: at + 1 })),
    el('ol', { class: 'row' }, ...dots),
    el('span', {}, step(at + 1, 'next')),
  );
}

/** Shows what the address names. */
export async function showStory(startWorker: StartWorker): Promise<void> {
  const given = new URLSearchParams(location.search);
  const words = await readWords(wantedLanguage(given.get('lang'), navigator.languages));
  const wanted = given.get('scene') ?? '';
  const place: Place = { scene: wanted, embed: given.get('embed') === '1', words };
  const engine = createEngine(startWorker);
  // A name that is no scene's begins at the first.
  const id = sceneIds.find((name) => name === wanted) ?? sceneIds[0];
  const other = languages.find((language) => language !== words.language)!;
  const isAll = wanted === 'all';
  document.documentElement.lang = words.language;
  document.documentElement.classList.add('is-story');
  document.documentElement.classList.toggle('is-embedded', place.embed);
  document.title = `${isAll || wanted === 'lessons' ? words.plain('story.title') : words.plain(`${id}.title`)} – multihead`;

  const content =
    wanted === 'lessons'
      ? [await lessons(words, (scene) => addressOf(scene, words))]
      : (isAll ? sceneIds : [id]).map((name) => article(name, place, engine));
  const page = document.getElementById('page')!;
  document.querySelector('.intro')?.remove();
  refill(page, el('div', { class: 'story' }, ...content, ...(isAll || wanted === 'lessons' || place.embed ? [] : [tour(id, words)])));
  document
    .querySelector('.foot')
    ?.replaceChildren(
      ...(place.embed
        ? [el('p', {}, el('a', { href: addressOf(id, words), target: '_blank' }, 'multihead'))]
        : [
            el(
              'p',
              { class: 'row' },
              el('a', { href: './' }, words.plain('page')),
              el('a', { href: addressOf('all', words) }, words.plain('all')),
              el('a', { href: addressOf('lessons', words) }, words.plain('lessons')),
              el('a', { href: `?scene=${wanted}&lang=${other}`, lang: other }, words.plain('other')),
              ...(isAll || wanted === 'lessons' ? [] : [copyButton(words.plain('frame'), () => frameOf(id, words), words)]),
            ),
          ]),
    );
  document.getElementById('tools')!.replaceChildren(themeToggle());
  // Arrow keys turn the page, as the clickers of presenters do.
  if (!isAll && !place.embed && wanted !== 'lessons')
    document.addEventListener('keydown', (event) => {
      if ((event.target as Element).closest('input, button, a, summary, pre') || event.defaultPrevented) return;
      const to = { PageDown: 1, PageUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = to === undefined ? undefined : sceneIds[sceneIds.indexOf(id) + to];
      if (next) location.href = addressOf(next, words);
    });
}
