// "Mute as proof": the model's accuracy without the muted heads, job by job.

import { formatPercent } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import type { App } from '../../state/app.js';
import { factsOf } from '../../training/settings.js';
import { earnedBy, type TrainingView } from '../../training/view.js';

/** Smaller changes in accuracy are not mentioned. */
const noticeable = 0.05;

export function mutedJobs(app: App): HTMLElement {
  const { training } = app;
  const text = el('p', { class: 'proof-text', role: 'status' });
  const bars = el('ul', { class: 'proof-bars' });
  const key = el('p', { class: 'legend' }, keyOf('before', 'all heads'), keyOf('after', 'muted'));
  const clear = el('button', { type: 'button', class: 'secondary', id: 'train-unmute' }, 'Unmute');
  clear.addEventListener('click', () => {
    void training.mute([]);
    document.getElementById('train-go')?.focus({ preventScroll: true });
  });
  training.view.watch((view, previous) => {
    setText(text, sentence(view));
    clear.hidden = bars.hidden = key.hidden = view.muted.length === 0;
    if (view.muting !== previous?.muting) bars.replaceChildren(...rows(view));
  });
  return el(
    'div',
    { class: 'proof' },
    el('h3', {}, 'Mute a head, and its job goes with it'),
    el('div', { class: 'proof-line' }, text, clear),
    bars,
    key,
  );
}

function sentence(view: TrainingView): string {
  const { muted, muting, status } = view;
  if (muted.length === 0) {
    return status === 'running'
      ? 'Pause, then press the badge of a head.'
      : 'Press a head’s badge to switch it off, and see which job breaks.';
  }
  const who = `head${muted.length > 1 ? 's' : ''} ${muted.map((head) => head + 1).join(', ')}`;
  if (!muting) return `Measuring without ${who}…`;
  const { jobs } = factsOf(view.curve.settings.kind);
  const fallen = jobs.flatMap((job, i) => {
    const [before, after] = [muting.before.jobAccuracy[i]!, muting.after[i]!];
    return before - after > noticeable ? [`${job} falls from ${formatPercent(before)} to ${formatPercent(after)}`] : [];
  });
  const others = jobs.length - fallen.length;
  if (fallen.length === 0) return `Without ${who}, nothing is lost: other heads do the work.`;
  const rest = others === 0 ? '' : others === 1 ? '; the other job stays' : `; the other ${others} jobs stay`;
  return `Without ${who}, ${fallen.join(', and ')}${rest}.${redundancy(view)}`;
}

/** Says if the muted heads have no badge, because muting them then proves little. */
function redundancy(view: TrainingView): string {
  const jobs = view.muted.flatMap((head) => earnedBy(view, head));
  return jobs.length > 0 ? '' : ' It had earned no badge.';
}

function rows({ muting, curve }: TrainingView): HTMLElement[] {
  if (!muting) return [];
  return factsOf(curve.settings.kind).jobs.map((job, i) => {
    const [before, after] = [muting.before.jobAccuracy[i]!, muting.after[i]!];
    return el(
      'li',
      { class: before - after > noticeable ? 'proof-row is-fallen' : 'proof-row' },
      el('span', { class: 'proof-job' }, job),
      el('span', { class: 'proof-pair', 'aria-hidden': 'true' }, bar(before, 'before'), bar(after, 'after')),
      el('span', { class: 'proof-value number' }, `${formatPercent(before)} → ${formatPercent(after)}`),
    );
  });
}

const keyOf = (when: 'before' | 'after', meaning: string): HTMLElement =>
  el('span', { class: 'legend-item' }, el('span', { class: `proof-bar is-${when}`, 'aria-hidden': 'true' }), meaning);

function bar(share: number, when: 'before' | 'after'): HTMLElement {
  const element = el('span', { class: `proof-bar is-${when}` });
  element.style.width = `${100 * share}%`;
  return element;
}
