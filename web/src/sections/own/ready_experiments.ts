// Experiments that work on the little Llama. Their figures were measured on the ends of the novels, which the model has not
// seen: tests/support/english_experiments.mjs prints them. With another model, measure again.

import type { PageState } from '../../state/page_state.js';

/** `line`: what was measured; `state`: what it fills in. */
export interface Ready extends Readonly<Record<'title' | 'line', string>> {
  readonly state: Partial<PageState>;
}

export const readyExperiments: readonly Ready[] = [
  {
    title: 'A head that a prediction needs',
    line: 'After “Mr.” comes a name, and head 2 of layer 1 tells the point that “Mr” stands before it. In 197 places of unseen text with “Mr.” or “Mrs.”, the next word is the likeliest one in 18.8 % of them; with this head muted in 0.5 %, with any other in 14.2 to 22.8 %.',
    state: {
      ...{ labTexts: 'She was very glad to see Mr.\nShe was very glad to see him.', labWords: 'Knightley\nShe' },
      ...{ ownLayer: 0, ownHead: 1, labChange: 'none' },
    },
  },
  {
    title: 'A head that copies',
    line: 'Head 2 of layer 2 carries “she” or “he” on to the next one. In 250 passages of unseen text with one such word before the next, exchanging it moves the logits of “she” and “he” apart by 0.26 on average, and this head alone does 0.21 of it, in the right direction in 97 % of them.',
    state: {
      ...{ labTexts: 'The next day she came to the house, and\nThe next day he came to the house, and', labWords: 'she\nhe' },
      ...{ ownLayer: 1, ownHead: 1, labChange: 'none' },
    },
  },
  {
    title: 'A direction that steers',
    line: 'The difference between the two sentences before layer 2, subtracted twice from every word, turns “she” into “he”. In 60 continuations of unseen text of 24 tokens, words for a woman and for a man were 21 to 2 as it is, 3 to 26 at −2, and 81 to 8 at +2. Farther out the text breaks. The text stands above, at “Continue the text”.',
    state: {
      ...{
        labTexts: 'She was sure that she had seen her\nHe was sure that he had seen his',
        labWords: 'she\nhe',
        ownText: 'When the carriage came,',
      },
      ...{ ownLayer: 1, labChange: 'steer', labFactor: -2 },
    },
  },
];
