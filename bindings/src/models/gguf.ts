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
  /** A text begins with the first token unless the file says otherwise. */
  readonly addsFirst?: boolean;
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
  smollm: singleDigits,
  starcoder: singleDigits,
  refact: singleDigits,
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

const replace = (from: string, content: string): object => ({ type: 'Replace', pattern: { String: from }, content });

/** The tokens with roles, by their names in tokenizer_config.json, and the chat template. */
export function tokenizerConfigOf(header: GgufHeader): Record<string, unknown> {
  const tokens = texts(header, 'tokens');
  const roles = { bos: 'bos', eos: 'eos', unk: 'unknown', pad: 'padding' };
  return {
    ...Object.fromEntries(Object.entries(roles).map(([role, name]) => [`${role}_token`, tokens[setting(header, `${name}_token_id`) as number]])),
    chat_template: header.settings.get('tokenizer.chat_template'),
  };
}

/** Merges of bytes in pieces of the text, as GPT-2 has them. */
function byteParts(header: GgufHeader, { patterns, ignoresMerges = false, normalizer }: Division): Record<string, unknown> {
  const bytes = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false };
  const splits = patterns.map((pattern) => ({ type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false }));
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

/** Makes the JSON out of the arrays in the header. Throws `E_OPTION` for a tokenizer of another kind. */
export function tokenizerOf(header: GgufHeader): TokenizerJson {
  const kind = setting(header, 'model');
  const name = String(setting(header, 'pre') ?? 'default');
  const division = kind === 'gpt2' && Object.hasOwn(divisions, name) ? divisions[name] : undefined;
  if (kind !== 'llama' && division === undefined) {
    const [known, got] = kind === 'gpt2' ? [`pre of ${Object.keys(divisions).join(', ')}`, name] : ['model of gpt2 or llama', String(kind ?? 'none')];
    throw missingTokenizer(`tokenizer.ggml.${known} in the GGUF file, or the option tokenizer`, printable(got));
  }
  const config = tokenizerConfigOf(header);
  const tokens = texts(header, 'tokens');
  const ids = new Map(tokens.map((text, id) => [text, id]));
  const { model, ...parts } = division === undefined ? pieceParts(header, ids) : byteParts(header, division);

  const types = header.list('tokenizer.ggml.token_type') ?? [];
  const isPhi3 = header.settings.get('general.architecture') === 'phi3';
  const added = tokens.flatMap((content, id) => {
    const type = types[id] as number;
    if (![unknownToken, controlToken, userToken].includes(type)) return [];
    // Phi 3's tokens of roles take the spaces behind them.
    const rstrip = isPhi3 && type === controlToken && /^<\|(?!endoftext)/.test(content);
    return [{ id, content, single_word: false, lstrip: false, rstrip, normalized: false, special: type !== userToken }];
  });

  const ends = { bos: division === undefined || division.addsFirst === true, eos: false };
  const [first, last] = Object.entries(ends).map(([role, isDefault]) => {
    const token = config[`${role}_token`];
    return token !== undefined && (setting(header, `add_${role}_token`) ?? isDefault) ? [{ SpecialToken: { id: token, type_id: 0 } }] : [];
  }) as [object[], object[]];
  const around = (sequence: string): object[] => [...first, { Sequence: { id: sequence, type_id: 0 } }, ...last];
  const special = [...first, ...last].map((each) => (each as { SpecialToken: { id: string } }).SpecialToken.id);
  return {
    json: {
      ...{ version: '1.0', added_tokens: added, ...parts },
      post_processor: {
        ...{ type: 'TemplateProcessing', single: around('A'), pair: [...around('A'), ...around('B')] },
        special_tokens: Object.fromEntries(special.map((text) => [text, { id: text, ids: [ids.get(text)], tokens: [text] }])),
      },
      model: { type: 'BPE', vocab: Object.fromEntries(ids), ...(model as object) },
    },
    config,
  };
}
