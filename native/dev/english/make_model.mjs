// Makes the files of the small English model from a text.
import { openModel } from '../../../bindings/dist/models_node.js';
import { measureHeads, rounded } from './measure_heads.mjs';
import { configOf, lossOn, RECIPE, SHAPE, trainModel, weightsOf } from './model.mjs';
import { cardOf } from './card.mjs';
import { SOURCE } from './text.mjs';
import { encoded, joined, learnPairs, tokenizerOf } from './vocabulary.mjs';

const VOCABULARY = 2048;
const PROMPT = 'Emma looked at Mr. Knightley, and';

/**
 * @param {{ text: { version: string, training: string[], heldOut: string[] }, recipe?: Partial<typeof RECIPE>,
 *   vocabulary?: number, every?: number, say?: (line: string) => void }} options
 * @returns {Promise<Record<string, string | Uint8Array>>} the contents of each file
 */
export async function makeModel({ text, recipe = {}, vocabulary = VOCABULARY, every = 200, say = () => {} }) {
  const [training, heldOut] = [joined(text.training), joined(text.heldOut)];
  const pairs = learnPairs(training, vocabulary);
  const ids = { training: encoded(training, pairs), heldOut: encoded(heldOut, pairs) };
  say(`${pairs.tokens.length} tokens in the vocabulary, ${ids.training.length} to train on, ${ids.heldOut.length} held out`);
  say('   step     loss  held out  seconds');
  const begun = performance.now();
  const seconds = () => Math.round((performance.now() - begun) / 1000);
  const onProgress = ({ step, loss, heldOut: other }) =>
    say(`${String(step).padStart(7)}  ${loss.toFixed(4)}    ${other.toFixed(4)}  ${String(seconds()).padStart(7)}`);
  const model = await trainModel({ ...ids, vocabulary: pairs.tokens.length, recipe, every, onProgress });
  const took = seconds();
  const loss = lossOn(model, ids.heldOut, Infinity);
  const files = {
    'config.json': `${JSON.stringify(configOf(pairs.tokens.length), null, 2)}\n`,
    'tokenizer.json': `${JSON.stringify(tokenizerOf(pairs))}\n`,
    'model.safetensors': weightsOf(model),
  };
  model.dispose();
  const words = heldOut.trim().split(/\s+/).length;
  const figures = {
    source: { ...SOURCE, version: text.version },
    recipe: { ...SHAPE, ...RECIPE, ...recipe, vocabulary: pairs.tokens.length },
    trainingTokens: ids.training.length,
    heldOut: {
      ...{ tokens: ids.heldOut.length, words, loss: rounded(loss), perplexity: rounded(Math.exp(loss)) },
      perplexityOfWords: rounded(Math.exp((loss * ids.heldOut.length) / words)),
    },
  };
  // The folder as the page opens it, in 16 bits.
  const opened = await openModel(Object.entries(files).map(([name, content]) => new File([content], name)));
  const measured = await measureHeads(opened, ids.heldOut, pairs.tokens);
  let sample = PROMPT;
  for await (const { text: next } of opened.generate(PROMPT, { maxNewTokens: 80, temperature: 0.7, seed: 1 })) sample += next;
  opened.dispose();
  files['heads.json'] = `${JSON.stringify({ ...figures, ...measured }, null, 1)}\n`;
  files['README.md'] = cardOf({ ...figures, ...measured, sample, seconds: took });
  say(`Held out: loss ${loss.toFixed(3)} a token, perplexity ${figures.heldOut.perplexity}\n\n${sample}\n`);
  return files;
}
