// Text to token ids and back, by @huggingface/tokenizers, which is loaded when text is first used.

import { MultiheadError } from '../runtime/errors.js';
import { describe } from '../runtime/tensor.js';
import type { TextTokenizer } from '../types/models.js';
import { parseObject } from './config.js';

/** The texts of a folder's files; undefined if they do not exist. */
export interface TokenizerFiles {
  readonly json: string | undefined;
  readonly config: string | undefined;
}

const missing = (expected: string, got: string, cause?: unknown): MultiheadError =>
  new MultiheadError('E_OPTION', {
    argument: 'tokenizer',
    expected,
    got,
    message: `text needs ${expected}, got ${got}; token ids work without a tokenizer`,
    cause,
  });

async function makeTokenizer({ json, config }: TokenizerFiles): Promise<TextTokenizer> {
  if (json === undefined) throw missing('tokenizer.json in the folder, or the option tokenizer', 'neither');
  let tokenizers: typeof import('@huggingface/tokenizers');
  try {
    tokenizers = await import('@huggingface/tokenizers');
  } catch (cause) {
    // In a bundle the package is a file of its own, which may be gone after a deployment.
    if ((Object(cause) as { code?: unknown }).code !== 'ERR_MODULE_NOT_FOUND') {
      const got = cause instanceof Error ? cause.message : String(cause);
      throw new MultiheadError('E_LOAD', { argument: 'tokenizer', expected: 'the package @huggingface/tokenizers', got, cause });
    }
    throw missing('the package @huggingface/tokenizers (npm install @huggingface/tokenizers)', 'none', cause);
  }
  const parts = [parseObject('tokenizer.json', json), config === undefined ? {} : parseObject('tokenizer_config.json', config)] as const;
  const tokenizer = guarded(() => new tokenizers.Tokenizer(...parts));
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

/** The text of ids, without special tokens. The package's decode() refuses an empty list. */
export const textOf = (tokenizer: TextTokenizer, ids: readonly number[]): string =>
  ids.length === 0 ? '' : tokenizer.decode([...ids], { skip_special_tokens: true });

/** Checks the results of a caller's tokenizer. */
const checkedTokenizer = (given: TextTokenizer): TextTokenizer => ({
  encode(...args) {
    const encoded: unknown = given.encode(...args);
    const { ids } = Object(encoded) as { ids?: unknown };
    if (Array.isArray(ids) || ids instanceof Int32Array) return encoded as ReturnType<TextTokenizer['encode']>;
    throw missing('a tokenizer whose encode() returns { ids: token ids }', describe(encoded));
  },
  decode(...args) {
    const text: unknown = given.decode(...args);
    if (typeof text === 'string') return text;
    throw missing('a tokenizer whose decode() returns a text', describe(text));
  },
});

/** Finds the tokenizer at its first use, and keeps it. A failure is not kept. */
export function tokenizerFinder(given: unknown, files: TokenizerFiles): () => Promise<TextTokenizer> {
  if (given !== undefined) {
    const { encode, decode } = Object(given) as Partial<TextTokenizer>;
    if (typeof encode !== 'function' || typeof decode !== 'function') {
      const expected = 'an object with encode() and decode()';
      throw new MultiheadError('E_OPTION', { argument: 'tokenizer', expected, got: describe(given) });
    }
    const checked = checkedTokenizer(given as TextTokenizer);
    return async () => checked;
  }
  let found: Promise<TextTokenizer> | undefined;
  return () => {
    found ??= makeTokenizer(files).catch((error: unknown) => {
      found = undefined;
      throw error;
    });
    return found;
  };
}

/** The text of tokens that come one after another. */
export class TextStream {
  readonly #tokenizer: TextTokenizer;
  readonly #ids: number[] = [];
  /** The text of ids before `#begin` is complete; that of the ids after it depends on a few before. */
  #begin = 0;
  #done = 0;

  constructor(tokenizer: TextTokenizer) {
    this.#tokenizer = tokenizer;
  }

  #text(end: number): string {
    return textOf(this.#tokenizer, this.#ids.slice(this.#begin, end));
  }

  /** Adds a token. Returns the new text; none while it ends inside a character. */
  add(id: number): string {
    this.#ids.push(id);
    const before = this.#text(this.#done);
    const all = this.#text(this.#ids.length);
    if (all.length <= before.length || all.endsWith('\ufffd')) return '';
    this.#begin = this.#done;
    this.#done = this.#ids.length;
    return all.slice(before.length);
  }

  /** The text that is held back at the end, with U+FFFD for an incomplete character. */
  rest(): string {
    return this.#text(this.#ids.length).slice(this.#text(this.#done).length);
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
    let kept = 0;
    for (const stop of this.#stops) {
      for (let length = Math.min(stop.length - 1, text.length); length > kept; length -= 1) {
        if (text.endsWith(stop.slice(0, length))) kept = length;
      }
    }
    this.#held = text.slice(text.length - kept);
    return { text: text.slice(0, text.length - kept), ends: false };
  }

  /** The text that was held back. */
  rest(): string {
    return this.#held;
  }
}
