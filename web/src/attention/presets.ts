// The example sentences. Each has heads with a visible effect on it, and a line that says what these heads do and do
// not do.

import type { PatternId } from './patterns.js';

export interface Preset {
  readonly text: string;
  readonly heads: readonly PatternId[];
  readonly causal: boolean;
  /** Index of the word whose arcs are shown. */
  readonly query: number;
  readonly line: string;
}

export const presets: readonly Preset[] = [
  {
    text: 'I saw the dog and the dog ran',
    heads: ['previous', 'first', 'same', 'nearby'],
    causal: false,
    query: 6,
    line: 'Head 1 looks at the word before dog₇, head 2 at the first word, head 3 at the other dog, head 4 a little at everything near.',
  },
  {
    text: 'The bank by the river approved my loan',
    heads: ['previous', 'next', 'letter', 'average'],
    causal: false,
    query: 1,
    line: 'These heads know only where a word stands and how it is spelled. To link bank with river, a head must be trained on a lot of text.',
  },
  {
    text: 'the black cat sat on the mat',
    heads: ['previous', 'next', 'same', 'itself'],
    causal: false,
    query: 5,
    line: 'The Same word head links the₆ with the₁, however far apart they are.',
  },
  {
    text: 'He is playing football',
    heads: ['previous', 'first', 'average', 'itself'],
    causal: true,
    query: 2,
    line: 'Causal is on: playing sees He, is and itself. football comes later, so its weight is exactly 0.',
  },
  {
    text: 'The cat that was sitting on the mat ate the fish',
    heads: ['previous', 'next', 'same', 'letter'],
    causal: false,
    query: 9,
    line: 'From the₁₀, Same word finds The₁ and the₇. The head Same first letter also looks at the word “that”.',
  },
  {
    text: 'The cat sat on the',
    heads: ['previous', 'first', 'same', 'average'],
    causal: true,
    query: 4,
    line: 'A language model would predict the next word from what the₅ has collected. These heads only collect.',
  },
];

/** Texts that the words model reads well, the page's opening first. */
export const novelsTexts: readonly string[] = [
  'Mr. Elton came in. Emma looked at Mr.',
  'Miss Tilney was in Bath. Catherine went to see Miss',
  'Sir Walter was at home. Anne talked to Sir',
  'I am very much obliged to you. I am very much',
  'My dear Miss',
];

export const presetOf = (text: string): Preset | undefined => presets.find((preset) => preset.text === text);
