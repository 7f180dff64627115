// The README of the small English model.

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** @param {object} made the contents of heads.json, a sample, and the seconds of the training */
export function cardOf({ source, recipe, trainingTokens, heldOut, passages, length, chance, heads, sample, seconds }) {
  const row = (name, { previous, first, itself, punctuation, induction }) =>
    `| ${[name, ...[previous, first, itself, punctuation, induction].map(percent)].join(' | ')} |`;
  return `# A small English model

A Llama of ${recipe.numLayers} layers with ${recipe.numHeads} heads, for the page. \`npm run train-english\` makes this folder, and \`native/dev/english\` has the
recipe. The trainer is that of this package, in WebAssembly.

- **Text**: Jane Austen's six novels, from the Debian package \`${source.package}\` ${source.version}. They are in the ${source.license}, and so is
  this model. ${trainingTokens.toLocaleString('en')} tokens to train on; the last 5 % of each novel, ${heldOut.tokens.toLocaleString('en')} tokens, are held out.
- **Vocabulary**: ${recipe.vocabulary} tokens of byte pairs, learned from the training part.
- **Training**: ${recipe.steps} steps of ${recipe.batch} × ${recipe.context} tokens; AdamW, learning rate ${recipe.learningRate} after ${recipe.warmupSteps} steps of warm-up, falling to 0 in
  the last ${recipe.decaySteps}; weight decay ${recipe.weightDecay}; seed ${recipe.seed}. ${seconds.toLocaleString('en')} s.
- **Held out**: loss ${heldOut.loss.toFixed(3)} nats a token, which is a perplexity of ${heldOut.perplexity.toFixed(1)} a token and ${heldOut.perplexityOfWords.toFixed(0)} a word. It has
  learned how her sentences go, not what they mean.

Mean weight of each head, in ${passages} held-out passages of ${length} tokens: on the token before, on the first token, on the token itself, and on
punctuation. Induction is the weight on the token that followed the same token last time, in passages that repeat once. The last row is
what equal weights on all tokens give.

| head | token before | first token | itself | punctuation | induction |
|---|---|---|---|---|---|
${heads.map((scores) => row(`layer ${scores.layer + 1}, head ${scores.head + 1}`, scores)).join('\n')}
${row('equal weights', chance)}

It writes, at a temperature of 0.7:

> ${sample.trim().replaceAll('\n', '\n> ')}
`;
}
