// "Your own model": takes a model from the visitor's disk. What it shows of the model is loaded with the first one.

import { el, panel } from '../../dom/dom.js';
import { englishMegabytes } from '../../model/english_size.js';
import { keptFolder } from '../../model/kept_folder.js';
import type { App } from '../../state/app.js';
import { whyMissing } from '../../workers/missing_file.js';
import type { OpenedModelView, Tell } from './opened_model.js';

export function ownModelSection(app: App): HTMLElement {
  const folderInput = el('input', { type: 'file', id: 'model-folder', class: 'sr-only', webkitdirectory: true });
  const filesInput = el('input', { type: 'file', id: 'model-files', class: 'sr-only', accept: '.safetensors,.json,.gguf', multiple: true });
  const zone = el(
    'div',
    { class: 'drop-zone' },
    el('label', { for: 'model-folder' }, folderInput, el('strong', {}, 'Choose a folder')),
    ' or ',
    el('label', { for: 'model-files' }, filesInput, el('strong', {}, 'its files')),
    ', or drop them anywhere on this page: config.json, the .safetensors files and tokenizer.json, as Hugging Face stores a model, or a GGUF file.',
  );
  const english = el('button', { class: 'secondary', id: 'own-english' }, `Try the little Llama (${englishMegabytes} MB)`);
  const status = el('p', { class: 'under hint line own-status', role: 'status' });
  const tell: Tell = (text, failed = false) => {
    status.textContent = text;
    status.className = `under hint line own-status${failed ? ' notice is-failure' : ''}`;
  };
  const lead = 'See every head of a trained model: GPT-2, Llama, Qwen, Gemma, BERT, MiniLM, ViT and others. Its weights never leave this browser.';
  const about = ' It has read the same novels as the words model of the first screen, but in pieces of words.';
  const sample = el('p', { class: 'far own-sample' }, 'No model at hand? ', english, about);
  const section = panel('own', { title: 'Your own model', lead }, zone, sample, status);

  let loading: Promise<OpenedModelView> | undefined;

  async function load(): Promise<OpenedModelView> {
    const { openedModel } = await import('./opened_model.js');
    const opened = openedModel(app, tell);
    section.append(...opened.elements);
    return opened;
  }

  async function withModel(use: (opened: OpenedModelView) => void = () => {}): Promise<void> {
    try {
      use(await (loading ??= load()));
    } catch {
      loading = undefined;
      tell(await whyMissing(), true);
    }
  }

  english.addEventListener('click', () => void withModel((opened) => opened.tryEnglish()));
  for (const input of [folderInput, filesInput]) {
    input.addEventListener('change', () => {
      const given = { entries: [], files: [...(input.files ?? [])] };
      if (given.files.length > 0) void withModel((opened) => opened.take(given));
      input.value = '';
    });
  }
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
    const { files, items } = event.dataTransfer ?? {};
    if (!files?.length) return;
    event.preventDefault();
    section.scrollIntoView({ block: 'nearest' });
    const given = { entries: [...(items ?? [])].map((item) => item.webkitGetAsEntry?.()), files: [...files] };
    void withModel((opened) => opened.take(given));
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
