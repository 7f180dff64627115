// "Speed": compares this module with plain JavaScript, and with the peers that the visitor selects, in the visitor's
// own browser. Nothing is loaded or run before the button is pressed.

import { choiceOf } from '../../controls/choice.js';
import { el, panel } from '../../dom/dom.js';
import { describe, peerNames, sizeIds, sizes, type PeerName } from '../../speed/messages.js';
import type { App } from '../../state/app.js';
import { whyMissing } from '../../workers/missing_file.js';
import { connect } from '../../workers/remote.js';
import type { Connect } from './measurement.js';

const peerTitles: Readonly<Record<PeerName, string>> = {
  onnxruntime: 'ONNX Runtime Web (14 MB)',
  tensorflow: 'TensorFlow.js (1 MB)',
};

export function speedSection(app: App): HTMLElement {
  const status = el('p', { class: 'hint', role: 'status' }, 'Nothing runs until you press Run.');
  const button = el('button', { class: 'primary', id: 'run-speed', onclick: () => (startOrStop ? startOrStop() : void load()) }, 'Run');
  const save = el('button', { class: 'save', hidden: true }, 'CSV');
  const list = el('ol', { class: 'speed-list' });
  const about = el(
    'p',
    { class: 'far hint speed-about', hidden: true },
    'Bars: calls in a second, so longer is faster. Lines: from the slowest round to the fastest. Each round times every implementation in turn, after all have warmed up.',
  );
  const machine = el('p', { class: 'hint speed-machine', hidden: true });
  const boxes = peerNames.map((name) => ({ name, box: el('input', { type: 'checkbox', name: 'peer', value: name }) }));
  let loading = false;
  let startOrStop: (() => void) | undefined;

  async function load(): Promise<void> {
    if (loading) return;
    loading = true;
    try {
      const { createMeasurement } = await import('./measurement.js');
      const start = () => app.startWorker('speed');
      const connectWorker: Connect = (listener) => connect(start(), { ...listener, nested: { during: 'measure', start } });
      const peers = () => boxes.filter(({ box }) => box.checked).map(({ name }) => name);
      startOrStop = createMeasurement(app, { status, button, save, list, about, machine }, connectWorker, peers);
      startOrStop();
    } catch {
      status.textContent = `The measurement could not start: ${await whyMissing()}`;
    }
    loading = false;
  }

  return panel(
    'speed',
    { title: 'Speed', lead: 'The same attention, computed by this library and by plain JavaScript, timed in your browser.' },
    sizeChoice(app),
    __HAS_PEERS__ ? peerChoice(boxes) : howToHavePeers(),
    el('div', { class: 'row speed-controls' }, button, status, save),
    list,
    about,
    machine,
  );
}

function sizeChoice(app: App): HTMLElement {
  const line = el('span', { class: 'hint' });
  app.state.watch(({ speed }) => {
    line.textContent = describe(speed);
  });
  const options = sizeIds.map((value) => ({ value, label: sizes[value].queries.toLocaleString('en') }));
  const group = choiceOf(app, 'speed', options, { role: 'group', 'aria-labelledby': 'speed-tokens' });
  return el('div', { class: 'row speed-choice' }, el('span', { id: 'speed-tokens' }, 'Tokens'), group, line);
}

function peerChoice(boxes: readonly { name: PeerName; box: HTMLInputElement }[]): HTMLElement {
  const labels = boxes.map(({ name, box }) => el('label', { class: 'badged speed-peer' }, box, peerTitles[name]));
  return el(
    'fieldset',
    { class: 'row speed-choice' },
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
