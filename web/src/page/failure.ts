// The page's message when numbers are missing or out of date.

import type { Trouble } from '../attention/client.js';
import { el } from '../dom/dom.js';
import { lacksFile } from '../workers/missing_file.js';
import type { Failure as Why } from '../workers/protocol.js';

/** `incomplete`: the sections below the sentence are missing; `why` is a sentence. */
export type Problem = Trouble | { readonly kind: 'incomplete'; readonly why: string };

/** The reason and the advice in the visitor's words, because the package's own message is for programmers. */
function plainReason(why: Why): string {
  if (typeof WebAssembly !== 'object') {
    return 'This browser has no WebAssembly, or it is switched off. Another browser, or its settings, may help.';
  }
  if (why.argument === 'WebAssembly') return 'This browser lacks WebAssembly SIMD, which browsers have since 2023. A newer browser helps.';
  return lacksFile(why) ? why.message : `${why.message.replace(/\.$/, '')}. Reloading the page may help.`;
}

/** Returns the bold sentence, and the text after it. */
export function wordsFor(problem: Problem, hasNumbers: boolean): readonly [string, string] {
  switch (problem.kind) {
    case 'failed': {
      const rest = ` ${plainReason(problem.why)}`;
      return hasNumbers
        ? ['The attention engine could not compute this; the numbers below are older.', rest]
        : ['The attention engine could not start, so there are no numbers to show.', rest];
    }
    case 'late':
      return ['The attention engine has not answered yet.', ' It may still be loading over a slow connection. If nothing changes, reload the page.'];
    case 'restarted':
      return ['The attention engine stopped answering.', ' It is being started again; your sentence is kept.'];
    case 'incomplete':
      return ['The rest of the page could not be loaded.', ` ${problem.why}`];
    case 'silent':
      return [
        'The attention engine does not answer, so the numbers below are older.',
        ' Reload the page: your sentence and your choices are in its address.',
      ];
  }
}

export function failureNotice() {
  const element = el('p', { class: 'notice is-failure', id: 'failure', role: 'alert', hidden: true });
  let hasNumbers = false;
  return {
    element,
    show(problem: Problem): void {
      document.body.classList.add('is-failed');
      const [what, rest] = wordsFor(problem, hasNumbers);
      // Messages about problems that may pass float: the layout does not jump, and they are visible at any scroll
      // position.
      element.classList.toggle('is-floating', ['late', 'restarted', 'silent'].includes(problem.kind));
      element.hidden = false;
      element.replaceChildren(el('strong', {}, what), rest);
    },
    hide(): void {
      hasNumbers = true;
      document.body.classList.remove('is-failed');
      element.hidden = true;
    },
  };
}
