// "Your own model": takes a GPT-2 from the visitor's disk. What it shows of the model is loaded with the first one.

import { messageOf } from '../../base/format.js';
import { el } from '../../dom/dom.js';
import { keptFolder } from '../../model/kept_folder.js';
import type { App } from '../../state/app.js';
import type { OpenedModel } from './opened_model.js';

export function ownModelSection(app: App): HTMLElement {
  const input = el('input', {
    ...{ type: 'file', id: 'model-files', class: 'sr-only', accept: '.safetensors,.json,.txt' },
    multiple: true,
  });
  const zone = el(
    'label',
    { class: 'drop-zone', for: 'model-files' },
    input,
    el('strong', {}, 'Choose files'),
    el('span', {}, ' or drop them anywhere on this page: a GPT-2 as .safetensors, and its vocab.json and merges.txt.'),
  );
  const status = el('p', { class: 'hint own-status', role: 'status' });
  const section = el(
    'section',
    { class: 'panel', id: 'own', 'aria-labelledby': 'own-title' },
    el('h2', { id: 'own-title' }, 'Your own model'),
    el('p', { class: 'lead' }, 'See the heads of a trained GPT-2 on your sentence. Its weights never leave this browser.'),
    zone,
    status,
  );

  let loading: Promise<OpenedModel> | undefined;

  async function load(): Promise<OpenedModel> {
    const { openedModel } = await import('./opened_model.js');
    const opened = openedModel(app, status);
    section.append(...opened.elements);
    return opened;
  }

  async function withModel(use: (opened: OpenedModel) => void = () => {}): Promise<void> {
    try {
      use(await (loading ??= load()));
    } catch (error) {
      loading = undefined;
      status.textContent = `This part of the page could not be loaded: ${messageOf(error)}`;
    }
  }

  function takeFiles(given: Iterable<File>): void {
    const all = [...given];
    if (all.length > 0) void withModel((opened) => opened.take(all));
  }

  input.addEventListener('change', () => {
    takeFiles(input.files ?? []);
    input.value = '';
  });
  document.addEventListener('dragover', (event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    zone.classList.add('is-over');
  });
  document.addEventListener('dragleave', (event) => {
    if (event.relatedTarget === null) zone.classList.remove('is-over');
  });
  document.addEventListener('drop', (event) => {
    zone.classList.remove('is-over');
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    section.scrollIntoView({ block: 'nearest' });
    takeFiles(event.dataTransfer.files);
  });
  // The section says something about a model in the address, and about a model that this browser keeps.
  app.state.watch(({ model }, previous) => {
    if (model !== '' && model !== previous?.model) void withModel();
  });
  keptFolder().then(
    () => withModel(),
    () => {},
  );
  return section;
}
