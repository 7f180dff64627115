// The vocabulary of the words model, cut and looked up by the page's own code.
import { join } from 'node:path';
import { rolldown } from 'rolldown';
import { ROOT } from '../build.mjs';

/** The exports of a module of the page. */
export async function pageModule(path) {
  const bundle = await rolldown({ input: join(ROOT, 'web', 'src', path) });
  const { output } = await bundle.generate({ format: 'es' });
  await bundle.close();
  return import(`data:text/javascript,${encodeURIComponent(output[0].code)}`);
}

const { split } = await pageModule('attention/tokens.ts');
export const { classes, vocabularyOf } = await pageModule('attention/vocabulary.ts');

/** The `size` − classes most frequent words of paragraphs, the first in order among equals. */
export function learnWords(paragraphs, size) {
  const counts = new Map();
  for (const paragraph of paragraphs) for (const word of split(paragraph)) counts.set(word, (counts.get(word) ?? 0) + 1);
  const sorted = [...counts].sort(([a, m], [b, n]) => n - m || (a < b ? -1 : 1));
  const words = sorted.slice(0, size - classes.length).map(([word]) => word);
  // In the order of the alphabet they compress better.
  return words.sort();
}

/** The ids of paragraphs. */
export function tokensOf(paragraphs, words) {
  const idOf = vocabularyOf(words);
  return Int32Array.from(paragraphs.flatMap((paragraph) => split(paragraph).map(idOf)));
}

const wordOf = (id, words) => words[id - classes.length];
/** True for punctuation: a sign of the vocabulary, or the class of signs. */
export const isSign = (id, words) => id === 0 || (id >= classes.length && /^[^\p{L}\p{N}]+$/u.test(wordOf(id, words)));

/** The likeliest words after each text, with their shares. */
export function predictions(model, words, texts) {
  return texts
    .map((text) => {
      const { logits } = model.forward(tokensOf([text], words));
      const row = logits.data.slice(-model.config.vocabSize);
      logits.dispose();
      const largest = Math.max(...row);
      const shares = Array.from(row, (logit) => Math.exp(logit - largest));
      const sum = shares.reduce((a, b) => a + b);
      const known = [...shares.keys()].slice(classes.length).sort((a, b) => shares[b] - shares[a]);
      const best = known.slice(0, 4).map((id) => `${wordOf(id, words)} ${((100 * shares[id]) / sum).toFixed(0)} %`);
      return `${text} → ${best.join(', ')}`;
    })
    .join('\n\n');
}
