// The switch between the heads that the page shows: of the words model, hand-built, trained here, or of the visitor's model. A choice without
// heads stays disabled, and a sentence says how to get some.

import { novelsTexts, presetOf, presets } from '../attention/presets.js';
import { differs } from '../base/store.js';
import { el, setText } from '../dom/dom.js';
import { update, type App } from '../state/app.js';
import type { HeadSource } from '../state/heads.js';
import { novelsLayers, sourceNames, type SourceName } from '../state/page_state.js';

const titles: Readonly<Record<SourceName, string>> = { novels: 'words model', rules: 'hand-built', trained: 'trained here', model: 'your model' };
const ofNovels =
  '98,000 weights, trained with this library on the words of Jane Austen’s novels: it has learned how her sentences go, not what they mean.';
const ways = { trained: ['#train', 'Train below first'], model: ['#own', 'Open one below'] } as const;

/** Reason why a source has no heads; empty if it has. */
function whyNot(app: App, source: SourceName): string {
  const from = source === 'trained' || source === 'model' ? app.sources.get()[source] : '';
  return typeof from === 'string' ? from : '';
}

function shownSource({ state, heads }: App): SourceName {
  const { given, reading } = heads.get();
  const { source } = state.get();
  return given || reading || source === 'novels' ? source : 'rules';
}

/** Chooses a source, and resets the choices of single heads and words: other heads read other tokens. */
export function choose(app: App, source: SourceName): void {
  const now = app.state.get();
  const sources = app.sources.get();
  const openingOf = (from: HeadSource | string): string => (typeof from === 'object' ? from.opening : '');
  const openings = { novels: novelsTexts[0]!, rules: presets[0]!.text, trained: openingOf(sources.trained), model: openingOf(sources.model) };
  // A text that the visitor wrote stays; another source has its own opening.
  const isOpening = Object.values(openings).includes(now.text) || novelsTexts.includes(now.text);
  const isOwn = !isOpening && !presetOf(now.text);
  const text = isOwn ? now.text : openings[source] || (isOpening ? openings.rules : now.text);
  const from = source === 'trained' || source === 'model' ? sources[source] : undefined;
  const causal = source === 'novels' || (typeof from === 'object' ? from.causal : (presetOf(text)?.causal ?? now.causal));
  update(app, { source, text, causal, query: null, key: null, head: 0, muted: [], edits: [] });
}

export function sourceSwitch(app: App): HTMLElement {
  /** A disabled choice that was pressed; the line gives the reason. */
  let asked: SourceName | undefined;
  const name = el('span', { id: 'source-name', class: 'control-name' }, 'Heads');
  const buttons = sourceNames.map((source) => {
    const button = el('button', { id: `source-${source}`, 'aria-describedby': 'source-line' }, titles[source]);
    button.addEventListener('click', () => {
      asked = whyNot(app, source) ? source : undefined;
      if (asked) show();
      else choose(app, source);
    });
    return button;
  });
  const layers = el('select', { id: 'source-layer' });
  const layerChoice = el('label', { class: 'source-layer' }, 'Layer ', layers);
  layers.addEventListener('change', () => {
    const place = Number(layers.value);
    const { source } = app.state.get();
    update(app, source === 'novels' ? { novelsLayer: place + 1 } : source === 'model' ? { ownLayer: place } : { trainLayer: place + 1 });
  });
  const line = el('p', { class: 'hint', id: 'source-line', role: 'status' });

  const isNew = differs();
  /** Draws only what differs: a link in the line may have the focus. */
  function show(): void {
    const shown = shownSource(app);
    const { given, missing } = app.heads.get();
    const lacks = sourceNames.map((source) => whyNot(app, source));
    const { novelsLayer } = app.state.get();
    if (!isNew([shown, given?.key, missing, asked, lacks, novelsLayer])) return;
    buttons.forEach((button, i) => {
      const source = sourceNames[i]!;
      button.setAttribute('aria-pressed', String(source === shown));
      button.setAttribute('aria-disabled', String(lacks[i] !== ''));
    });
    const count = shown === 'novels' ? novelsLayers : (given?.layers ?? 0);
    layerChoice.hidden = count < 2;
    if (layers.length !== count) layers.replaceChildren(...Array.from({ length: count }, (_, i) => el('option', { value: i }, String(i + 1))));
    layers.value = String(shown === 'novels' ? novelsLayer - 1 : given?.layer);
    const lacking = asked ?? (missing ? app.state.get().source : 'rules');
    if (lacking === 'trained' || lacking === 'model') {
      const [href, way] = ways[lacking];
      const reason = (asked ? whyNot(app, asked) : missing).replace(/\.$/, '');
      line.replaceChildren(`${reason}${shown === 'rules' ? ', so these heads are hand-built' : ''}. `, el('a', { href }, way), '.');
    } else if (given) setText(line, given.line);
    else if (shown === 'novels') setText(line, ofNovels);
    else {
      line.replaceChildren(
        'These heads follow simple rules; they do not understand meaning. ',
        el('a', { href: '#train' }, 'Train some below'),
        ', or ',
        el('a', { href: '#own' }, 'open your own model'),
        '.',
      );
    }
  }

  app.state.watch((now, before) => {
    if (asked && now !== before) asked = undefined;
    show();
  });
  app.sources.watch(() => {
    if (asked && !whyNot(app, asked)) asked = undefined;
    show();
  });
  app.heads.watch(show);
  const segments = el('span', { class: 'segments', role: 'group', 'aria-labelledby': 'source-name' }, ...buttons);
  return el('div', { class: 'row in-use' }, el('div', { class: 'row source' }, name, segments, layerChoice), line);
}

export function sourceList(app: App): HTMLElement {
  const options = sourceNames.map((value) => el('option', { value }, titles[value]));
  const list = el('select', { id: 'bar-source', class: 'wide', 'aria-label': 'Heads' }, ...options);
  list.addEventListener('change', () => choose(app, list.value as SourceName));
  const show = (): void => {
    options.forEach((option, i) => (option.disabled = whyNot(app, sourceNames[i]!) !== ''));
    list.value = shownSource(app);
  };
  app.sources.watch(show);
  app.heads.watch(show);
  return list;
}
