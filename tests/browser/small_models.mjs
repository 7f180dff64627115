// Small models as files of Hugging Face folders: a GPT-2 with weights of a formula, tokenizers, and the golden models.

import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const golden = fileURLToPath(new URL('../conformance/models/', import.meta.url));

/** The files of a golden model that a visitor would have, by name. */
export function goldenFiles(name) {
  const names = readdirSync(golden + name).filter(
    (file) => /^(preprocessor_)?config\.json$/.test(file) || /^model.*\.(safetensors|index\.json)$/.test(file),
  );
  return Object.fromEntries(names.map((file) => [file, readFileSync(`${golden}${name}/${file}`)]));
}

export const gpt2 = { width: 12, heads: 3, vocabulary: 24, positions: 40, layers: 2 };

export const gpt2Config = JSON.stringify({
  ...{ model_type: 'gpt2', architectures: ['GPT2LMHeadModel'], n_embd: gpt2.width, n_head: gpt2.heads, n_layer: gpt2.layers },
  ...{ n_positions: gpt2.positions, vocab_size: gpt2.vocabulary, layer_norm_epsilon: 1e-5, activation_function: 'gelu_new' },
});

function noise(count, seed) {
  let state = seed >>> 0;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return 4 * (state / 2 ** 32 - 0.5);
  });
}

/** The tensors of the GPT-2, by name. */
export function gpt2Tensors() {
  const { width, vocabulary, positions } = gpt2;
  const shapes = { 'wte.weight': [vocabulary, width], 'wpe.weight': [positions, width], 'ln_f.weight': [width], 'ln_f.bias': [width] };
  for (const layer of [0, 1]) {
    for (const name of ['ln_1', 'ln_2']) {
      for (const part of ['weight', 'bias']) shapes[`h.${layer}.${name}.${part}`] = [width];
    }
    const matrices = [
      ['attn.c_attn', width, 3 * width],
      ['attn.c_proj', width, width],
      ['mlp.c_fc', width, 48],
      ['mlp.c_proj', 48, width],
    ];
    for (const [name, from, to] of matrices) {
      shapes[`h.${layer}.${name}.weight`] = [from, to];
      shapes[`h.${layer}.${name}.bias`] = [to];
    }
  }
  return Object.fromEntries(
    Object.entries(shapes).map(([name, shape], i) => [
      name,
      {
        shape,
        data: noise(
          shape.reduce((a, b) => a * b),
          i + 1,
        ),
      },
    ]),
  );
}

/** The begin of a safetensors file with f32 tensors of these shapes, in the format of huggingface.co/docs/safetensors. */
export function safetensorsHeader(shapes) {
  const header = {};
  let end = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const bytes = 4 * shape.reduce((a, b) => a * b, 1);
    header[name] = { dtype: 'F32', shape, data_offsets: [end, (end += bytes)] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  return { header: Buffer.concat([length, text]), bytes: 8 + text.length + end };
}

/** A safetensors file. */
export function safetensors(tensors) {
  const { header } = safetensorsHeader(Object.fromEntries(Object.entries(tensors).map(([name, { shape }]) => [name, shape])));
  return Buffer.concat([header, ...Object.values(tensors).map(({ data }) => Buffer.from(data.buffer))]);
}

/** A tokenizer.json with GPT-2's byte pairs for these words; each becomes one token, merged from its first letter on. */
export function bytePairTokenizer(words, mostTokens) {
  const spelled = words.map((word) => word.replace(' ', 'Ġ'));
  const letters = [...new Set(spelled.join(''))];
  const merges = spelled.flatMap((word) => [...word].slice(1).map((letter, i) => `${word.slice(0, i + 1)} ${letter}`));
  // "the" is merged before the space in front of it.
  for (const word of spelled) if (word.startsWith('Ġ') && spelled.includes(word.slice(1))) merges.push(`Ġ ${word.slice(1)}`);
  const parts = merges.map((merge) => merge.replace(' ', ''));
  // The words come first, so that they have the numbers 0, 1 and so on.
  const tokens = [...new Set([...spelled, ...letters, ...parts])].slice(0, mostTokens);
  return JSON.stringify({
    version: '1.0',
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: { type: 'BPE', vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges: [...new Set(merges)] },
  });
}

/** A tokenizer.json with BERT's pieces: whole words, and [CLS] and [SEP] around a text. */
export function wordTokenizer(words) {
  const tokens = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', ...words];
  const special = (content, id) => ({ id, content, special: true, single_word: false, lstrip: false, rstrip: false, normalized: false });
  return JSON.stringify({
    version: '1.0',
    added_tokens: tokens.slice(0, 4).map(special),
    normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: { type: 'BertProcessing', sep: ['[SEP]', 3], cls: ['[CLS]', 2] },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      ...{ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100 },
      vocab: Object.fromEntries(tokens.map((token, id) => [token, id])),
    },
  });
}
