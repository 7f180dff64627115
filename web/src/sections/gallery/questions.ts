// The rows of weights that are worth a guess.

import { hides } from '../../attention/bend.js';
import { rowOf } from '../../attention/matrix.js';
import type { ForwardResult } from '../../attention/messages.js';

export interface Question {
  readonly head: number;
  readonly query: number;
}

/** Below this share no word stands out, and any answer would be a matter of luck. */
const clear = 0.4;

/** The rows worth a guess: they have a choice of words and a clear answer, and belong to another word than the one in view. */
export function questionsOf({ tokens, heads, trace, causal, bend }: ForwardResult, inView: number): Question[] {
  return tokens.flatMap((_, query) => {
    const visible = tokens.filter((_word, key) => !hides(causal, bend.window, query, key)).length;
    if (query === inView || visible < 3) return [];
    return [...heads.keys()]
      .filter((head) => !bend.muted.includes(head) && Math.max(...rowOf(trace.weights, head, query)) >= clear)
      .map((head) => ({ head, query }));
  });
}
