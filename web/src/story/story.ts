// The story: eight scenes of one screen each, at ?scene=NAME. With &embed=1 a scene stands alone, for slides and pages of
// others; ?scene=all shows all of them, and prints as a handout. The numbers that a visitor chose are after the '#'.

import './story.css';
import { messageOf } from '../base/format.js';
import { copyButton } from '../controls/copy_button.js';
import { el, refill, setText } from '../dom/dom.js';
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

/** What the address can name: a scene, all scenes for printing, or the lessons. */
type PlaceId = SceneId | 'all' | 'lessons';

interface Place {
  readonly id: PlaceId;
  /** True if the scene stands alone. */
  readonly embed: boolean;
  readonly words: Words;
}

const addressOf = (id: string, { language }: Pick<Words, 'language'>, embed = false): string =>
  `?lang=${language}&scene=${id}${embed ? '&embed=1' : ''}`;

/** Milliseconds between two changes of the address: Safari refuses more than 100 in 30 s. */
const addressPause = 400;

/** The visitor's numbers in the address, after the '#'. */
function choicesOf(): Choices & { readonly hash: () => string } {
  const all = new URLSearchParams(location.hash.slice(1));
  let timer: ReturnType<typeof setTimeout> | undefined;
  const hash = (): string => (all.size === 0 ? '' : `#${all.toString()}`);
  return {
    hash,
    number(name, otherwise, least, most) {
      const text = all.get(name) ?? '';
      const value = Number(text);
      return text !== '' && value >= least && value <= most ? value : otherwise;
    },
    set(name, value) {
      all.set(name, String(value));
      timer ??= setTimeout(() => {
        timer = undefined;
        history.replaceState(null, '', location.search + hash());
      }, addressPause);
    },
  };
}

/** Milliseconds without a change before a screen reader speaks. */
const spokenAfter = 800;

/** The scene with its words around it. */
function article(id: SceneId, { id: place, words, embed }: Place, engine: Engine, choices: Choices): HTMLElement {
  const live = el('p', { class: 'story-live' });
  // Speaks when the numbers rest: they change with every move of a slider and every step of a training.
  const spoken = el('p', { class: 'sr-only', role: 'status' });
  let resting: ReturnType<typeof setTimeout> | undefined;
  const after = el('p', { class: 'story-after' });
  let latest = 0;
  const stage: Stage = {
    words,
    engine,
    choices,
    say(name, values, ends) {
      live.replaceChildren(...words.shown(name, values));
      clearTimeout(resting);
      resting = setTimeout(() => setText(spoken, live.textContent), spokenAfter);
      after.replaceChildren(...(ends === null ? [] : words.shown(`${id}.after`, ends)));
    },
    ask(call, show) {
      const mine = (latest += 1);
      call().then(
        (answer) => mine === latest && show(answer),
        (error: unknown) => mine === latest && stage.say('failed', { why: messageOf(error) }, null),
      );
    },
  };
  const made = scenes[id](stage);
  if (place === 'all') made.start?.();
  const title = el(place === 'all' ? 'h2' : 'h1', { id: `scene-${id}` }, words.plain(`${id}.title`));
  const so = el('details', { class: 'story-so' }, el('summary', {}, words.plain('so')), el('p', {}, ...words.shown(`${id}.so`)));
  return el(
    'article',
    { class: 'story-scene', 'aria-labelledby': title.id },
    title,
    el('p', { class: 'story-before' }, ...words.shown(`${id}.before`)),
    el('div', { class: 'story-figure' }, made.figure),
    made.controls,
    el('div', { class: 'column story-ends' }, live, after, spoken),
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
          copyOf(words.plain('code.copy'), words, () => text),
        ),
      ),
      ...(onPage === undefined ? [] : [el('p', {}, el('a', { href: `./${onPage}` }, words.plain('code.page')))]),
    );
  });
  return details;
}

const copyOf = (label: string, words: Words, text: () => string): HTMLElement =>
  copyButton(label, { copied: words.plain('copied'), refused: words.plain('refused') }, text);

/** The markup of a frame with the scene as it stands. */
const frameOf = (scene: string, words: Words, hash: string): string =>
  `<iframe src="${new URL(addressOf(scene, words, true) + hash, location.href).href.replaceAll('&', '&amp;')}" width="960" height="680" title="${words.plain(`${scene}.title`).replaceAll('"', '&quot;')}"></iframe>`;

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
    el('span', { class: 'narrow story-position' }, words.plain('position', { n: at + 1 })),
    el('ol', { class: 'row wide' }, ...dots),
    el('span', {}, step(at + 1, 'next')),
  );
}

/** Shows the scene, the scenes or the lessons that the address names. A name of none of them begins at the first scene. */
export async function showStory(startWorker: StartWorker): Promise<void> {
  const given = new URLSearchParams(location.search);
  const words = await readWords(wantedLanguage(given.get('lang'), navigator.languages));
  const known: readonly PlaceId[] = [...sceneIds, 'all', 'lessons'];
  const id = known.find((name) => name === given.get('scene')) ?? sceneIds[0];
  const scene = id === 'all' || id === 'lessons' ? undefined : id;
  const place: Place = { id, embed: given.get('embed') === '1', words };
  const engine = createEngine(startWorker);
  const choices = choicesOf();
  document.documentElement.lang = words.language;
  document.documentElement.classList.add('is-story');
  document.documentElement.classList.toggle('is-embedded', place.embed);
  document.title = `${words.plain(scene ? `${scene}.title` : 'story.title')} – multihead`;

  const content =
    id === 'lessons'
      ? [await lessons(words, (name) => addressOf(name, words))]
      : (scene ? [scene] : sceneIds).map((name) => article(name, place, engine, choices));
  // Somebody has edited the numbers.
  addEventListener('hashchange', () => location.reload());
  document.querySelector('.intro')?.remove();
  refill(document.getElementById('page')!, el('div', { class: 'story' }, ...content, ...(scene && !place.embed ? [tour(scene, words)] : [])));
  const english = place.embed ? '' : words.plain('english');
  document
    .querySelector('.foot')
    ?.replaceChildren(...(english ? [el('p', {}, english)] : []), el('p', { class: 'row' }, ...footOf(place, scene, choices.hash)));
  document.getElementById('tools')!.replaceChildren(themeToggle([words.plain('theme.light'), words.plain('theme.dark')]));
  setText(document.getElementById('skip-link')!, words.plain('skip'));
  if (scene && !place.embed) document.addEventListener('keydown', (event) => turn(event, scene, words));
}

/** The links below a scene, the scenes or the lessons. */
function footOf({ id, embed, words }: Place, scene: SceneId | undefined, hash: () => string): HTMLElement[] {
  if (embed) return [el('a', { href: addressOf(id, words), target: '_blank' }, 'multihead')];
  const language = languages.find((other) => other !== words.language)!;
  const other = el('a', { href: addressOf(id, { language }), lang: language }, words.plain('other'));
  // The numbers go along.
  other.addEventListener('click', () => (other.href = addressOf(id, { language }) + hash()));
  return [
    el('a', { href: './' }, words.plain('page')),
    el('a', { href: addressOf('all', words) }, words.plain('all')),
    el('a', { href: addressOf('lessons', words) }, words.plain('lessons')),
    other,
    ...(scene ? [copyOf(words.plain('frame'), words, () => frameOf(scene, words, hash()))] : []),
  ];
}

/** Arrow keys and the clickers of presenters lead to another scene. */
function turn(event: KeyboardEvent, scene: SceneId, words: Words): void {
  if ((event.target as Element).closest('input, button, a, summary, pre') || event.defaultPrevented) return;
  const to = { PageDown: 1, PageUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const next = to === undefined ? undefined : sceneIds[sceneIds.indexOf(scene) + to];
  if (next) location.href = addressOf(next, words);
}
