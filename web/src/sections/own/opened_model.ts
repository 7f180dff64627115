// The visitor's own model: its heads on the sentence, and its continuation. Loaded with the first model.

import '../../styles/opened_model.css';
import { tokenNames } from '../../attention/tokens.js';
import { counted, formatMilliseconds, listed, messageOf } from '../../base/format.js';
import { createViewSwitch } from '../../controls/view_switch.js';
import { el, refill } from '../../dom/dom.js';
import { createLegend } from '../../maps/legend.js';
import { connect } from '../../model/client.js';
import { formatBytes, nameInAddress, refusalOf, shownName } from '../../model/limits.js';
import type { GivenFiles } from '../../model/messages.js';
import { problemOf } from '../../model/problems.js';
import type { TextAttention, ModelInfo } from '../../model/session.js';
import { update, type App } from '../../state/app.js';
import { columnsFor } from '../gallery/gallery.js';
import { shareLine } from '../bend/bend.js';
import { createOwnHead, type OwnHead } from './own_head.js';
import { keptModel } from './own_kept.js';
import { createOverview } from './own_overview.js';

const mostNew = 24;

export interface OpenedModel {
  /** The parts of the section below its status. */
  readonly elements: readonly HTMLElement[];
  /** Opens the model among these files, or adds them to the files of the model that is open. */
  take(given: readonly File[]): void;
}

export function openedModel(app: App, status: HTMLElement): OpenedModel {
  const client = connect(() => app.startWorker('model'), forgetModel);
  const facts = el('p', { class: 'own-facts' });
  const layer = el('input', { type: 'range', id: 'own-layer', min: 1, max: 1, step: 1, value: 1 });
  const layerValue = el('output', { for: 'own-layer', class: 'number control-value' });
  const heads = el('select', { id: 'own-heads' });
  const views = createViewSwitch(app, 'ownView', 'Show the maps as');
  const legend = createLegend('weights');
  const cards = el('div', { class: 'cards own-cards' });
  const go = el('button', { type: 'button', class: 'secondary', id: 'own-continue' }, 'Continue the sentence');
  const written = el('p', { class: 'own-text', id: 'own-text', 'aria-live': 'polite' });
  const likely = el('ol', { class: 'effect-list own-likely', 'aria-label': 'The likeliest next tokens', hidden: true });
  const overview = createOverview((index) => update(app, { ownLayer: index }));
  /** The part of the section that needs a sentence which the model can read. */
  const picture = el(
    'div',
    { hidden: true },
    el(
      'div',
      { class: 'step-controls' },
      el('span', { class: 'own-choice' }, el('label', { for: 'own-layer', class: 'control-name' }, 'Layer'), layer, layerValue),
      el('span', { class: 'own-choice' }, el('label', { for: 'own-heads', class: 'control-name' }, 'Heads'), heads),
      views.element,
    ),
    overview.element,
    cards,
    legend.element,
    el('div', { class: 'own-continue' }, go, written),
    likely,
  );
  const body = el('div', { class: 'own-body', hidden: true }, facts, picture);
  const kept = keptModel(app, open);

  let files: GivenFiles | undefined;
  let info: ModelInfo | undefined;
  let attention: TextAttention | undefined;
  let list: OwnHead[] = [];
  let asked = '';
  let busy = false;
  let run = 0;
  /** Number of heads in the address when the model was opened. */
  let askedHeads: number | null = null;
  const inView = (): boolean => files !== undefined && nameInAddress(files.model) === app.state.get().model;

  function forgetModel(): void {
    if (!info) return;
    const name = shownName(files!.model);
    files = info = attention = undefined;
    run += 1;
    body.hidden = true;
    kept.using(undefined);
    status.textContent = `The worker of ${name} has ended, and the model with it. Choose the file again.`;
  }

  async function open(given: GivenFiles): Promise<void> {
    const refusal = refusalOf(given.model);
    if (refusal) {
      status.textContent = refusal;
      return;
    }
    run += 1;
    status.textContent = `Reading ${shownName(given.model)}, ${formatBytes(given.model.size)} …`;
    const { model, ownHeads } = app.state.get();
    const again = nameInAddress(given.model) === model;
    askedHeads = again ? ownHeads : null;
    try {
      const opened = await client.call('open', { ...given, heads: askedHeads ?? undefined });
      [files, info, asked] = [given, opened, ''];
      status.textContent = '';
      showInfo(opened);
      if (!again) update(app, { model: nameInAddress(given.model), ownHeads: null, ownLayer: 0 });
      kept.using(given);
      body.hidden = false;
      await follow();
    } catch (error) {
      status.textContent = `${problemOf(shownName(given.model), messageOf(error))}${info ? ' Your earlier model stays open.' : ''}`;
    }
  }

  function showInfo(opened: ModelInfo): void {
    facts.textContent =
      `${counted(opened.layers, 'layer')} of ${counted(opened.heads, 'head')}, ${opened.width} columns, ${inMillions(opened.parameters)} parameters. ` +
      (opened.tokens === 'byte pairs'
        ? `The text is cut into pieces from a list of ${opened.vocabulary.toLocaleString('en')}.`
        : 'Without vocab.json and merges.txt, words get arbitrary numbers, which the model cannot read, and the maps mean nothing.');
    layer.max = String(opened.layers);
    const options = opened.possibleHeads.map((count) =>
      el('option', { value: count, selected: count === opened.heads }, String(count)),
    );
    heads.replaceChildren(...options);
    written.textContent = '';
  }

  /**
   * Computes the model's attention on the current sentence. While the worker is busy, only the latest sentence waits.
   */
  async function follow(): Promise<void> {
    const { text } = app.state.get();
    if (!info || !inView() || busy || text === asked) return;
    busy = true;
    asked = text;
    run += 1;
    written.textContent = '';
    likely.hidden = true;
    try {
      attention = await client.call('attend', text);
      overview.show(attention.weights);
      status.textContent =
        attention.found > attention.ids.length ? `Cut to the first ${attention.ids.length} of ${attention.found} tokens.` : '';
      show();
    } catch (error) {
      attention = undefined;
      if (info) status.textContent = `The model cannot read this sentence: ${messageOf(error)}`;
    }
    picture.hidden = attention === undefined;
    busy = false;
    void follow();
  }

  function show(): void {
    if (!attention || !info) return;
    const index = Math.min(app.state.get().ownLayer, info.layers - 1);
    const matrix = attention.weights[index];
    overview.mark(index);
    layer.value = String(index + 1);
    layerValue.textContent = `${index + 1} of ${info.layers}`;
    cards.hidden = matrix === undefined;
    if (!matrix) return;
    const count = matrix.shape[0]!;
    while (list.length < count) list.push(createOwnHead(list.length, point));
    list = list.slice(0, count);
    refill(cards, ...list.map((head) => head.element));
    cards.dataset['columns'] = String(columnsFor(count, attention.ids.length, views.current()));
    for (const head of list) head.show(matrix, tokenNames(attention.labels), index + 1, views.current());
    legend.show({ masked: true });
  }

  function point(cell: { row: number; col: number } | null): void {
    for (const head of list) head.highlight(cell);
  }

  async function continueSentence(): Promise<void> {
    run += 1;
    const own = run;
    const { text } = app.state.get();
    const words: string[] = [];
    let total = 0;
    try {
      let next = await client.call('start', text);
      const prompt = next.milliseconds;
      while (own === run) {
        words.push(next.label);
        likely.hidden = false;
        likely.replaceChildren(...next.likeliest.map(({ label, share }) => shareLine(readable([label]), share)));
        if (words.length > 1) total += next.milliseconds;
        const mean = words.length > 1 ? `, then ${formatMilliseconds(total / (words.length - 1))} a token with the cache` : '';
        written.replaceChildren(
          el('strong', {}, readable(words)),
          el('span', { class: 'hint' }, ` ${words.length} tokens; the sentence took ${formatMilliseconds(prompt)}${mean}.`),
        );
        if (!next.more || words.length >= mostNew) break;
        next = await client.call('next');
      }
    } catch (error) {
      if (info) status.textContent = messageOf(error);
    }
  }

  const readable = (words: readonly string[]): string =>
    info?.tokens === 'byte pairs' ? words.join('').replaceAll('·', ' ') : words.join(' ');

  function take(given: readonly File[]): void {
    const named = (pattern: RegExp) => given.find(({ name }) => pattern.test(name));
    const model = named(/\.safetensors$/i) ?? files?.model;
    const vocabulary = named(/vocab.*\.json$/i) ?? files?.vocabulary;
    const merges = named(/merges.*\.txt$/i) ?? files?.merges;
    if (!model) status.textContent = `There is no .safetensors file among ${listed(given.map(shownName))}.`;
    else void open({ model, vocabulary, merges });
  }

  layer.addEventListener('input', () => update(app, { ownLayer: Number(layer.value) - 1 }, 'own-layer'));
  heads.addEventListener('change', () => update(app, { ownHeads: Number(heads.value) }));
  go.addEventListener('click', () => void continueSentence());
  app.state.watch((state, previous) => {
    if (!previous) return;
    body.hidden = !inView();
    if (files && inView() && state.ownHeads !== askedHeads) void open(files);
    else if (state.ownView !== previous.ownView || state.ownLayer !== previous.ownLayer) show();
    void follow();
  });
  return { elements: [kept.element, body], take };
}

const inMillions = (count: number): string =>
  count < 1e5 ? count.toLocaleString('en') : `${(count / 1e6).toFixed(count < 1e7 ? 2 : 0)} million`;
