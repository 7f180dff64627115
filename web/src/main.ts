// The page: reads its state from the address, starts the worker that computes, and adds the sections.

import './style.css';
import type { App, Pointed } from './app.js';
import { connect, startWorker } from './attention_client.js';
import { unbent } from './bend.js';
import type { ForwardResult } from './messages.js';
import { exposePage } from './page_api.js';
import { fromHash, toHash, type PageState } from './page_state.js';
import { el } from './parts/dom.js';
import { statusChip } from './parts/status_chip.js';
import { themeToggle } from './parts/theme.js';
import { gallerySection } from './sections/gallery.js';
import { sentenceSection } from './sections/sentence.js';
import { stepSection } from './sections/step_through.js';
import { createStore } from './store.js';
import { tokenise } from './tokens.js';

const first = fromHash(location.hash);
const app: App = {
  state: createStore(first.state),
  result: createStore<ForwardResult | null>(null),
  pointed: createStore<Pointed | null>(null),
};

const notice = el('p', { class: 'notice', id: 'notice', role: 'status', hidden: true });
const chip = statusChip(app.result);
const failure = el('p', { class: 'notice is-failure', id: 'failure', role: 'alert', hidden: true });

function sayBroken(broken: readonly string[]): void {
  notice.hidden = broken.length === 0;
  notice.textContent = notice.hidden
    ? ''
    : `Part of this address could not be read (${broken.join(', ')}); the page uses its defaults instead.`;
}

function sayFailed(reason: string): void {
  document.body.classList.add('is-failed');
  chip.fail();
  failure.hidden = false;
  failure.replaceChildren(
    el('strong', {}, 'The attention engine could not start, so there are no numbers to show.'),
    ` The reason: ${reason.replace(/\.$/, '')}. Reloading the page may help.`,
  );
}

function start(): void {
  const client = connect(startWorker(), {
    onResult: (result) => {
      failure.hidden = true;
      document.body.classList.remove('is-failed');
      app.result.set(result);
      performance.mark('numbers shown');
    },
    onFailure: sayFailed,
  });
  app.state.watch((state, previous) => {
    if (previous && !changesNumbers(state, previous)) return;
    const { tokens } = tokenise(state.text);
    if (tokens.length === 0) client.cancel();
    else client.request({ tokens, heads: state.heads, causal: state.causal, bend: unbent, splitHeads: 8 });
    if (tokens.length === 0) app.result.set(null);
  });
}

const changesNumbers = (now: PageState, before: PageState): boolean =>
  now.text !== before.text || now.heads !== before.heads || now.causal !== before.causal;

/**
 * Keeps the address in step with the state. Browsers limit how often it may change, so it is written
 * 200 ms after the last change.
 */
function keepAddress(): void {
  let timer: number | undefined;
  const write = () => {
    const hash = toHash(app.state.get());
    history.replaceState(null, '', hash ? `#${hash}` : location.pathname + location.search);
  };
  app.state.watch((_, previous) => {
    if (!previous) return;
    clearTimeout(timer);
    timer = window.setTimeout(write, 200);
  });
  window.addEventListener('hashchange', () => {
    clearTimeout(timer);
    const { state, broken } = fromHash(location.hash);
    sayBroken(broken);
    app.state.set(state);
  });
}

document.getElementById('tools')!.append(chip.element, themeToggle());
document
  .getElementById('page')!
  .replaceChildren(notice, failure, sentenceSection(app), stepSection(app), gallerySection(app));
exposePage(app);
keepAddress();
sayBroken(first.broken);
try {
  start();
} catch (error) {
  sayFailed(error instanceof Error ? error.message : String(error));
}
