// One training session for each kind of training: a visitor who looks at the other kind finds the first as it was.

import type { ExperimentKind } from 'multihead';
import { createStore } from '../base/store.js';
import { createTraining, type Browser, type TrainingSession } from './session.js';
import type { TrainingSettings } from './settings.js';

export function createTrainings(first: TrainingSettings, browser: Browser): TrainingSession {
  const sessions = new Map<ExperimentKind, TrainingSession>();
  let shown = open(first);
  const view = createStore(shown.view.get());

  function open(settings: TrainingSettings): TrainingSession {
    const session = createTraining(settings, browser);
    sessions.set(settings.kind, session);
    session.view.watch((now, before) => {
      if (before && session === shown) view.set(now);
    });
    return session;
  }

  async function reset(settings: TrainingSettings, goesOn?: boolean): Promise<void> {
    const before = shown;
    const known = sessions.get(settings.kind);
    if (known === before) return before.reset(settings, goesOn);
    before.pause();
    shown = known ?? open(settings);
    const { curve } = shown.view.get();
    if (JSON.stringify(curve.settings) !== JSON.stringify(settings)) void shown.reset(settings, false);
    view.set(shown.view.get());
    if (before.view.get().status !== 'notStarted') await shown.startWorkers();
  }

  return {
    view,
    reset,
    startWorkers: () => shown.startWorkers(),
    train: () => shown.train(),
    pause: () => shown.pause(),
    step: () => shown.step(),
    goTo: (step) => shown.goTo(step),
    mute: (heads) => shown.mute(heads),
    dropEarlier: () => shown.dropEarlier(),
    call: (name, ...values) => shown.call(name, ...values),
  };
}
