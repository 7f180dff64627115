// The vocabulary of the words model: whole words, and classes for all others, so that every word of a sentence is one token.

/** Classes of words that the vocabulary lacks, by their form; the first that fits counts. Their ids are 0, 1, 2 and so on. */
export const classes: readonly RegExp[] = [
  /^[^\p{L}\p{N}]+$/u,
  /^\p{N}/u,
  /^\p{Lu}.*['’]s$/u,
  /^\p{Lu}/u,
  /['’]s$/,
  /ing$/,
  /ed$/,
  /ly$/,
  /(ness|tion|sion|ment|ity|ance|ence)$/,
  /(ful|ous|able|ible|al|ive|less|ish)$/,
  /(er|est)$/,
  /s$/,
  /^/,
];

/** A word as the vocabulary spells it: with straight quotation marks. */
const plain = (word: string): string => word.replace(/[‘’]/g, "'").replace(/[“”]/g, '"');

/** Gives each word its id: its own, that of its small letters, or that of its class. `words`: the words after the classes. */
export function vocabularyOf(words: readonly string[]): (word: string) => number {
  const ids = new Map(words.map((word, i) => [word, classes.length + i]));
  return (word) => {
    const spelled = plain(word);
    return ids.get(spelled) ?? ids.get(spelled.toLowerCase()) ?? classes.findIndex((form) => form.test(spelled));
  };
}
