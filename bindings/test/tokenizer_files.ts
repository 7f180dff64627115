// A folder of a model with a tokenizer of words, for tests that take text.

import { cpSync, mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The golden models. */
export const goldens = fileURLToPath(new URL('../../tests/conformance/models', import.meta.url));

/** Words with the ids from 4; those before are special tokens. */
export const words = ['the', 'cat', 'dog', 'sat', 'on', 'a', 'mat', '.'];

/** Copies a golden model, and adds tokenizer.json: one token for each word, `w40` and so on for the other ids. */
export function folderWithTokenizer(name: string, vocabSize: number): string {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-model-'));
  cpSync(join(goldens, name), folder, { recursive: true });
  const tokens = Array.from({ length: vocabSize }, (_, id) => ['[UNK]', '[PAD]', '[BOS]', '[EOS]', ...words][id] ?? `w${id}`);
  const added = [0, 1, 2, 3].map((id) => ({
    id,
    content: tokens[id],
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  const tokenizer = {
    ...{ version: '1.0', truncation: null, padding: null, added_tokens: added, normalizer: { type: 'Lowercase' } },
    ...{ pre_tokenizer: { type: 'Whitespace' }, post_processor: null, decoder: { type: 'WordPiece', prefix: '##', cleanup: false } },
    model: {
      ...{ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100 },
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    },
  };
  writeFileSync(join(folder, 'tokenizer.json'), JSON.stringify(tokenizer));
  writeFileSync(join(folder, 'tokenizer_config.json'), JSON.stringify({ tokenizer_class: 'PreTrainedTokenizerFast' }));
  return folder;
}
