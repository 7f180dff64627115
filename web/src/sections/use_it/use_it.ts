// "Use it": a JavaScript or C++ program that computes the numbers on the screen, the file that it reads, and a link to
// the page in its current state.

import { choiceOf } from '../../controls/choice.js';
import { copyButton } from '../../controls/copy_button.js';
import { download, el, panel } from '../../dom/dom.js';
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
      copyOf('Copy the program', 'the program', () => code.textContent!),
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

const copyOf = (label: string, what: string, text: () => string): HTMLElement =>
  copyButton(label, { copied: 'Copied.', refused: `This browser does not let the page copy; copy ${what} here:` }, text);

const linkButton = (app: App): HTMLElement =>
  copyOf('Copy a link to this view', 'the link', () => {
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

const guides = (): HTMLElement[] => (__HAS_DOCS__ ? [el('a', { href: './docs/index.html' }, 'Guides and references')] : []);
