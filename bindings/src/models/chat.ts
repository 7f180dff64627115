// Messages as one text: the folder's chat template, rendered by @huggingface/jinja, which is loaded when messages are first given.

import { optionError } from '../runtime/errors.js';
import { describe } from '../runtime/tensor.js';
import { isObject } from '../safetensors/format.js';
import type { ChatMessage, EncodeOptions, ModelInfo } from '../types/models.js';
import type { ModelParts } from './parts.js';
import { encodeText, importPeer, lacking } from './tokenizer.js';

export interface ChatFiles {
  /** chat_template.jinja, which counts before the template in tokenizer_config.json; undefined if it does not exist. */
  readonly template: string | undefined;
  /** tokenizer_config.json. */
  readonly config: Record<string, unknown>;
}

const refuse = /* @__PURE__ */ lacking('prompt', 'messages need', 'a text works without it');

/** True for an array of messages; an empty array is one of token ids. */
export const isChat = (prompt: unknown): prompt is readonly ChatMessage[] =>
  Array.isArray(prompt) && typeof prompt[0] === 'object' && prompt[0] !== null;

/** Copies messages. Throws `E_OPTION`. */
export function checkChat(prompt: readonly ChatMessage[], argument = 'prompt'): ChatMessage[] {
  return Array.from(prompt, (message: unknown, at) => {
    const copy = { ...(message as ChatMessage) };
    if (typeof copy.role === 'string' && typeof copy.content === 'string') return copy;
    throw optionError(
      `${argument}[${at}]`,
      'a message, { role, content }, of two texts',
      isObject(message) ? `{ role: ${describe(copy.role)}, content: ${describe(copy.content)} }` : describe(message),
    );
  });
}

/** The text of messages, with the begin of the answer. Throws `E_OPTION` without a template, and for messages that it refuses. */
export async function renderChat({ template, config }: ChatFiles, messages: readonly ChatMessage[]): Promise<string> {
  let source: unknown = template ?? config['chat_template'];
  // Several have names.
  if (Array.isArray(source)) source = source.find((each) => isObject(each) && each['name'] === 'default')?.template;
  if (typeof source !== 'string')
    throw refuse('a chat template in the folder: chat_template.jinja, or chat_template in tokenizer_config.json', 'neither');
  const { Template } = await importPeer(() => import('@huggingface/jinja'), '@huggingface/jinja', 'prompt', refuse);
  const tokens = Object.entries(config).flatMap(([name, token]) => {
    const text = isObject(token) ? token['content'] : token;
    return name.endsWith('_token') && typeof text === 'string' ? [[name, text]] : [];
  });
  try {
    return new Template(source).render({ ...Object.fromEntries(tokens), messages, add_generation_prompt: true });
  } catch (cause) {
    throw refuse('a chat template that takes them', cause instanceof Error ? cause.message : String(cause), cause);
  }
}

/** The tokens of a text, or of messages, whose template has the special tokens. */
export async function encodePrompt(parts: ModelParts, prompt: string | readonly ChatMessage[], options: EncodeOptions, { causal }: ModelInfo) {
  const isText = typeof prompt === 'string';
  const text = isText ? prompt : await parts.renderChat(prompt);
  return encodeText(await parts.findTokenizer(), text, isText ? options : { addSpecialTokens: options.addSpecialTokens ?? false }, causal);
}
