// multihead run: continues a text, token by token, answers messages, or writes what a model with an encoder makes of a text.

import { printable } from '../runtime/text.js';
import type { ChatInput, ChatMessage, GenerateOptions } from '../types/models.js';
import { choice, count, flag, number, type Option, parse, texts, UsageError, type Values } from './arguments.js';
import { linesOf } from './output.js';
import { type Opened, readInputs, refuseOthers, type Session, sharedOptions, steering, steeringOptions, withModel } from './session.js';

const generateOptions = {
  maxNewTokens: count("most new tokens; default 128, or the folder's of a model with an encoder, or as many as the model has room for"),
  temperature: number('0, the default: always the likeliest token; else logits are divided by X', '0 or more', (value) => value >= 0),
  topK: count('draws only from the N likeliest tokens; default 0, all'),
  topP: number('draws only from the likeliest tokens that sum to X; default 1', 'more than 0, at most 1', (value) => value > 0 && value <= 1),
  repetitionPenalty: number("divides the logits of tokens that occurred; default: the folder's, or 1, none", 'more than 0', (value) => value > 0),
  numBeams: count("with more than 1, searches for the likeliest text with N beams; default: the folder's, or 1"),
  noRepeatNgramSize: count("no sequence of N tokens occurs twice; default: the folder's, or 0, any may"),
  minNewTokens: count("no end before N new tokens; default: the folder's, or 0"),
  forcedBos: count("the second token of a decoder with an encoder, such as a language's"),
  seed: count('seed of the random numbers; default 0'),
  stop: texts('a text that ends the generation; may be given several times'),
  cacheType: choice('type of the cached keys and values', ['f32', 'f16', 'bf16', 'int8'], 'f32'),
} satisfies Partial<Record<keyof GenerateOptions, Option<unknown>>>;

export const runOptions = {
  ...generateOptions,
  chat: flag("answers the text by the folder's chat template; without one, each line of standard input"),
  ...steeringOptions,
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;

type RunValues = Values<typeof runOptions> & Pick<GenerateOptions, 'edits'>;

/** Escapes what could control a terminal; lines and tabs stay. */
const forTerminal = (text: string): string => text.replaceAll(/[^\n\t]+/g, (part) => printable(part, Infinity));

export async function run(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, runOptions);
  const { folder, inputs } = readInputs(positionals, values, 1, 0);
  const [given] = inputs;
  if (values.chat && values.ids.length > 0) throw new UsageError('--ids', 'none beside --chat', 'a list');
  const waits = given === undefined && session.input.isTTY === true;
  if (waits && !values.chat) throw new UsageError('TEXT', 'one text, in quotes, a text from standard input, or --ids', 'none');
  const work = async (opened: Opened): Promise<void> => {
    const edited = { ...values, ...(await steering(session, values, opened.model)) };
    if (given === undefined && values.chat && !values.json) await converse(opened, edited, session);
    else {
      const prompt = given ?? (await wholeOf(session));
      await continueText(opened, values.chat ? [{ role: 'user', content: prompt as string }] : prompt, edited, session);
    }
  };
  await withModel(session, folder, values, work, refuseOthers);
}

/** The text of standard input, without its last line break. Throws UsageError. */
async function wholeOf({ input }: Session): Promise<string> {
  const lines: string[] = [];
  for await (const line of linesOf(input)) lines.push(line);
  if (lines.length === 0) throw new UsageError('TEXT', 'one text, in quotes, a text from standard input, or --ids', 'none');
  return lines.join('\n');
}

/** Answers each line of standard input. */
async function converse(opened: Opened, values: RunValues, session: Session): Promise<void> {
  const { input, messages } = session;
  const chat: ChatMessage[] = [];
  const ask = (): void => void (input.isTTY && messages.write('> ', () => {}));
  ask();
  for await (const line of linesOf(input)) {
    if (line.trim() !== '') {
      chat.push({ role: 'user', content: line });
      chat.push({ role: 'assistant', content: await continueText(opened, chat, values, session) });
    }
    ask();
  }
}

/** Returns the new text. */
async function continueText(
  { model, description }: Opened,
  prompt: ChatInput,
  values: RunValues,
  { output, messages, interrupt }: Session,
): Promise<string> {
  const { json, chat } = values;
  const names = [...(Object.keys(generateOptions) as (keyof typeof generateOptions)[]), 'edits'] as const;
  const options: GenerateOptions = Object.fromEntries(names.map((name) => [name, values[name]]));
  const isText = typeof prompt === 'string' || chat;
  const promptTokens = isText ? (await model.encode(prompt as string | ChatMessage[])).ids.length : prompt.length;

  const tokens: number[] = [];
  let text = '';
  let reason: string | undefined;
  const begin = performance.now();
  let first = begin;
  const rate = (): number => (tokens.length > 1 ? (1000 * (tokens.length - 1)) / (performance.now() - first) : 0);
  const summary = async (): Promise<void> => {
    if (json || tokens.length === 0) return;
    const speed = `${tokens.length} tokens, ${rate().toFixed(1)} tokens/s`;
    await output.write(text.endsWith('\n') ? '' : '\n');
    messages.write(`${speed}; prompt of ${promptTokens} in ${((first - begin) / 1000).toFixed(3)} s\n`, () => {});
  };
  try {
    for await (const step of model.generate(prompt, { ...options, signal: interrupt.signal })) {
      if (tokens.length === 0) {
        first = performance.now();
        interrupt.listen(true); // the prompt is read without a pause, the other tokens are not
      }
      tokens.push(step.token);
      text += step.text;
      reason = step.finishReason;
      const shown = isText ? step.text : `${tokens.length > 1 ? ' ' : ''}${step.token}`;
      if (!json) await output.write(output.isTerminal ? forTerminal(shown) : shown);
    }
  } catch (error) {
    if (interrupt.signal.aborted) await summary();
    throw error;
  } finally {
    interrupt.listen(false);
  }
  await summary();
  if (json) {
    await output.json({
      ...description,
      ...{ ids: tokens, ...(isText && { text }), finish_reason: reason ?? 'length' },
      ...{ prompt_tokens: promptTokens, prompt_seconds: (first - begin) / 1000, tokens_per_second: rate() },
    });
  }
  return text;
}
