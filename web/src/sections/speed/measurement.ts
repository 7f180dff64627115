// A measurement of the speed section and its results. Loaded with the first measurement.

import '../../styles/measurement.css';
import { messageOf } from '../../base/format.js';
import { download, el } from '../../dom/dom.js';
import { describe, type PeerName, type SizeId, type SpeedCalls, type SpeedEvent } from '../../speed/messages.js';
import { busyLine, comparison, csvOfSpeed, gigaflops, machineName, reported, significant, type Reported } from '../../speed/report.js';
import type { App } from '../../state/app.js';
import type { Listener, Remote } from '../../workers/remote.js';

type Places = Readonly<Record<'status' | 'button' | 'save' | 'list' | 'about' | 'machine', HTMLElement>>;

export type Connect = (listener: Listener<SpeedEvent>) => Remote<SpeedCalls>;

export function createMeasurement(app: App, places: Places, connect: Connect, peers: () => PeerName[]): () => void {
  const { status, button, save, list, about, machine } = places;
  let worker: Remote<SpeedCalls> | undefined;
  let last: Extract<SpeedEvent, { kind: 'rows' }> | undefined;
  let lastSize: SizeId = 'paragraph';

  function stop(said: string): void {
    worker?.close('it was stopped');
    worker = undefined;
    button.textContent = 'Run';
    status.textContent = said;
  }

  function run(): void {
    last = undefined;
    lastSize = app.state.get().speed;
    list.replaceChildren();
    save.hidden = machine.hidden = about.hidden = true;
    button.textContent = 'Stop';
    status.textContent = 'Starting';
    const started = connect({
      onEvent: showProgress,
      onLost: ({ message }, ended) => stop(`The measurement ${ended ? 'has stopped' : 'could not start'}: ${message}`),
    });
    worker = started;
    started.call('measure', { size: lastSize, peers: peers() }).then(
      () => stop(`Done: ${describe(lastSize)}, median of ${last?.rounds ?? 0} rounds. ${busyLine(reported(last?.rows ?? []))}`.trim()),
      (error: unknown) => started === worker && stop(`The measurement failed: ${messageOf(error)}`),
    );
  }

  function showProgress(event: SpeedEvent): void {
    if (event.kind === 'step') {
      status.textContent = `${event.what}…`;
      return;
    }
    last = event;
    status.textContent = `Round ${event.round} of ${event.rounds}…`;
    show(reported(event.rows));
    const isolated = crossOriginIsolated ? 'cross-origin isolated' : 'not cross-origin isolated';
    machine.textContent = `${machineName(navigator)}. ${event.engine.simd === 'relaxed' ? 'Relaxed SIMD' : 'SIMD128'}, ${isolated}.`;
    save.hidden = machine.hidden = about.hidden = false;
  }

  function show(rows: readonly Reported[]): void {
    const fastest = Math.max(...rows.filter(({ failure }) => !failure).map(({ fastest: best }) => 1 / best));
    list.replaceChildren(...rows.map((row) => speedRow(row, fastest, lastSize)));
  }

  save.addEventListener('click', () => {
    if (!last) return;
    const text = csvOfSpeed(reported(last.rows), lastSize, last.engine, machineName(navigator));
    download(new Blob([text], { type: 'text/csv' }), `multihead-speed-${lastSize}.csv`);
  });
  return () => (worker ? stop('Stopped.') : run());
}

/** A bar whose length is the number of calls per second, with a line from the slowest to the fastest round. */
function speedRow(row: Reported, fastest: number, size: SizeId): HTMLElement {
  const { name, note, failure, milliseconds, fastest: least, slowest } = row;
  const title = el('span', { class: 'hint speed-name' }, el('strong', {}, name), note ? ` ${note}` : '');
  if (failure) return el('li', { class: 'speed-row' }, title, el('span', { class: 'speed-facts' }, `No result: ${failure}`));
  const share = (time: number) => 100 / time / fastest;
  const bar = el('span', { class: 'speed-bar' });
  const spread = el('span', { class: 'speed-spread' });
  bar.style.width = `${share(milliseconds)}%`;
  spread.style.left = `${share(slowest)}%`;
  spread.style.width = `${share(least) - share(slowest)}%`;
  const kind = name.startsWith('multihead') ? 'speed-row is-ours' : 'speed-row';
  return el(
    'li',
    { class: kind },
    title,
    el('span', { class: 'speed-track', 'aria-hidden': 'true' }, bar, spread),
    el(
      'span',
      { class: 'speed-facts' },
      el('strong', { class: 'number' }, `${significant(milliseconds)} ms`),
      el('span', { class: 'number' }, ` (${significant(least)} to ${significant(slowest)}), ${gigaflops(size, milliseconds)}`),
      el('span', { class: 'speed-comparison' }, comparison(row)),
    ),
  );
}
