// A line that says whether the visitor's own model will be there after a reload, and a button that keeps its files in this
// browser or forgets them.

import { messageOf, quoted } from '../../base/format.js';
import { el } from '../../dom/dom.js';
import { forget, keep, keptFiles } from '../../model/kept.js';
import { allBytes } from '../../model/folder_files.js';
import { englishName, formatBytes, nameInAddress, shownName } from '../../model/limits.js';
import type { GivenFiles } from '../../model/messages.js';
import type { App } from '../../state/app.js';

/** `focus`: moves the focus to what shows the model. */
export function keptModel(app: App, open: (files: GivenFiles) => Promise<void>, focus: () => void) {
  const line = el('span', { role: 'status' });
  const openIt = el('button', { class: 'secondary', id: 'own-open' }, 'Open it');
  const keepIt = el('button', { class: 'secondary', id: 'own-keep', onclick: () => void change() });
  const element = el('p', { class: 'row hint own-kept', hidden: true }, line, openIt, keepIt);
  let used: GivenFiles | undefined;
  let kept: GivenFiles | null = null;
  let trouble = '';
  let busy = false;
  /** True if the button now forgets the files, false if it keeps them. */
  let forgets = false;

  function show(): void {
    const { model } = app.state.get();
    const inUse = used !== undefined && nameInAddress(used) === model;
    const isKept = kept !== null && (!inUse || kept.name === used!.name);
    // The address alone opens the little Llama again.
    element.hidden = inUse ? model === englishName : kept === null && model === '';
    openIt.hidden = inUse || kept === null;
    keepIt.hidden = !inUse && kept === null;
    forgets = isKept;
    keepIt.textContent = isKept ? 'Forget it' : 'Keep it in this browser';
    keepIt.setAttribute('aria-disabled', String(busy));
    line.textContent = element.hidden ? '' : trouble || say(model, inUse, isKept);
  }

  function say(model: string, inUse: boolean, isKept: boolean): string {
    if (busy) return `Copying ${formatBytes(allBytes(used!))} …`;
    if (isKept) {
      return `${shownName(kept!)} is kept in this browser, ${formatBytes(allBytes(kept!))}. Only this page can read it.`;
    }
    if (!inUse && model === englishName) return 'This address was made with the little Llama. Try it to see its heads.';
    return inUse
      ? `After a reload the page asks for the files again. Keeping it in this browser takes ${formatBytes(allBytes(used!))}.`
      : `This address was made with a model named ${quoted(model, 40)}, which is not part of it: files never leave a browser. Choose that model to see its heads.`;
  }

  async function change(): Promise<void> {
    if (busy) return;
    const action = forgets ? forget : () => keep(used!);
    busy = !forgets;
    trouble = '';
    show();
    try {
      await action();
    } catch (error) {
      const full = error instanceof DOMException && error.name === 'QuotaExceededError';
      const reason = full ? 'it has too little room.' : messageOf(error);
      trouble = `This browser cannot keep the files: ${reason}`;
    }
    busy = false;
    kept = await keptFiles();
    show();
  }

  openIt.addEventListener('click', async () => {
    if (!kept) return;
    await open(kept);
    // The button is gone, and the focus with it.
    if (openIt.hidden) focus();
  });
  app.state.watch(({ model }, previous) => model !== previous?.model && show());
  void keptFiles().then((files) => {
    kept = files;
    show();
  });
  return {
    element,
    using(files: GivenFiles | undefined): void {
      used = files;
      trouble = '';
      show();
    },
  };
}
