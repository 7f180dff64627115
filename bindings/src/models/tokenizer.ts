// Text to token ids and back, by @huggingface/tokenizers, which is loaded when text is first used.

import { MultiheadError, optionError } from '../runtime/errors.js';
import { checkFlag } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { InputOptions, TextTokenizer } from '../types/models.js';

/** The contents of tokenizer.json and tokenizer_config.json. */
export interface TokenizerJson {
  readonly json: Record<string, unknown>;
  readonly config: Record<string, unknown>;
}

/** The error of something that a kind of input needs. `otherwise`: what works without it. */
export const lacking =
  (argument: string, input: string, otherwise: string) =>
  (expected: string, got: string, cause?: unknown): MultiheadError =>
    new MultiheadError('E_OPTION', { argument, expected, got, message: `${input} ${expected}, got ${got}; ${otherwise}`, cause });

export const missingTokenizer = /* @__PURE__ */ lacking('tokenizer', 'text needs', 'token ids work without a tokenizer');

/**
 * Imports an optional peer dependency. Throws what `absent` makes if it is not installed, and `E_LOAD` if it cannot be read: in a
 * bundle the package is a file of its own, which may be gone after a deployment.
 */
export async function importPeer<T>(load: () => Promise<T>, name: string, argument: string, absent: typeof missingTokenizer): Promise<T> {
  try {
    return await load();
  } catch (cause) {
    if ((Object(cause) as { code?: unknown }).code === 'ERR_MODULE_NOT_FOUND')
      throw absent(`the package ${name} (npm install ${name})`, 'none', cause);
    const got = cause instanceof Error ? cause.message : String(cause);
    throw new MultiheadError('E_LOAD', { argument, expected: `the package ${name}`, got, cause });
  }
}

async function makeTokenizer(read: () => TokenizerJson | undefined): Promise<TextTokenizer> {
  const parts = read();
  if (parts === undefined) throw missingTokenizer('tokenizer.json in the folder, or the option tokenizer', 'neither');
  const tokenizers = await importPeer(() => import('@huggingface/tokenizers'), '@huggingface/tokenizers', 'tokenizer', missingTokenizer);
  const tokenizer = guarded(() => new tokenizers.Tokenizer(parts.json, parts.config));
  return {
    encode: (...args) => guarded(() => tokenizer.encode(...args)),
    decode: (...args) => guarded(() => tokenizer.decode(...args)),
  };
}

/** Turns failures of the package, which may come as late as with the first text, into `E_FORMAT`. */
function guarded<T>(work: () => T): T {
  try {
    return work();
  } catch (cause) {
    throw new MultiheadError('E_FORMAT', {
      argument: 'tokenizer.json',
      expected: 'a tokenizer that @huggingface/tokenizers can use',
      got: cause instanceof Error ? cause.message : String(cause),
      cause,
    });
  }
}

/**
 * The text of ids, without special tokens. The package's decode() refuses an empty list, and by default takes out spaces
 * that the tokens have, such as one before a full stop.
 */
export const textOf = (tokenizer: TextTokenizer, ids: readonly number[]): string =>
  ids.length === 0 ? '' : tokenizer.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false });

type Encoded = ReturnType<TextTokenizer['encode']>;

/**
 * The token ids of a text. By default with the special tokens, but for a causal model without a first one that the text
 * begins with, as a rendered chat does. Throws `E_OPTION`.
 */
export function encodeText(
  tokenizer: TextTokenizer,
  text: string,
  { pair, addSpecialTokens }: Pick<InputOptions, 'pair' | 'addSpecialTokens'>,
  isCausal: boolean,
): Encoded {
  const options = { ...(pair !== undefined && { text_pair: pair }), return_token_type_ids: true };
  const encode = (special?: boolean): Encoded =>
    tokenizer.encode(text, special === undefined ? options : { ...options, add_special_tokens: special });
  if (addSpecialTokens !== undefined) return encode(checkFlag(addSpecialTokens, 'addSpecialTokens'));
  const encoded = encode();
  const { ids, tokens, token_type_ids: types } = encoded;
  if (!isCausal || ids.length < 2 || ids[0] !== ids[1]) return encoded;
  const plain = encode(false).ids;
  if (plain.length >= ids.length || plain.some((id, at) => id !== ids[at + 1])) return encoded;
  return { ids: ids.slice(1), tokens: tokens?.slice(1), ...(types && { token_type_ids: types.slice(1) }) };
}

/** Checks the results of a caller's tokenizer. */
const checkedTokenizer = (given: TextTokenizer): TextTokenizer => ({
  encode(...args) {
    const encoded: unknown = given.encode(...args);
    const { ids } = Object(encoded) as { ids?: unknown };
    if (Array.isArray(ids) || ids instanceof Int32Array) return encoded as ReturnType<TextTokenizer['encode']>;
    throw missingTokenizer('a tokenizer whose encode() returns { ids: token ids }', describe(encoded));
  },
  decode(...args) {
    const text: unknown = given.decode(...args);
    if (typeof text === 'string') return text;
    throw missingTokenizer('a tokenizer whose decode() returns a text', describe(text));
  },
});

/** Finds the tokenizer at its first use, and keeps it. A failure is not kept. `read` returns undefined if there is no tokenizer.json. */
export function tokenizerFinder(given: unknown, read: () => TokenizerJson | undefined): () => Promise<TextTokenizer> {
  if (given !== undefined) {
    const { encode, decode } = Object(given) as Partial<TextTokenizer>;
    if (typeof encode !== 'function' || typeof decode !== 'function') {
      throw optionError('tokenizer', 'an object with encode() and decode()', describe(given));
    }
    const checked = checkedTokenizer(given as TextTokenizer);
    return async () => checked;
  }
  let found: Promise<TextTokenizer> | undefined;
  return () => {
    found ??= makeTokenizer(read).catch((error: unknown) => {
      found = undefined;
      throw error;
    });
    return found;
  };
}

/** Length of the longest end of `text` that is the begin of one of `texts`, and not all of it. */
function lengthOfBegin(text: string, texts: readonly string[]): number {
  let longest = 0;
  for (const each of texts) {
    for (let length = Math.min(each.length - 1, text.length); length > longest; length -= 1) {
      if (text.endsWith(each.slice(0, length))) longest = length;
    }
  }
  return longest;
}

/**
 * Texts that a tokenizer shortens which ignores `clean_up_tokenization_spaces: false`, so that the end of a text changes
 * with its next token.
 */
const shortened = [' .', ' ?', ' !', ' ,', " ' ", " n't", " 'm", " 's", " 've", " 're"];

/** How many ids are decoded with a new one, at least, because its text depends on them. */
const leastContext = 8;

/** The text of tokens that come one after another. */
export class TextStream {
  readonly #tokenizer: TextTokenizer;
  readonly #ids: number[] = [];
  /** Only the ids from here on are decoded: enough before each new one to have its text. */
  #begin = 0;
  /** A later place where a character begins, from which on all ids will be decoded. */
  #nextBegin = 0;
  /** How much is given of the text of ids from `#begin` on. */
  #given = 0;

  constructor(tokenizer: TextTokenizer) {
    this.#tokenizer = tokenizer;
  }

  #text(): string {
    return textOf(this.#tokenizer, this.#ids.slice(this.#begin));
  }

  /** Adds a token. Returns the new text; none while it ends inside a character. */
  add(id: number): string {
    this.#ids.push(id);
    const text = this.#text();
    const complete = text.replace(/\ufffd+$/, '');
    const end = complete.length - lengthOfBegin(complete, shortened);
    if (end <= this.#given) return '';
    const piece = text.slice(this.#given, end);
    this.#given = end;
    if (end === text.length && this.#ids.length >= this.#nextBegin + leastContext) {
      this.#begin = this.#nextBegin;
      this.#nextBegin = this.#ids.length;
      this.#given = this.#text().length;
    }
    return piece;
  }

  /** The text that is held back at the end, with U+FFFD for an incomplete character. */
  rest(): string {
    return this.#text().slice(this.#given);
  }
}

/** Finds texts that end a generation in a text that comes in pieces. */
export class StopTexts {
  readonly #stops: readonly string[];
  #held = '';

  constructor(stops: readonly string[]) {
    this.#stops = stops;
  }

  /** Adds a piece. Returns the text that can be given, and true if it ends. */
  add(piece: string): { readonly text: string; readonly ends: boolean } {
    const text = this.#held + piece;
    const places = this.#stops.map((stop) => text.indexOf(stop)).filter((place) => place >= 0);
    if (places.length > 0) {
      this.#held = '';
      return { text: text.slice(0, Math.min(...places)), ends: true };
    }
    // The end of the text may be the begin of a stop.
    const kept = lengthOfBegin(text, this.#stops);
    this.#held = text.slice(text.length - kept);
    return { text: text.slice(0, text.length - kept), ends: false };
  }

  /** The text that was held back. */
  rest(): string {
    return this.#held;
  }
}
