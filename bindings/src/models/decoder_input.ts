// The decoder's tokens of an encoder–decoder model.

import { optionError } from '../runtime/errors.js';
import type { ModelInfo, TextTokenizer } from '../types/models.js';
import { checkIds, textOrIds } from './inputs.js';
import { encodeText } from './tokenizer.js';

/** Copies the option `decoderInput`. The result makes token ids of it, for which a text needs the tokenizer. Throws `E_OPTION`. */
export function decoderInputOf(given: unknown, { vocabSize, decoderStart }: ModelInfo): (tokenizer: TextTokenizer | undefined) => Int32Array {
  const start = (): number => {
    if (decoderStart !== undefined) return decoderStart;
    throw optionError('decoderInput', 'token ids: the configuration has no decoder_start_token_id', typeof given === 'string' ? 'a text' : 'none');
  };
  if (given === undefined) {
    const ids = Int32Array.of(start());
    return () => ids;
  }
  if (typeof given !== 'string') {
    const ids = checkIds(given, 'decoderInput', vocabSize, textOrIds);
    return () => ids;
  }
  const first = start();
  return (tokenizer) => {
    if (tokenizer === undefined) throw optionError('decoderInput', 'token ids, or a tokenizer', 'a text');
    return Int32Array.of(first, ...checkIds(encodeText(tokenizer, given, {}, false).ids, 'tokenizer', vocabSize));
  };
}
