// A row of cells, one for each job: a head's progress in that job, from 0 to 1, in the color of its map.

import { formatNumber } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import { paintTheme, repaints } from '../../dom/printing.js';
import { weightScale } from '../../maps/color_scale.js';
import type { KindFacts } from '../../training/settings.js';

export type JobCells = ReturnType<typeof createJobCells>;

export function createJobCells(jobs: KindFacts['patterns'], head: number) {
  const boxes = jobs.map(() => el('span', { class: 'job-box number', 'aria-hidden': 'true' }));
  const spoken = jobs.map(() => el('span', { class: 'sr-only' }));
  const cells = jobs.map(({ name, short }, i) =>
    el('li', { class: 'job-cell', title: name }, boxes[i]!, el('span', { class: 'job-name', 'aria-hidden': 'true' }, short), spoken[i]!),
  );
  let shown: { values: readonly number[]; muted: boolean } | undefined;

  function draw(): void {
    if (!shown) return;
    const color = weightScale(paintTheme.get());
    boxes.forEach((box, i) => {
      const value = shown!.muted ? undefined : shown!.values[i];
      const { fill = '', ink = '' } = value === undefined ? {} : color(value, head);
      box.classList.toggle('is-muted', shown!.muted);
      box.style.backgroundColor = fill;
      box.style.color = ink;
      const text = value === undefined ? '–' : formatNumber(value, 2);
      setText(box, shown!.muted ? '' : text);
      setText(spoken[i]!, `${jobs[i]!.name}: ${shown!.muted ? 'muted' : text}`);
    });
  }
  const element = el('ul', { class: 'job-cells' }, ...cells);
  repaints(element, draw);
  return {
    element,
    /** Shows the values; none before there are heads. A muted head has no values: its cells are hatched. */
    show(values: readonly number[], muted: boolean): void {
      shown = { values, muted };
      draw();
    },
  };
}
