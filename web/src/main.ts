// The page: reads its state from the address, starts the worker that computes, and adds the sections.
//
// The files of this folder are what the browser starts: this script, boot.ts, and the workers. They import from the folders,
// which import only from those before them in this list:
//
//   base        values with listeners, texts of numbers, times
//   workers     calls between the page and its workers
//   attention   from a sentence to a forward pass: tokens, x, hand-built heads, the changes of a pass
//   model, training, speed   what the other three workers compute, and the page's connections to them
//   state       the visitor's choices, their form in the address, undo
//   dom         elements, drawing in frames, the theme
//   controls    switches and buttons that change the state
//   maps        matrices as heat maps and tables
//   page        what is around the sections: the bar with undo, status, messages
//   sections    a folder or file for each section
//   story       eight scenes that stand in place of the page, at ?scene=NAME

import './style.css';
import { connect } from './attention/client.js';
import { listed } from './base/format.js';
import { createStore } from './base/store.js';
import { el } from './dom/dom.js';
import { themeToggle } from './dom/theme.js';
import { keepOffline, startWorker } from './own_scripts.js';
import { failureNotice, type Problem } from './page/failure.js';
import { exposePage } from './page/page_api.js';
import { goToElement, goToPlaceInAddress, placeLinks, watchPlaces } from './page/places.js';
import { statusChip } from './page/status_chip.js';
import { undoBar } from './page/undo_bar.js';
import { sentenceSection } from './sections/sentence/sentence.js';
import { createApp, inputOf, keyOf } from './state/app.js';
import { whyMissing } from './workers/missing_file.js';
import { failureOf } from './workers/protocol.js';

const app = createApp(startWorker);
const notice = el('p', { class: 'notice', id: 'notice', role: 'status', hidden: true });
const passTime = createStore<number | null>(null);
const chip = statusChip(app.result, passTime);
const failure = failureNotice();

app.broken.watch((names) => {
  notice.hidden = names.length === 0;
  const parts = names.length === 1 ? 'a part' : 'parts';
  const settings = names.length === 1 ? 'standard setting is' : 'standard settings are';
  notice.textContent = notice.hidden ? '' : `This link has ${parts} I could not read (${listed(names)}), so the ${settings} used.`;
});

const page = document.getElementById('page')!;
let complete = false;
/** Adds the sections below the sentence. Called after the first numbers, which need not wait for these sections. */
function addSections(): void {
  if (complete) return;
  complete = true;
  import('./sections/below.js').then(
    async ({ addMore, sections, sentenceBar }) => {
      addMore(app);
      const links = document.querySelector('.places')!;
      links.before(sentenceBar(app, links.parentElement!));
      const elements: HTMLElement[] = [];
      // One in a task, so that a tap is answered meanwhile.
      for (const section of sections) {
        if (elements.length > 0) await new Promise((done) => setTimeout(done));
        elements.push(section(app));
        page.append(elements.at(-1)!);
      }
      watchPlaces([...document.querySelectorAll('#your-sentence'), ...elements]);
      goToPlaceInAddress();
    },
    async () => failure.show({ kind: 'incomplete', why: await whyMissing() }),
  );
}

function showProblem(problem: Problem): void {
  failure.show(problem);
  if (problem.kind === 'late') return;
  chip.fail();
  addSections();
}

function start(): void {
  const client = connect(() => startWorker('attention'), {
    onResult: (result) => {
      failure.hide();
      app.result.set(result);
      performance.mark('numbers shown');
      addSections();
      keepOffline(result.backend);
    },
    onTimed: (milliseconds) => passTime.set(milliseconds),
    onTrouble: showProblem,
  });
  let requested: string | undefined;
  const follow = (): void => {
    const input = inputOf(app);
    if (input === undefined) return;
    const key = keyOf(input);
    if (key === requested) return;
    requested = key;
    if (input) client.request(input);
    else {
      client.cancel();
      addSections();
      chip.idle();
      app.result.set(null);
    }
  };
  app.state.watch(follow);
  app.heads.watch(follow);
}

/** Links within the page move the view and the focus by script, because the address after '#' holds the state. */
function followLinksWithin(): void {
  document.addEventListener('click', (event) => {
    const link = (event.target as Element).closest('a[href^="#"]');
    const target = link && document.getElementById(link.getAttribute('href')!.slice(1));
    if (!link || event.defaultPrevented) return;
    event.preventDefault();
    goToElement(target);
  });
}

function showPage(): void {
  const tools = document.getElementById('tools')!;
  const header = tools.parentElement!;
  tools.append(undoBar(app), chip.element, themeToggle());
  header.insertBefore(placeLinks(), tools);
  page.replaceChildren(notice, failure.element, sentenceSection(app));
  exposePage(app);
  followLinksWithin();
  addEventListener('hashchange', goToPlaceInAddress);
  addEventListener('pagehide', () => app.history.flush());
  try {
    start();
  } catch (error) {
    showProblem({ kind: 'failed', why: failureOf(error) });
  }
}

// The story stands in place of the page at ?scene=NAME.
if (new URLSearchParams(location.search).has('scene')) {
  const styled = import('./below.css').then(() => import('./story/story.js'));
  styled.then(
    ({ showStory }) => showStory(startWorker),
    async () => {
      document.getElementById('page')!.replaceChildren(failure.element);
      failure.show({ kind: 'incomplete', why: await whyMissing() });
    },
  );
} else showPage();
