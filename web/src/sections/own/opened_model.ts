// The visitor's own model: its heads on a text, its continuation, and the similarity of sentences. Loaded with the first
// model.

import '../../styles/opened_model.css';
import type { ModelInfo } from 'multihead/models';
import type { GivenHeads } from '../../attention/messages.js';
import { maxCharacters } from '../../attention/tokens.js';
import { counted, listed, messageOf } from '../../base/format.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, setText } from '../../dom/dom.js';
import { changeOf, samples } from './change.js';
import { connect } from '../../model/client.js';
import { droppedFiles, type Dropped } from '../../model/dropped.js';
import { englishFiles, englishLayer, englishText, qualityIn } from '../../model/english.js';
import { select, weightBytes } from '../../model/folder_files.js';
import { englishName, formatBytes, isWriter, mostTokens, nameInAddress, shownName, warningOf } from '../../model/limits.js';
import type { GivenFiles, OpenedModel, TextAttention } from '../../model/messages.js';
import { deviceChoices, type DeviceChoice, type ModelPlace } from '../../model/place.js';
import { bytesAs, mostAsStored, weightChoices, type WeightChoice } from '../../model/weights.js';
import { update, type App } from '../../state/app.js';
import { noModel } from '../../state/heads.js';
import type { PageState } from '../../state/page_state.js';
import { whyMissing } from '../../workers/missing_file.js';
import { failureOf } from '../../workers/protocol.js';
import { shareLine } from '../bend/bend.js';
import { createContinuation } from './own_continue.js';
import { classMaps, createOwnHead } from './own_head.js';
import { keptModel } from './own_kept.js';
import { loadingBar } from './own_loading.js';
import { createOverview } from './own_overview.js';
import type { LaboratoryModel } from './laboratory.js';
import { createPictureChoice } from './own_picture.js';
import { createComparison } from './own_similar.js';
import { changeProgram } from './program.js';
import { createSteering } from './steering.js';

/** Read by a model without a tokenizer until the visitor writes other ids. */
const sampleIds = '1 2 3 4 5 6 7 8';

const choiceNames: Readonly<Record<WeightChoice, string>> = {
  auto: `automatic (int8 above ${formatBytes(mostAsStored)})`,
  f32: 'f32, 4 bytes each',
  f16: 'f16, 2 bytes each',
  bf16: 'bf16, 2 bytes each',
  int8: 'int8, 1.1 bytes each',
  int4: 'int4, 0.6 bytes each',
};

const deviceNames = { auto: 'automatic (the faster of the two)', gpu: 'the GPU', cpu: 'the processor' };

export type Tell = (text: string, failed?: boolean) => void;

export type OpenedModelView = ReturnType<typeof openedModel>;

/** `tell` writes the line of the section, which looks like a notice if something has `failed`. */
export function openedModel(app: App, tell: Tell) {
  const bar = loadingBar(() => void client.call('abort').catch(() => {}));
  const client = connect(() => app.startWorker('model'), {
    onEvent: (event) => {
      if ('loaded' in event) bar.show(event);
      else if ('where' in event) showPlace(event);
      else void laboratory?.then(({ take }) => take(event));
    },
    onLost: forgetModel,
  });
  const weights = el('select', { id: 'own-weights' }, ...weightChoices.map((choice) => el('option', { value: choice }, choiceNames[choice])));
  const devices = el('select', { id: 'own-device' }, ...deviceChoices.map((choice) => el('option', { value: choice }, deviceNames[choice])));
  const nameOf = ({ id }: HTMLElement, name: string) => el('label', { for: id, class: 'control-name' }, name);
  const choices = el('p', { class: 'row own-choice' }, nameOf(weights, 'Weights in memory'), weights, nameOf(devices, 'Computes on'), devices);
  const facts = el('p', { class: 'own-facts' });
  const quality = el('p', { class: 'hint' });
  const where = el('span', { class: 'tag own-where' });
  const why = el('p', { class: 'hint own-why' });
  const laboratoryPlace = el('div', { class: 'lab-place' });
  const field = el('textarea', { id: 'own-input', rows: 2, maxlength: maxCharacters, dir: 'auto', spellcheck: 'false' });
  const fieldName = el('label', { for: 'own-input', class: 'control-name' });
  const textBox = el('div', { class: 'own-field' }, fieldName, field);
  const views = createViewSwitch(app, 'ownView', 'Show the map as');
  const openHead = (ownLayer: number, ownHead: number): void => update(app, { ownLayer, ownHead }, 'own-head');
  const overview = createOverview(app, openHead);
  const head = createOwnHead(app);
  const steering = createSteering(app);
  const continuation = createContinuation(client, {
    ...{ control: steering, textNow, onProblem: (problem) => tell(problem, true) },
    changeNow: () => (steering.hidden ? undefined : changeOf(app.state.get(), usualTexts(), openPlace())),
    programOf: (after, change) => changeProgram(inLaboratory(opened!), after, change),
  });
  const comparison = createComparison(app, client);
  const pictureChoice = createPictureChoice(() => void follow());
  const classList = el('ol', { class: 'under bars effect-list own-likely' });
  const classes = el('section', { class: 'part own-classes', 'aria-label': 'Classes', hidden: true }, el('h3', {}, 'Likeliest classes'), classList);
  /** The part of the section that needs a text which the model can read. */
  const picture = el(
    'div',
    { class: 'own-picture', hidden: true },
    overview.element,
    el('div', { class: 'slim' }, el('div', { class: 'row step-controls' }, views), head.element),
  );
  const body = el(
    'div',
    { class: 'own-body', hidden: true },
    textBox,
    pictureChoice.element,
    picture,
    classes,
    continuation.element,
    laboratoryPlace,
    comparison.element,
  );
  const title = el('summary', {}, 'Memory, and where it computes ', where);
  const about = el('details', { class: 'part own-about' }, title, facts, why, quality, choices);
  const kept = keptModel(app, open, () => overview.focus());

  let files: GivenFiles | undefined;
  let opened: OpenedModel | undefined;
  let incomplete: GivenFiles | undefined;
  let attention: TextAttention | undefined;
  let asked: string | undefined;
  let busy = false;
  let openings = 0;
  let laboratory: Promise<ReturnType<(typeof import('./laboratory.js'))['createLaboratory']>> | undefined;
  /** The files that a change of the weights' type or of the device opens again, and the last choices. */
  let again: { readonly files: GivenFiles; readonly weights: WeightChoice; readonly device: DeviceChoice } | undefined;
  let place: ModelPlace | undefined;
  const isEnglish = (): boolean => files?.name === englishName;
  const inView = (): boolean => files !== undefined && nameInAddress(files) === app.state.get().model;

  function textNow(): string {
    const { ownText, text } = app.state.get();
    if (ownText.trim() !== '') return ownText;
    return opened?.readsText === false ? sampleIds : text;
  }

  function openPlace(): { layer: number; head: number } {
    const { ownLayer, ownHead } = app.state.get();
    return { layer: Math.min(ownLayer, opened!.info.numLayers - 1), head: Math.min(ownHead, opened!.info.numHeads - 1) };
  }

  const usualTexts = (): readonly [string, string] => samples[isEnglish() ? 'english' : opened?.readsText === false ? 'ids' : 'text'];

  function showPlace(now: ModelPlace): void {
    place = now;
    setText(where, now.where);
    where.title = why.textContent = now.why;
    if (now.refusal !== '') tell(now.refusal, true);
  }

  const inLaboratory = ({ info, weights: type, readsText }: OpenedModel): LaboratoryModel => ({
    ...{ key: `model ${openings}`, name: shownName(files!), weights: type, readsText, ready: isEnglish() },
    ...{ mostTokens: Math.min(mostTokens, info.maxTokens || mostTokens), text: textNow(), view: app.state.get().ownView, samples: usualTexts() },
  });

  /** Shows the laboratory's results on the present text; loads it when it is first seen. */
  async function lookInside(): Promise<void> {
    if (!opened || !inView() || laboratoryPlace.hidden || !seen) return;
    try {
      laboratory ??= import('./laboratory.js').then(({ createLaboratory }) => createLaboratory(app, client, laboratoryPlace));
      (await laboratory).follow(inLaboratory(opened));
    } catch {
      laboratory = undefined;
      tell(await whyMissing(), true);
    }
  }

  let seen = false;
  new IntersectionObserver(
    ([entry], observer) => {
      if (!entry?.isIntersecting) return;
      observer.disconnect();
      seen = true;
      void lookInside();
    },
    { rootMargin: '50% 0px' },
  ).observe(laboratoryPlace);

  const giveNone = (why: string): void => app.sources.set({ ...app.sources.get(), model: why });

  function forgetModel(): void {
    if (!opened) return;
    const name = shownName(files!);
    files = opened = attention = again = undefined;
    giveNone(noModel);
    continuation.clear();
    body.hidden = true;
    kept.using(undefined);
    tell(`The worker of ${name} has ended, and the model with it. Choose it again.`, true);
  }

  async function open(given: GivenFiles): Promise<void> {
    openings += 1;
    const own = openings;
    // A model that is being read is given up for this one.
    if (!bar.element.hidden) void client.call('abort').catch(() => {});
    const { ownWeights, ownDevice } = app.state.get();
    const before = again;
    again = { files: given, weights: ownWeights, device: ownDevice };
    // Browsers other than Chromium do not tell the memory; phones have about 4 GB.
    const { deviceMemory = matchMedia('(pointer: coarse)').matches ? 4 : 8 } = navigator as { deviceMemory?: number };
    const copies = ownDevice === 'auto' && 'gpu' in navigator ? 2 : 1; // a GPU has its own
    const warning = warningOf(copies * bytesAs(ownWeights, weightBytes(given)), deviceMemory);
    tell(`Reading ${shownName(given)}, ${formatBytes(weightBytes(given))} …${warning}`);
    bar.begin();
    try {
      const model = await client.call('open', given, ownWeights, ownDevice);
      quality.textContent = await qualityIn(given);
      [files, opened, asked] = [given, model, undefined];
      incomplete = undefined;
      continuation.clear();
      const isOther = nameInAddress(given) !== app.state.get().model;
      if (isOther) update(app, { model: nameInAddress(given), ownLayer: given.name === englishName ? englishLayer : 0, ownHead: 0, ownQuery: null });
      showInfo(model);
      giveHeads(model);
      kept.using(given);
      body.hidden = !inView();
      if (own !== openings) return;
      tell('');
      await follow();
    } catch (error) {
      if (own !== openings) return;
      const { code, argument, message } = failureOf(error);
      const lacksMemory = code === 'E_MEMORY';
      // Another type of weights may fit into the memory; it cannot mend another problem.
      if (!lacksMemory && opened) again = before;
      // A worker that has ended says nothing about the model.
      const said = code === 'E_WORKER' && !argument ? `${shownName(given)} cannot be used: ${message}` : message;
      const takes = opened && lacksMemory ? ` The model that is open takes ${formatBytes(opened.info.weightBytes)} of it.` : '';
      tell(opened ? `${said.replace(/\.$/, '')}.${takes} Your earlier model stays open.` : said, true);
    } finally {
      if (own === openings) bar.end();
    }
  }

  /** Lets the other sections show the model's heads, on the sentence of the page. */
  function giveHeads({ info, readsText, noSteps }: OpenedModel): void {
    const name = shownName(files!);
    const version = openings;
    const read = async ({ text, ownLayer }: PageState): Promise<GivenHeads> => {
      const layer = await client.call('heads', readsText ? text : sampleIds, ownLayer);
      const names = Array.from({ length: info.numHeads }, (_, head) => `head ${head + 1}`);
      const line = `Layer ${layer.layer + 1} of ${name}, on your sentence in its own tokens${readsText ? '' : ' (without tokenizer.json, on the tokens 1 to 8)'}.`;
      return { ...layer, steady: true, key: `model ${version} ${layer.layer} ${text}`, names, line };
    };
    const opening = isEnglish() ? englishText : readsText && isWriter(info) ? samples.text[0] : '';
    app.sources.set({ ...app.sources.get(), model: noSteps || { version, causal: info.causal, opening, read } });
  }

  function showInfo(model: OpenedModel): void {
    const { info, weights: type, readsText } = model;
    laboratoryPlace.hidden = steering.hidden = !isWriter(info);
    facts.textContent = factsOf(info, type, weightBytes(files!), readsText || info.takesPixels);
    fieldName.textContent = readsText ? 'Text for this model' : `Numbers of tokens for this model, 0 to ${info.vocabSize - 1}`;
    picture.classList.toggle('is-narrow', info.numHeads <= 12);
    picture.classList.toggle('is-medium', info.numHeads > 6);
    continuation.element.hidden = info.output !== 'languageModel' || !info.causal;
    comparison.element.hidden = info.causal || info.takesPixels;
    textBox.hidden = info.takesPixels;
    pictureChoice.element.hidden = !info.takesPixels;
  }

  /** Computes the model's attention on the current text. While the worker is busy, only the latest text waits. */
  async function follow(): Promise<void> {
    const { ownText, text: sentence } = app.state.get();
    if (field.value !== ownText) field.value = ownText;
    field.placeholder = opened?.readsText === false ? sampleIds : sentence;
    if (!opened || !inView() || busy) return;
    const { info } = opened;
    const input = info.takesPixels ? pictureChoice.key() : textNow();
    if (input !== asked) {
      busy = true;
      asked = input;
      continuation.clear();
      try {
        attention = info.takesPixels ? await client.call('look', pictureChoice.image()) : await client.call('attend', input);
        const { found, ids, weights } = attention;
        tell(found > ids.length ? `Cut to the first ${ids.length} of ${found} tokens.` : (place?.refusal ?? ''));
        if (ids.length > 0)
          overview.show(info.takesPixels ? classMaps(weights, attention.side) : weights, info.takesPixels || attention.written ? [] : ids);
        classList.replaceChildren(...attention.classes.map(({ label, share }) => shareLine(label, share)));
        show();
      } catch (error) {
        attention = undefined;
        if (opened) tell(messageOf(error), true);
      }
      picture.hidden = (attention?.ids.length ?? 0) === 0;
      classes.hidden = (attention?.classes.length ?? 0) === 0;
      busy = false;
      if (attention) void lookInside();
      void follow();
    } else if (!info.causal && !info.takesPixels) await comparison.follow(opened);
  }

  function show(): void {
    if (!attention || !opened || attention.ids.length === 0) return;
    const place = openPlace();
    overview.mark(place.layer, place.head);
    head.show(attention, place, opened.info, app.state.get().ownView);
  }

  async function take(dropped: Dropped): Promise<void> {
    const given = await droppedFiles(dropped).catch((error: unknown) => messageOf(error));
    const selection = typeof given === 'string' ? undefined : select(given, incomplete, files);
    if (typeof given === 'string') tell(`The browser could not read the folder: ${given}`, true);
    else if (!selection) {
      tell(
        `There is no file of a model among ${listed(given.map(({ file }) => shownName(file)))}. Choose config.json and .safetensors, or a .gguf file.`,
        true,
      );
    } else if (selection.missing !== '') {
      incomplete = selection.files;
      tell(`${shownName(selection.files)} needs ${selection.missing} too. Choose it, or the whole folder.`);
    } else {
      incomplete = undefined;
      void open(selection.files);
    }
  }

  /** `asked`: the visitor has pressed its button; an address that names it has its texts, too. */
  async function openEnglish(asked: boolean): Promise<void> {
    const before = openings;
    tell('Loading the little Llama …');
    if (!opened) giveNone('The little Llama is being read');
    try {
      const given = await englishFiles(document.baseURI);
      if (before !== openings) return;
      if (asked && app.state.get().ownText.trim() === '') update(app, { ownText: englishText }, 'own-text');
      await open(given);
    } catch {
      if (before === openings) tell(await whyMissing(), true);
    }
    if (!opened) giveNone(noModel);
  }

  function followAddress({ model }: PageState): void {
    if (model === englishName && !inView()) void openEnglish(false);
  }

  weights.addEventListener('change', () => update(app, { ownWeights: weights.value as WeightChoice }));
  devices.addEventListener('change', () => update(app, { ownDevice: devices.value as DeviceChoice }));
  field.addEventListener('input', () => update(app, { ownText: field.value }, 'own-text'));
  app.state.watch((state, previous) => {
    [weights.value, devices.value] = [state.ownWeights, state.ownDevice];
    if (!previous) return;
    body.hidden = !inView();
    if (state.model !== previous.model && bar.element.hidden) followAddress(state);
    const isOther = again && (state.ownWeights !== again.weights || state.ownDevice !== again.device);
    if (again && isOther && (!opened || inView())) void open(again.files);
    const changed = (...names: (keyof PageState)[]): boolean => names.some((name) => state[name] !== previous[name]);
    if (changed('ownSort')) overview.sort();
    if (changed('ownView', 'ownLayer', 'ownHead', 'ownQuery', 'ownSort')) show();
    if (changed('ownView')) void lookInside();
    const place = state.labChange === 'steer' ? changed('ownLayer', 'labTexts') : state.labChange !== 'none' && changed('ownLayer', 'ownHead');
    if (opened && inView() && !laboratoryPlace.hidden && (place || changed('labChange', 'labFactor'))) continuation.again();
    void follow();
  });
  followAddress(app.state.get());
  return {
    elements: [bar.element, kept.element, body, about],
    /** Opens the model among these files and folders, or adds them to the files of the model that is open. */
    take: (given: Dropped): void => void take(given),
    tryEnglish: (): void => void openEnglish(true),
  };
}

function factsOf(info: ModelInfo, type: string | undefined, fileBytes: number, readsText: boolean): string {
  const kind = type === undefined ? 'as stored' : `as ${type}`;
  const memory = `Its weights take ${formatBytes(info.weightBytes)} of memory ${kind}; the files have ${formatBytes(fileBytes)}.`;
  const reads = readsText ? '' : ' There is no tokenizer.json, so the model reads numbers of tokens: add the file to write words.';
  return `${info.modelType}: ${counted(info.numLayers, 'layer')} of ${counted(info.numHeads, 'head')}, ${info.embedDim} columns, ${inMillions(info.parameters)} parameters. ${memory}${reads}`;
}

const inMillions = (count: number): string => (count < 1e5 ? count.toLocaleString('en') : `${(count / 1e6).toFixed(count < 1e7 ? 2 : 0)} million`);
