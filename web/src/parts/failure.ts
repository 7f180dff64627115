// The page's message when numbers are missing or out of date.

import { el } from './dom.js';

export type Trouble =
  /** The engine did not load, or could not compute. `argument` is copied from a MultiheadError. */
  | { readonly kind: 'failed'; readonly reason: string; readonly argument?: string }
  /** The first answer is late. */
  | { readonly kind: 'late' }
  /** The worker stopped answering; another one was started. */
  | { readonly kind: 'restarted' }
  /** The replacement worker does not answer either. */
  | { readonly kind: 'silent' }
  /** The sections below the sentence are missing. */
  | { readonly kind: 'incomplete' };

export interface Failure {
  readonly element: HTMLElement;
  show(trouble: Trouble): void;
  hide(): void;
}

/** The reason in the visitor's words, because the package's own message is for programmers. */
function plainReason(reason: string, argument?: string): string {
  if (typeof WebAssembly !== 'object') return 'this browser has no WebAssembly, or it is switched off';
  if (argument === 'WebAssembly') return 'WebAssembly SIMD is missing in this browser; browsers since 2023 have it';
  return reason.replace(/\.$/, '');
}

/** Returns the bold sentence, and the text after it. */
export function wordsFor(trouble: Trouble, hasNumbers: boolean): readonly [string, string] {
  switch (trouble.kind) {
    case 'failed': {
      const rest = ` The reason: ${plainReason(trouble.reason, trouble.argument)}.`;
      if (hasNumbers) return ['The attention engine could not compute this; the numbers below are older.', rest];
      const what = 'The attention engine could not start, so there are no numbers to show.';
      return [what, `${rest} Reloading the page may help.`];
    }
    case 'late':
      return [
        'The attention engine has not answered yet.',
        ' It may still be loading over a slow connection. If nothing changes, reload the page.',
      ];
    case 'restarted':
      return ['The attention engine stopped answering.', ' It is being started again; your sentence is kept.'];
    case 'incomplete':
      return ['The rest of the page could not be loaded.', ' Reloading the page may help.'];
    case 'silent':
      return [
        'The attention engine does not answer, so the numbers below are older.',
        ' Reload the page: your sentence and your choices are in its address.',
      ];
  }
}

export function failureNotice(): Failure {
  const element = el('p', { class: 'notice is-failure', id: 'failure', role: 'alert', hidden: true });
  let hasNumbers = false;
  return {
    element,
    show(trouble) {
      document.body.classList.add('is-failed');
      const [what, rest] = wordsFor(trouble, hasNumbers);
      // Messages about problems that may pass float: the layout does not jump, and they are visible at any scroll
      // position.
      element.classList.toggle('is-floating', ['late', 'restarted', 'silent'].includes(trouble.kind));
      element.hidden = false;
      element.replaceChildren(el('strong', {}, what), rest);
    },
    hide() {
      hasNumbers = true;
      document.body.classList.remove('is-failed');
      element.hidden = true;
    },
  };
}
