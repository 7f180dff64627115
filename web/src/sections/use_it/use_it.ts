// "Use it": a JavaScript or C++ program that computes the numbers on the screen, the file that it reads, and a link to
// the page in its current state.

import { choiceOf } from '../../controls/choice.js';
import { el, panel } from '../../dom/dom.js';
import { download } from '../../dom/dom.js';
import { addressWithPlace } from '../../page/places.js';
import { chosen, type App } from '../../state/app.js';
import { programLanguages, type ProgramLanguage } from '../../state/page_state.js';
import { cPlusPlus, fileName, javaScript, type Shown } from './code.js';

const languages: Readonly<Record<ProgramLanguage, { title: string; write: (shown: Shown) => string }>> = {
  javascript: { title: 'JavaScript', write: javaScript },
  cpp: { title: 'C++', write: cPlusPlus },
};

export function useItSection(app: App): HTMLElement {
  const code = el('code', {});
  const block = el('pre', { class: 'program', tabindex: 0, role: 'region', 'aria-label': 'Program' }, code);
  const section = panel(
    'use-it',
    { title: 'Use it', lead: 'The program that computes the weights on the screen, and the file that it reads.' },
    el(
      'div',
      { class: 'row use-bar' },
      languageChoice(app),
      copyButton('Copy the program', 'the program', () => code.textContent),
      fileButton(app),
    ),
    block,
    el('div', { class: 'row use-bar' }, linkButton(app), ...guides()),
  );
  const show = () => {
    const result = app.result.get();
    section.hidden = result === null;
    if (!result) return;
    const { heads, tokens, causal, bend, embedDim, headDim, weights, given } = result;
    const { head, query } = chosen(app, result);
    const { write } = languages[app.state.get().language];
    const text = write({
      tokens: tokens.length,
      heads: heads.length,
      embedDim,
      headDim,
      bias: weights.inBias !== undefined,
      rope: given?.rope,
      causal,
      bend,
      head,
      query,
    });
    if (code.textContent !== text) code.textContent = text;
  };
  app.result.watch(show);
  app.state.watch(show);
  return section;
}

function languageChoice(app: App): HTMLElement {
  const options = programLanguages.map((value) => ({ value, label: languages[value].title }));
  return choiceOf(app, 'language', options, { role: 'group', 'aria-label': 'Language' });
}

const pause = 2000;

/** A button that copies a text and says so. If the browser forbids it, the text is shown selected instead. */
function copyButton(label: string, what: string, text: () => string | null): HTMLElement {
  const button = el('button', { class: 'secondary' }, label);
  const said = el('span', { class: 'hint', role: 'status' });
  const field = el('input', { class: 'copy-field', type: 'text', readonly: true, 'aria-label': `Copy ${what}`, hidden: true });
  button.addEventListener('click', async () => {
    const wanted = text() ?? '';
    try {
      await navigator.clipboard.writeText(wanted);
      said.textContent = 'Copied.';
      setTimeout(() => {
        said.textContent = '';
      }, pause);
    } catch {
      said.textContent = `This browser does not let the page copy; copy ${what} here:`;
      field.hidden = false;
      field.value = wanted;
      field.select();
    }
  });
  return el('span', { class: 'row copy' }, button, said, field);
}

const linkButton = (app: App): HTMLElement =>
  copyButton('Copy a link to this view', 'the link', () => {
    app.history.flush();
    return addressWithPlace();
  });

function fileButton(app: App): HTMLElement {
  const button = el('button', { class: 'secondary' }, `Save ${fileName}`);
  button.addEventListener('click', async () => {
    const result = app.result.get();
    if (!result) return;
    const { sentenceFile } = await import('./sentence_file.js');
    download(new Blob([sentenceFile(result)], { type: 'application/octet-stream' }), fileName);
  });
  return button;
}

/** A link to the guides; empty if the build has none. */
const guides = (): HTMLElement[] => (__HAS_DOCS__ ? [el('a', { href: './docs/index.html' }, 'Guides and references')] : []);
