// "Train live": two small experiments in which heads with random initial weights each learn a job.

import { differs } from '../../base/store.js';
import { el } from '../../dom/dom.js';
import type { App } from '../../state/app.js';
import { settingsOf } from '../../training/settings.js';
import { runButtons, trainChart } from './train_chart.js';
import { trainHeads } from './train_heads.js';
import { mutedJobs } from './train_proof.js';
import { aboutTask, kindButtons, trainFields } from './train_settings.js';

/** Milliseconds for which a hidden page continues to train. */
const hiddenFor = 20_000;

export function trainSection(app: App): HTMLElement {
  const heads = trainHeads(app);
  const section = el(
    'section',
    { class: 'panel', id: 'train', 'aria-labelledby': 'train-title' },
    el(
      'div',
      { class: 'wrap train-head' },
      el('h2', { id: 'train-title' }, 'Train live'),
      el('p', { class: 'lead' }, 'These heads start as noise, and nothing tells them where to look. Training alone gives each its job.'),
    ),
    kindButtons(app),
    runButtons(app),
    aboutTask(app),
    heads.element,
    trainChart(app),
    heads.about,
    mutedJobs(app),
    trainFields(app),
  );
  // Without a model there is nothing to print.
  app.training.view.watch(({ tokens }) => section.classList.toggle('is-empty', tokens.length === 0));
  followSettings(app);
  startNear(section, app);
  pauseHidden(app);
  return section;
}

/** Starts a new run when the settings change: by the address, by the controls, or by Back. */
function followSettings(app: App): void {
  const isNew = differs();
  app.state.watch((state, before) => {
    const settings = settingsOf(state);
    if (isNew(settings) && before) void app.training.reset(settings, !app.history.isMove());
  });
}

/** Starts the workers when the section comes near the screen. */
function startNear(section: HTMLElement, app: App): void {
  const watcher = new IntersectionObserver(
    ([entry]) => {
      if (!entry?.isIntersecting) return;
      watcher.disconnect();
      void app.training.startWorkers();
    },
    { rootMargin: '200px' },
  );
  watcher.observe(section);
}

function pauseHidden(app: App): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => app.training.pause(), hiddenFor);
  });
}
