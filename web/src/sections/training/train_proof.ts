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
  const key = el('p', { class: 'wrap hint legend' }, keyOf('before', 'all heads'), keyOf('after', 'muted'));
  const clear = el('button', { class: 'secondary', id: 'train-unmute' }, 'Unmute');
  clear.addEventListener('click', () => {
    // The button goes with its heads, so the focus returns to where the first of them was muted.
    const [head] = training.view.get().muted;
    void training.mute([]);
    document.querySelectorAll<HTMLElement>('.train-name button')[head ?? 0]?.focus();
  });
  training.view.watch((view, previous) => {
    setText(text, sentence(view));
    clear.hidden = bars.hidden = key.hidden = view.muted.length === 0;
    if (view.muting !== previous?.muting) bars.replaceChildren(...rows(view));
  });
  return el(
    'div',
    { class: 'part proof' },
    el('h3', {}, 'Mute a head, and its job goes with it'),
    el('div', { class: 'row apart proof-line' }, text, clear),
    bars,
    key,
  );
}

const namesOf = (muted: readonly number[]): string => `head${muted.length > 1 ? 's' : ''} ${muted.map((head) => head + 1).join(', ')}`;

/** The jobs that the model does noticeably worse without the muted heads. */
function fallenJobs({ muting, curve }: TrainingView): { job: string; before: string; after: string }[] {
  if (!muting) return [];
  return factsOf(curve.settings.kind).jobs.flatMap((job, i) => {
    const [before, after] = [muting.before.jobAccuracy[i]!, muting.after[i]!];
    return before - after > noticeable ? [{ job, before: formatPercent(before), after: formatPercent(after) }] : [];
  });
}

/** Says in a few words, for the line with the step, how muting changes the accuracy; empty if no head is muted. */
export function mutedBriefly(view: TrainingView): string {
  const { muted, muting } = view;
  if (muted.length === 0) return '';
  const fallen = fallenJobs(view);
  const [first] = fallen;
  const more = fallen.length > 1 ? `, ${fallen.length - 1} more` : '';
  const change = first ? `${first.job} ${first.before} → ${first.after}${more}` : muting ? 'nothing lost' : 'measuring…';
  return `Without ${namesOf(muted)}: ${change}`;
}

function sentence(view: TrainingView): string {
  const { muted, muting, status } = view;
  if (muted.length === 0) {
    return status === 'running' ? 'Pause, then press the badge of a head.' : 'Press a head’s badge to switch it off, and see which job breaks.';
  }
  const who = namesOf(muted);
  if (!muting) return `Measuring without ${who}…`;
  const { jobs } = factsOf(view.curve.settings.kind);
  const fallen = fallenJobs(view).map(({ job, before, after }) => `${job} falls from ${before} to ${after}`);
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
