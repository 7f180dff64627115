// Makes the files of an English model from a text.
import { openModel } from '../../../bindings/dist/models_node.js';
import { measureHeads, rounded } from './measure_heads.mjs';
import { configOf, lossOn, RECIPES, trainModel, weightsOf } from './model.mjs';
import { cardOf, linesOf, namesOf } from './card.mjs';
import { packed } from './packed.mjs';
import { SOURCE } from './text.mjs';
import { encoded, joined, learnPairs, tokenizerOf } from './vocabulary.mjs';
import { classes, isSign, learnWords, predictions, tokensOf } from './words.mjs';

/** What the words model continues for its README. */
const PROMPTS = ['Mr. Elton came in. Emma looked at Mr.', 'I am very much obliged to you. I am very much', 'She was not'];
const PROMPT = 'Emma looked at Mr. Knightley, and';

/** Each kind of vocabulary: learned from paragraphs, it gives ids, and the files of a trained model with what they weigh. */
const KINDS = {
  pairs: (paragraphs, size) => {
    const pairs = learnPairs(joined(paragraphs), size);
    return {
      size: pairs.tokens.length,
      idsOf: (those) => encoded(joined(those), pairs),
      isPunctuation: (id) => /^Ġ?[!-/:-@[-`{-~]+$/.test(pairs.tokens[id]),
      async filesOf(model, recipe) {
        const files = {
          'config.json': `${JSON.stringify(configOf(recipe), null, 2)}\n`,
          'tokenizer.json': `${JSON.stringify(tokenizerOf(pairs))}\n`,
          'model.safetensors': weightsOf(model),
        };
        // The folder as the page opens it, in 16 bits.
        const opened = await openModel(Object.entries(files).map(([name, content]) => new File([content], name)));
        return {
          files,
          attentions: async (passage, layer) => (await opened.attentions([...passage], { layer })).data,
          async sample() {
            let text = PROMPT;
            for await (const { text: next } of opened.generate(PROMPT, { maxNewTokens: 80, temperature: 0.7, seed: 1 })) text += next;
            opened.dispose();
            return text;
          },
        };
      },
    };
  },
  words: (paragraphs, size) => {
    const words = learnWords(paragraphs, size);
    return {
      size: classes.length + words.length,
      idsOf: (those) => tokensOf(those, words),
      isPunctuation: (id) => isSign(id, words),
      filesOf: async (model, recipe, exact) => ({
        files: {},
        attentions: async (passage, layer) => model.forward(passage, { return: [], trace: ['weights'] }).traces[layer].weights.data,
        sample: async () => predictions(model, words, PROMPTS),
        lastFiles: (heads, chance) => ({
          'novels.txt': packed(model.config, exact ?? model.stateDict(), words, { names: namesOf(heads, chance), lines: linesOf(heads, chance) }),
        }),
      }),
    };
  },
};

/**
 * @param {{ text: { version: string, training: string[], heldOut: string[] }, kind?: keyof typeof RECIPES,
 *   recipe?: Partial<typeof RECIPES.words>, every?: number, say?: (line: string) => void }} options
 * @returns {Promise<Record<string, string | Uint8Array>>} the contents of each file
 */
export async function makeModel({ text, kind = 'pairs', recipe: changes = {}, every = 200, say = () => {} }) {
  const vocabulary = KINDS[kind](text.training, changes.vocabulary ?? RECIPES[kind].vocabulary);
  const recipe = { ...RECIPES[kind], ...changes, vocabulary: vocabulary.size };
  const ids = { training: vocabulary.idsOf(text.training), heldOut: vocabulary.idsOf(text.heldOut) };
  say(`${recipe.vocabulary} tokens in the vocabulary, ${ids.training.length} to train on, ${ids.heldOut.length} held out`);
  say('   step     loss  held out  seconds');
  const begun = performance.now();
  const seconds = () => Math.round((performance.now() - begun) / 1000);
  const onProgress = ({ step, loss, heldOut: other }) =>
    say(`${String(step).padStart(7)}  ${loss.toFixed(4)}    ${other.toFixed(4)}  ${String(seconds()).padStart(7)}`);
  const { model, exact } = await trainModel({ ...ids, recipe, every, onProgress });
  const took = seconds();
  const { isPunctuation } = vocabulary;
  const measure = async (attentions) => measureHeads({ ...recipe, attentions, ids: ids.heldOut, isPunctuation });
  const lossNow = () => lossOn(model, ids.heldOut, recipe.context, Infinity);
  const loss = lossNow();
  const { files, attentions, sample, lastFiles } = await vocabulary.filesOf(model, recipe, exact);
  const measured = await measure(attentions);
  const written = await sample();
  Object.assign(files, lastFiles?.(measured.heads, measured.chance));
  const words = text.heldOut.join(' ').trim().split(/\s+/).length;
  const figures = {
    source: { ...SOURCE, version: text.version },
    recipe,
    trainingTokens: ids.training.length,
    heldOut: {
      ...{ tokens: ids.heldOut.length, words, loss: rounded(loss), perplexity: rounded(Math.exp(loss)) },
      perplexityOfWords: rounded(Math.exp((loss * ids.heldOut.length) / words)),
    },
    ...measured,
  };
  if (exact) {
    // The same of the weights before they are rounded.
    model.loadStateDict(exact);
    figures.unrounded = { loss: rounded(lossNow()), heads: (await measure(attentions)).heads };
  }
  model.dispose();
  files['heads.json'] = `${JSON.stringify(figures, null, 1)}\n`;
  files['README.md'] = cardOf({ ...figures, kind, sample: written, seconds: took });
  say(`Held out: loss ${loss.toFixed(3)} a token, perplexity ${figures.heldOut.perplexity}\n\n${written}\n`);
  return files;
}
