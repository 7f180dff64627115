// The tokenizer of a GGUF file, as the JSON that a Hugging Face folder has.

import { printable } from '../runtime/text.js';
import type { GgufHeader } from './gguf_header.js';
import { missingTokenizer, type TokenizerJson } from './tokenizer.js';

export { readGguf } from './gguf_header.js';

/** How a text is divided before its bytes are merged. */
interface Division {
  readonly patterns: readonly string[];
  /** A piece that is a token is not divided, whatever the merges are. */
  readonly ignoresMerges?: boolean;
  /** A text begins with the first token, and ends with the last one, unless the file says otherwise. */
  readonly addsFirst?: boolean;
  readonly addsLast?: boolean;
  readonly normalizer?: string;
}

const gpt2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`;
const endings = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)`;
const spaces = String.raw`\s*[\r\n]+|\s+(?!\S)|\s+`;
/** @param digits most digits of a piece */
const byWords = (digits: string): string => String.raw`${endings}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}${digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|${spaces}`;
/** @param ending of a word */
const byCase = (ending: string, digits: string): string => {
  const [before, upper, lower] = [String.raw`[^\r\n\p{L}\p{N}]?`, String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`];
  const others = String.raw`\p{N}${digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|${spaces}`;
  return `${before}${upper}*${lower}+${ending}|${before}${upper}+${lower}*${ending}|${others}`;
};
const qwen2: Division = { patterns: [byWords('')], normalizer: 'NFC' };
const llama3: Division = { patterns: [byWords('{1,3}')], ignoresMerges: true, addsFirst: true };
const singleDigits: Division = { patterns: [String.raw`\p{N}`, gpt2] };
const roberta: Division = { patterns: [gpt2], addsFirst: true, addsLast: true };
const glm: Division = { patterns: llama3.patterns };
const deepseek3: Division = {
  patterns: [
    String.raw`\p{N}{1,3}`,
    '[一-龥぀-ゟ゠-ヿ]+',
    '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|' + String.raw`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|${spaces}`,
  ],
};

/** By tokenizer.ggml.pre, the names that llama.cpp gives to the pre-tokenizers of models. */
const divisions: Record<string, Division> = {
  'gpt-2': { patterns: [gpt2] },
  olmo: { patterns: [gpt2] },
  'llama-bpe': llama3,
  llama3,
  'llama-v3': llama3,
  'smaug-bpe': { patterns: llama3.patterns },
  dbrx: { patterns: llama3.patterns },
  qwen2,
  'deepseek-r1-qwen': qwen2,
  stablelm2: { patterns: qwen2.patterns },
  smollm: singleDigits,
  starcoder: singleDigits,
  refact: singleDigits,
  'command-r': { ...singleDigits, normalizer: 'NFC' },
  'phi-2': { patterns: [gpt2] },
  exaone4: { patterns: [gpt2] },
  'roberta-bpe': roberta,
  'jina-v2-code': roberta,
  'jina-v2-de': roberta,
  'jina-v2-es': roberta,
  'modern-bert': { ...roberta, normalizer: 'NFC' },
  'chatglm-bpe': glm,
  glm4: glm,
  'deepseek-v3': deepseek3,
  'hunyuan-dense': deepseek3,
  'seed-coder': { patterns: [String.raw`${endings}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|${spaces}`] },
  bloom: { patterns: [String.raw` ?[^(\s|[.,!?…。，、।۔،])]+`] },
  tekken: { patterns: [byCase('', '')], ignoresMerges: true, addsFirst: true },
  'gpt-4o': { patterns: [byCase(`${endings}?`, '{1,3}')] },
  default: { patterns: [String.raw`[\p{P}\$\+<=>\^~\|]+`, gpt2, String.raw`\p{N}+`, '[0-9][0-9][0-9]'] },
};

/** Types of tokens in tokenizer.ggml.token_type. */
const [unknownToken, controlToken, userToken] = [2, 3, 4];

/**
 * The merges that give the pieces of SentencePiece's vocabulary: both parts of each piece, the pieces with high scores first.
 * transformers makes them in the same way (convert_slow_tokenizer.py, generate_merges()).
 */
function mergesOf(ids: ReadonlyMap<string, number>, scores: ArrayLike<unknown>): [string, string][] {
  const all: { readonly score: number; readonly parts: [string, string] }[] = [];
  for (const [piece, id] of ids) {
    const of: [left: number, right: number, parts: [string, string]][] = [];
    for (let at = 1; at < piece.length; at += 1) {
      const [left, right] = [ids.get(piece.slice(0, at)), ids.get(piece.slice(at))];
      if (left !== undefined && right !== undefined) of.push([left, right, [piece.slice(0, at), piece.slice(at)]]);
    }
    of.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    for (const [, , parts] of of) all.push({ score: Number(scores[id] ?? 0), parts });
  }
  return all.sort((a, b) => b.score - a.score).map(({ parts }) => parts);
}

const setting = ({ settings }: GgufHeader, name: string): unknown => settings.get(`tokenizer.ggml.${name}`);

const texts = ({ list }: GgufHeader, name: string): string[] => (list(`tokenizer.ggml.${name}`) ?? []).map(String);

/**
 * The tokens. Those of BERT's WordPiece have "▁" in front of a word in GGUF, and nothing where Hugging Face's have "##"; its tokens
 * with roles are as they are.
 */
function tokensOf(header: GgufHeader): string[] {
  const tokens = texts(header, 'tokens');
  if (setting(header, 'model') !== 'bert') return tokens;
  const types = header.list('tokenizer.ggml.token_type') ?? [];
  return tokens.map((token, id) => {
    // Older files keep all names in brackets.
    if (types[id] === controlToken || /^\[.+\]$/.test(token)) return token;
    return token.startsWith('▁') ? token.slice(1) : `##${token}`;
  });
}

const replace = (from: string, content: string): object => ({ type: 'Replace', pattern: { String: from }, content });

/** The tokens with roles, by their names in tokenizer_config.json, and the chat template. */
export function tokenizerConfigOf(header: GgufHeader): Record<string, unknown> {
  const tokens = tokensOf(header);
  const isBert = setting(header, 'model') === 'bert';
  // The names in GGUF, one of them misspelled, and the ids that llama.cpp takes for BERT if the file does not say them.
  const roles: [role: string, names: string[], ofBert?: number][] = [
    ['bos', ['bos', ...(isBert ? ['cls'] : [])], 101],
    ['eos', ['eos', ...(isBert ? ['seperator'] : [])], 102],
    ['unk', ['unknown'], 100],
    ['pad', ['padding'], 0],
    ['mask', ['mask']],
  ];
  const idOf = (names: string[], ofBert: number | undefined): unknown =>
    names.map((name) => setting(header, `${name}_token_id`)).find((id) => id !== undefined) ?? (isBert ? ofBert : undefined);
  return {
    ...Object.fromEntries(roles.map(([role, names, ofBert]) => [`${role}_token`, tokens[idOf(names, ofBert) as number]])),
    chat_template: header.settings.get('tokenizer.chat_template'),
  };
}

/** Merges of bytes in pieces of the text, as GPT-2 has them. */
function byteParts(header: GgufHeader, { patterns, ignoresMerges = false, normalizer: usual }: Division): Record<string, unknown> {
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  const splits = patterns.map((pattern) => ({ type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false }));
  const normalizer = setting(header, 'normalizer.nfc') === true ? 'NFC' : usual;
  return {
    normalizer: normalizer === undefined ? null : { type: normalizer },
    pre_tokenizer: { type: 'Sequence', pretokenizers: [...splits, bytes] },
    decoder: bytes,
    model: { merges: texts(header, 'merges'), ignore_merges: ignoresMerges },
  };
}

/** SentencePiece's byte pairs, as Llama 2 and Gemma have them. */
function pieceParts(header: GgufHeader, ids: ReadonlyMap<string, number>): Record<string, unknown> {
  const isPrefixed = setting(header, 'add_space_prefix') !== false;
  const steps = [replace('▁', ' '), { type: 'ByteFallback' }, { type: 'Fuse' }];
  return {
    normalizer: { type: 'Sequence', normalizers: [...(isPrefixed ? [{ type: 'Prepend', prepend: '▁' }] : []), replace(' ', '▁')] },
    pre_tokenizer: null,
    decoder: { type: 'Sequence', decoders: isPrefixed ? [...steps, { type: 'Strip', content: ' ', start: 1, stop: 0 }] : steps },
    model: {
      merges: mergesOf(ids, header.list('tokenizer.ggml.scores') ?? []),
      ...{ unk_token: tokenizerConfigOf(header)['unk_token'], fuse_unk: true, byte_fallback: true },
    },
  };
}

/** BERT's WordPiece. Files of 2024 do not say whether it is of lower case; its pieces do. */
function wordParts(header: GgufHeader, ids: ReadonlyMap<string, number>): Record<string, unknown> {
  const isCased = (): boolean => [...ids.keys()].some((piece) => /^[^[]*\p{Lu}/u.test(piece));
  const prefix = '##';
  return {
    normalizer: {
      ...{ type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true },
      strip_accents: setting(header, 'normalizer.strip_accents') ?? null,
      lowercase: setting(header, 'normalizer.lowercase') ?? !isCased(),
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    decoder: { type: 'WordPiece', prefix, cleanup: true },
    model: {
      ...{ type: 'WordPiece', unk_token: tokenizerConfigOf(header)['unk_token'], vocab: Object.fromEntries(ids) },
      ...{ continuing_subword_prefix: prefix, max_input_chars_per_word: 100 },
    },
  };
}

/** SentencePiece's Unigram, as XLM-RoBERTa and T5 have it. */
function unigramParts(header: GgufHeader, tokens: readonly string[]): Record<string, unknown> {
  const scores = header.list('tokenizer.ggml.scores') ?? [];
  const charsmap = header.list('tokenizer.ggml.precompiled_charsmap');
  const isPrefixed = setting(header, 'add_space_prefix') !== false;
  const words = { type: 'Metaspace', replacement: '▁', prepend_scheme: isPrefixed ? 'always' : 'never', split: true };
  // Each word begins with a space whatever remove_extra_whitespaces is: converters write another setting there.
  const spaces = { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' };
  const bytes = charsmap?.map((byte) => String.fromCodePoint((byte as number) & 255)).join('');
  const precompiled = bytes === undefined ? [] : [{ type: 'Precompiled', precompiled_charsmap: btoa(bytes) }];
  return {
    normalizer: { type: 'Sequence', normalizers: [...precompiled, spaces] },
    pre_tokenizer: isPrefixed ? { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, words] } : words,
    decoder: words,
    model: {
      ...{ type: 'Unigram', unk_id: setting(header, 'unknown_token_id') ?? 2, byte_fallback: false },
      vocab: tokens.map((token, id) => [token, Number(scores[id] ?? 0)]),
    },
  };
}

/** Makes the JSON out of the arrays in the header. Throws `E_OPTION` for a tokenizer of another kind. */
export function tokenizerOf(header: GgufHeader): TokenizerJson {
  const kind = setting(header, 'model');
  const name = String(setting(header, 'pre') ?? 'default');
  const division = kind === 'gpt2' && Object.hasOwn(divisions, name) ? divisions[name] : undefined;
  if (kind !== 'llama' && kind !== 'bert' && kind !== 't5' && division === undefined) {
    const [known, got] =
      kind === 'gpt2' ? [`pre of ${Object.keys(divisions).join(', ')}`, name] : ['model of gpt2, llama, bert or t5', String(kind ?? 'none')];
    throw missingTokenizer(`tokenizer.ggml.${known} in the GGUF file, or the option tokenizer`, printable(got));
  }
  const config = tokenizerConfigOf(header);
  const tokens = tokensOf(header);
  const ids = new Map(tokens.map((text, id) => [text, id]));
  const partsOf = (): Record<string, unknown> => {
    if (division !== undefined) return byteParts(header, division);
    if (kind === 'bert') return wordParts(header, ids);
    return kind === 't5' ? unigramParts(header, tokens) : pieceParts(header, ids);
  };
  const { model, ...parts } = partsOf();

  const types = header.list('tokenizer.ggml.token_type') ?? [];
  const isPhi3 = header.settings.get('general.architecture') === 'phi3';
  const added = tokens.flatMap((content, id) => {
    const type = types[id] as number;
    if (![unknownToken, controlToken, userToken].includes(type)) return [];
    // Phi 3's tokens of roles take the spaces behind them.
    const rstrip = isPhi3 && type === controlToken && /^<\|(?!endoftext)/.test(content);
    // The mask of RoBERTa and ModernBERT takes the spaces before it.
    const lstrip = (kind === 't5' || division?.addsLast === true) && content === config['mask_token'];
    return [{ id, content, single_word: false, lstrip, rstrip, normalized: false, special: type !== userToken }];
  });

  const isBert = kind === 'bert';
  const ends = { bos: isBert || kind === 'llama' || division?.addsFirst === true, eos: isBert || kind === 't5' || division?.addsLast === true };
  const [first, last] = Object.entries(ends).map(([role, isDefault]) => {
    const token = config[`${role}_token`];
    // llama.cpp has both around BERT's texts whatever the file says.
    const isAdded = isBert || (setting(header, `add_${role}_token`) ?? isDefault);
    return token !== undefined && isAdded ? [{ SpecialToken: { id: token, type_id: 0 } }] : [];
  }) as [object[], object[]];
  const around = (sequence: string): object[] => [...first, { Sequence: { id: sequence, type_id: 0 } }, ...last];
  const withType = (part: object): object => Object.fromEntries(Object.entries(part).map(([key, value]) => [key, { ...value, type_id: 1 }]));
  // Encoders have one first token. RoBERTa has two separators between texts, BERT one and another type behind it.
  const second = (): object[] => {
    const own = around('B');
    if (isBert) return own.slice(first.length).map(withType);
    const isEncoder = kind === 't5' || division?.addsLast === true || setting(header, 'add_sep_token') === true;
    if (!isEncoder || first.length === 0) return own;
    return [...(config['eos_token'] === '</s>' ? last : []), ...own.slice(first.length)];
  };
  const special = [...first, ...last].map((each) => (each as { SpecialToken: { id: string } }).SpecialToken.id);
  return {
    json: {
      ...{ version: '1.0', added_tokens: added, ...parts },
      post_processor: {
        ...{ type: 'TemplateProcessing', single: around('A'), pair: [...around('A'), ...second()] },
        special_tokens: Object.fromEntries(special.map((text) => [text, { id: text, ids: [ids.get(text)], tokens: [text] }])),
      },
      model: { type: 'BPE', vocab: Object.fromEntries(ids), ...(model as object) },
    },
    config,
  };
}
