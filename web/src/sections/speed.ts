// "Speed": compares this module with plain JavaScript, and with the peers that the visitor selects, in the visitor's
// own browser. Nothing is loaded or run before the button is pressed.

import { messageOf } from '../base/format.js';
import { choiceOf } from '../controls/choice.js';
import { el } from '../dom/dom.js';
import { download } from '../maps/save_map.js';
import { peerNames, sizeIds, sizes, type PeerName, type SizeId, type SpeedCalls, type SpeedEvent } from '../speed/messages.js';
import type { Reported } from '../speed/report.js';
import type { App } from '../state/app.js';
import { connect, type Remote } from '../workers/remote.js';

/** The texts about measurements; loaded with the first measurement. */
type Report = typeof import('../speed/report.js');

const peerTitles: Readonly<Record<PeerName, string>> = {
  onnxruntime: 'ONNX Runtime Web (14 MB)',
  tensorflow: 'TensorFlow.js (1 MB)',
};

export function speedSection(app: App): HTMLElement {
  const status = el('p', { class: 'hint', role: 'status' }, 'Nothing runs until you press Run.');
  const button = el('button', { type: 'button', class: 'secondary speed-run', id: 'run-speed' }, 'Run');
  const save = el('button', { type: 'button', class: 'save', hidden: true }, 'CSV');
  const list = el('ol', { class: 'speed-list' });
  const about = el(
    'p',
    { class: 'hint speed-about', hidden: true },
    'Bars: calls in a second, so longer is faster. Lines: from the slowest round to the fastest. Each round times every implementation in turn, after all have warmed up.',
  );
  const machine = el('p', { class: 'hint speed-machine', hidden: true });
  const boxes = peerNames.map((name) => ({ name, box: el('input', { type: 'checkbox', name: 'peer', value: name }) }));
  let worker: Remote<SpeedCalls> | undefined;
  let report: Report | undefined;
  let last: Extract<SpeedEvent, { kind: 'rows' }> | undefined;
  let lastSize: SizeId = 'paragraph';

  function stop(said: string): void {
    worker?.close('it was stopped');
    worker = undefined;
    button.textContent = 'Run';
    status.textContent = said;
  }

  async function run(): Promise<void> {
    try {
      report ??= await import('../speed/report.js');
    } catch (error) {
      return stop(`The measurement could not start: ${messageOf(error)}`);
    }
    if (worker) return;
    const { busyLine, reported } = report;
    last = undefined;
    lastSize = app.state.get().speed;
    list.replaceChildren();
    save.hidden = machine.hidden = about.hidden = true;
    button.textContent = 'Stop';
    status.textContent = 'Starting';
    const started = connect<SpeedCalls, SpeedEvent>(app.startWorker('speed'), {
      onEvent: showProgress,
      onLost: (reason, ended) => stop(`The measurement ${ended ? 'has stopped' : 'could not start'}: ${reason}`),
    });
    worker = started;
    const peers = boxes.filter(({ box }) => box.checked).map(({ name }) => name);
    started.call('measure', { size: lastSize, peers }).then(
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
    if (!report) return;
    show(report, report.reported(event.rows));
    const isolated = crossOriginIsolated ? 'cross-origin isolated' : 'not cross-origin isolated';
    machine.textContent = `${report.machineName(navigator)}. ${event.engine.simd === 'relaxed' ? 'Relaxed SIMD' : 'SIMD128'}, ${isolated}.`;
    save.hidden = machine.hidden = about.hidden = false;
  }

  function show(texts: Report, rows: readonly Reported[]): void {
    const fastest = Math.max(...rows.filter(({ failure }) => !failure).map(({ fastest: best }) => 1 / best));
    list.replaceChildren(...rows.map((row) => speedRow(texts, row, fastest, lastSize)));
  }

  button.addEventListener('click', () => (worker ? stop('Stopped.') : void run()));
  save.addEventListener('click', () => {
    if (!last || !report) return;
    const text = report.csvOfSpeed(report.reported(last.rows), lastSize, last.engine, report.machineName(navigator));
    download(new Blob([text], { type: 'text/csv' }), `multihead-speed-${lastSize}.csv`);
  });
  return el(
    'section',
    { class: 'panel', id: 'speed', 'aria-labelledby': 'speed-title' },
    el('h2', { id: 'speed-title' }, 'Speed'),
    el('p', { class: 'lead' }, 'The same attention, computed by this library and by plain JavaScript, timed in your browser.'),
    sizeChoice(app),
    __HAS_PEERS__ ? peerChoice(boxes) : howToHavePeers(),
    el('div', { class: 'speed-controls' }, button, status, save),
    list,
    about,
    machine,
  );
}

const describe = (id: SizeId): string => {
  const { heads, queries, width } = sizes[id];
  return `${queries.toLocaleString('en')} tokens, ${heads} heads of width ${width}`;
};

function sizeChoice(app: App): HTMLElement {
  const line = el('span', { class: 'hint' });
  app.state.watch(({ speed }) => {
    line.textContent = describe(speed);
  });
  const options = sizeIds.map((value) => ({ value, label: sizes[value].queries.toLocaleString('en') }));
  const group = choiceOf(app, 'speed', options, { role: 'group', 'aria-labelledby': 'speed-tokens' });
  return el('div', { class: 'speed-choice' }, el('span', { id: 'speed-tokens' }, 'Tokens'), group, line);
}

function peerChoice(boxes: readonly { name: PeerName; box: HTMLInputElement }[]): HTMLElement {
  const labels = boxes.map(({ name, box }) => el('label', { class: 'speed-peer' }, box, peerTitles[name]));
  return el(
    'fieldset',
    { class: 'speed-choice' },
    el('legend', { class: 'sr-only' }, 'Also compare with'),
    el('span', {}, 'Also:'),
    ...labels,
    el('span', { class: 'hint' }, 'loaded from this site when you press Run'),
  );
}

function howToHavePeers(): HTMLElement {
  return el(
    'p',
    { class: 'hint speed-choice' },
    'To compare with ONNX Runtime and TensorFlow.js too, start this page with ',
    el('code', {}, 'npm start -- --peers'),
    '.',
  );
}

/** A bar whose length is the number of calls per second, with a line from the slowest to the fastest round. */
function speedRow({ comparison, gigaflops, significant }: Report, row: Reported, fastest: number, size: SizeId): HTMLElement {
  const { name, note, failure, milliseconds, fastest: least, slowest } = row;
  const title = el('span', { class: 'speed-name' }, el('strong', {}, name), note ? ` ${note}` : '');
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
