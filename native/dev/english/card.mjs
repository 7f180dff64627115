// The README of an English model, and the names of its heads.

const percent = (share) => `${(100 * share).toFixed(1)} %`;

const HABITS = { previous: 'word before', first: 'first word', itself: 'word itself', punctuation: 'punctuation', induction: 'copies' };

/** A name for each head: its score that is farthest above the score of equal weights, if that is at least 0.3 and 2.5 times as much. */
export const namesOf = (heads, chance) =>
  heads.map((scores) => {
    const times = (name) => scores[name] / chance[name];
    const strong = Object.keys(HABITS).filter((name) => scores[name] >= 0.3 && times(name) >= 2.5);
    return strong.length > 0 ? HABITS[strong.sort((a, b) => times(b) - times(a))[0]] : `head ${scores.head + 1}`;
  });

const WHERE = {
  previous: 'the word before',
  first: 'the first word',
  itself: 'the word itself',
  punctuation: 'punctuation',
  induction: 'what followed the same word last time, where a text repeats',
};

/** What was measured of each head, in one sentence. */
export const linesOf = (heads, chance) =>
  heads.map((scores) => {
    const times = (name) => scores[name] / chance[name];
    const [most] = Object.keys(WHERE).sort((a, b) => times(b) - times(a));
    return `${percent(scores[most])} of its weight is on ${WHERE[most]} (equal weights: ${percent(chance[most])})`;
  });

const KINDS = {
  pairs: {
    title: 'The little Llama, a small English model',
    what: 'A Llama of',
    place: 'for the page',
    command: '`npm run train-english`',
    vocabulary: 'tokens of byte pairs, learned from the training part',
  },
  words: {
    title: 'The words model of the first screen',
    what: 'Attention without MLPs:',
    place: 'for the first screen of the page',
    command: '`npm run train-english -- --model words`',
    vocabulary: 'tokens: 13 classes for words that it lacks, by their endings, and the most frequent words and signs of the training part',
  },
};

/** @param {object} made the contents of heads.json, the kind, a sample, and the seconds of the training */
export function cardOf({ kind, source, recipe, trainingTokens, heldOut, passages, length, chance, heads, unrounded, sample, seconds }) {
  const { title, what, place, command, vocabulary } = KINDS[kind];
  const row = (name, { previous, first, itself, punctuation, induction }) =>
    `| ${[name, ...[previous, first, itself, punctuation, induction].map(percent)].join(' | ')} |`;
  const repeated = recipe.repeats ? ` ${percent(recipe.repeats)} of the sequences repeat their first part.` : '';
  const few = unrounded
    ? `\n- **Weights**: each matrix has five levels, −2 to 2 times a scale a row; the last ${recipe.roundedSteps} steps saw the rounded weights. Before rounding, the
  held-out loss is ${unrounded.loss.toFixed(3)}, and the largest score of induction ${percent(Math.max(...unrounded.heads.map(({ induction }) => induction)))}; after it, ${percent(Math.max(...heads.map(({ induction }) => induction)))}.`
    : '';
  return `# ${title}

${what} ${recipe.numLayers} layers with ${recipe.numHeads} heads, ${place}. ${command} makes this folder, and \`native/dev/english\` has the
recipe. The trainer is that of this package, in WebAssembly.

- **Text**: Jane Austen's six novels, from the Debian package \`${source.package}\` ${source.version}. They are in the ${source.license}, and so is
  this model. ${trainingTokens.toLocaleString('en')} tokens to train on; the last 5 % of each novel, ${heldOut.tokens.toLocaleString('en')} tokens, are held out.
- **Vocabulary**: ${recipe.vocabulary} ${vocabulary}.
- **Training**: ${recipe.steps} steps of ${recipe.batch} × ${recipe.context} tokens; AdamW, learning rate ${recipe.learningRate} after ${recipe.warmupSteps} steps of warm-up, falling to 0 in
  the last ${recipe.decaySteps}; weight decay ${recipe.weightDecay}; seed ${recipe.seed}.${repeated} ${seconds.toLocaleString('en')} s.${few}
- **Held out**: loss ${heldOut.loss.toFixed(3)} nats a token, which is a perplexity of ${heldOut.perplexity.toFixed(1)} a token${kind === 'pairs' ? ` and ${heldOut.perplexityOfWords.toFixed(0)} a word` : '; a word that it lacks counts as its class'}. It has
  learned how her sentences go, not what they mean.

Mean weight of each head, in ${passages} held-out passages of ${length} tokens: on the token before, on the first token, on the token itself, and on
punctuation. Induction is the weight on the token that followed the same token last time, in passages that repeat once. The last row is
what equal weights on all tokens give.

| head | token before | first token | itself | punctuation | induction |
|---|---|---|---|---|---|
${heads.map((scores) => row(`layer ${scores.layer + 1}, head ${scores.head + 1}`, scores)).join('\n')}
${row('equal weights', chance)}

${kind === 'pairs' ? 'It writes, at a temperature of 0.7' : 'It predicts'}:

> ${sample.trim().replaceAll('\n', '\n> ')}
`;
}
