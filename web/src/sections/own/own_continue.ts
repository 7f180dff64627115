// The continuation of a text by the visitor's own model, as it is or changed: the new tokens, and at each the five likeliest ones.

import { formatMilliseconds, messageOf } from '../../base/format.js';
import { el, word } from '../../dom/dom.js';
import type { ModelClient } from '../../model/client.js';
import type { Change, Next } from '../../model/messages.js';
import { shareLine } from '../bend/bend.js';
import { programBox } from './program.js';

/** Milliseconds without a change of the model before it writes again. */
const pause = 120;

/** `control`: what changes the model; `programOf` writes the program that continues a text with a change. */
interface Writing {
  readonly control: HTMLElement;
  textNow(): string;
  changeNow(): Change | undefined;
  programOf(after: string, change: Change): string;
  onProblem(problem: string): void;
}

export function createContinuation(client: ModelClient, { control, textNow, changeNow, programOf, onProblem }: Writing) {
  const program = programBox('changed model');
  const plain = el('p', { class: 'own-text hint own-plain', dir: 'auto', hidden: true });
  const go = el('button', { class: 'secondary', id: 'own-continue' }, 'Continue the text');
  const written = el('p', { class: 'own-text', id: 'own-text', dir: 'auto' });
  const tokens = el('ol', { class: 'wrap own-tokens', 'aria-label': 'New tokens' });
  const summary = el('p', { class: 'under hint', id: 'own-pace', role: 'status' });
  const title = el('h4', { class: 'own-asked' });
  const likely = el('ol', { class: 'under bars effect-list own-likely', 'aria-label': 'The likeliest tokens in this place' });
  const result = el('div', { hidden: true }, plain, written, tokens, title, likely, summary);
  const element = el('section', { class: 'part own-continue', 'aria-label': 'Continue the text' }, go, control, result, program.element);
  let run = 0;
  let steps: Next[] = [];
  /** What the unchanged model has written, and after which text. */
  let unchanged: { readonly after: string; readonly text: string } | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;

  function open(step: number): void {
    const { likeliest } = steps[step]!;
    [...tokens.querySelectorAll('button')].forEach((button, i) => button.setAttribute('aria-pressed', String(i === step)));
    title.replaceChildren(`Likeliest at new token ${step + 1}`);
    likely.replaceChildren(...likeliest.map(({ label, share }) => shareLine(label, share)));
  }

  function add(next: Next): void {
    const step = steps.push(next) - 1;
    const button = el('button', { class: 'own-token', onclick: () => open(step) }, word(next.likeliest[0]?.label ?? next.text));
    tokens.append(el('li', {}, button));
    written.textContent = `… ${newText()}`;
    result.hidden = false;
    open(step);
  }

  const newText = (): string => steps.map(({ text }) => text).join('');

  function clear(): void {
    run += 1;
    program.show(undefined);
    steps = [];
    tokens.replaceChildren();
    summary.textContent = '';
    result.hidden = true;
  }

  /** Writes until the text ends, or until something else is written. */
  async function write(after: string, change?: Change): Promise<void> {
    const own = run;
    for (let next = await client.call('start', after, change); next && own === run; next = await client.call('next')) add(next);
  }

  async function begin(): Promise<void> {
    clearTimeout(timer);
    clear();
    const own = run;
    const [after, change] = [textNow(), changeNow()];
    try {
      plain.hidden = true;
      if (change && unchanged?.after !== after) {
        await write(after);
        if (own !== run) return;
        unchanged = { after, text: newText() };
        steps = [];
        tokens.replaceChildren();
      }
      if (change) [plain.hidden, plain.textContent] = [false, `As it is: … ${unchanged!.text}`];
      await write(after, change);
      if (own !== run) return;
      program.show(change && programOf(after, change));
      if (!change) unchanged = { after, text: newText() };
      const [first, ...rest] = steps.map(({ milliseconds }) => milliseconds);
      const mean = rest.reduce((sum, value) => sum + value, 0) / rest.length;
      summary.textContent =
        first === undefined
          ? 'For this model the text ends here.'
          : `${steps.length} new tokens; reading the text took ${formatMilliseconds(first)}${rest.length > 0 ? `, then ${formatMilliseconds(mean)} a token with the cache` : ''}.`;
      result.hidden = false;
    } catch (error) {
      if (own === run) onProblem(messageOf(error));
    }
  }

  go.addEventListener('click', () => void begin());
  return {
    element,
    clear(): void {
      unchanged = undefined;
      clear();
    },
    /** Writes again in a moment, because the model has changed. */
    again(): void {
      clearTimeout(timer);
      timer = setTimeout(() => void begin(), pause);
    },
  };
}
