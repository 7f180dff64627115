// GGUF files: the numbers of the folder that they were made of, from every source; their tokenizers; broken files.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { Tokenizer } from '@huggingface/tokenizers';
import { readSafetensors, writeSafetensors } from 'multihead';
import { type ModelSource, openModel, type OpenModelOptions, saveModel } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { readGguf, tokenizerConfigOf, tokenizerOf } from '../src/models/gguf.ts';
import { builds, rejectionOf } from './builds.ts';
import { FakeDevice } from './fake_gpu.ts';
import { convertedModel, ggufFile } from './gguf_file.ts';
import { goldens } from './tokenizer_files.ts';

const ids = [5, 6, 7, 90, 14];
const { settings, tensors } = convertedModel(join(goldens, 'llama3'));
const file = ggufFile(settings, tensors);
const root = mkdtempSync(join(tmpdir(), 'multihead-gguf-'));
const path = join(root, 'my model.gguf');
writeFileSync(path, file);
afterAll(() => rmSync(root, { recursive: true }));

/** The header is longer than the first piece that is read. */
const long = ggufFile({ ...settings, 'tokenizer.ggml.tokens': Array.from({ length: 60_000 }, (_, id) => `token ${id}`) }, tensors);

async function logits(source: ModelSource, options: OpenModelOptions = {}): Promise<Float32Array> {
  using model = await openModel(source, { weights: 'f32', ...options });
  return (await model.logits(ids)).data;
}

describe.each(builds)('%s', (simd) => {
  it.each(['llama3', 'qwen3'])('%s has the numbers of its folder', async (name) => {
    const made = convertedModel(join(goldens, name));
    const want = await logits(join(goldens, name), { simd });
    const got = await logits(new Blob([ggufFile(made.settings, made.tensors)]), { simd });
    expect(got.length).toBe(want.length);
    got.forEach((number, at) => expect(Math.abs(number - (want[at] as number)), `logit ${at}`).toBeLessThan(2e-5));
  });
});

describe('openModel(file.gguf)', () => {
  const server = createServer((request, response) => {
    const isThere = ['/my%20model.gguf?key=1', '/org/tiny/resolve/main/sub/my.gguf'].includes(request.url as string);
    response.writeHead(isThere ? 200 : 404, { 'content-length': isThere ? long.length : 0 }).end(isThere ? long : undefined);
  });
  let host = '';
  beforeAll(async () => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    host = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterAll(() => {
    server.closeAllConnections();
    server.close();
  });

  it('takes paths, addresses, files and names of the hub', async () => {
    const want = await logits(new Blob([file]));
    // As Ollama keeps files.
    writeFileSync(join(root, 'sha256-1'), file);
    for (const source of [path, pathToFileURL(path), join(root, 'sha256-1'), [new File([file], 'a.gguf'), new File(['x'], 'README.md')]]) {
      expect(await logits(source)).toEqual(want);
    }
    const address = `${host}/my%20model.gguf?key=1`;
    for (const source of [address, new URL(address), await fetch(address), [await fetch(address)], new Response(long)]) {
      expect(await logits(source)).toEqual(want);
    }
    const kept = process.env['XDG_CACHE_HOME'];
    process.env['XDG_CACHE_HOME'] = root;
    try {
      for (const local of [false, true]) expect(await logits('org/tiny/sub/my.gguf', { host, local })).toEqual(want);
      expect((await rejectionOf(openModel('org/tiny/other.gguf', { host }))).argument).toBe('other.gguf');
    } finally {
      if (kept === undefined) delete process.env['XDG_CACHE_HOME'];
      else process.env['XDG_CACHE_HOME'] = kept;
    }
  });

  it('opens in workers, reports progress, and keeps the types of blocks', async () => {
    const seen: number[] = [];
    expect(await logits(new Blob([long]), { workers: 2, onProgress: (loaded, total) => seen.push(loaded / total) })).toEqual(
      await logits(new Blob([file])),
    );
    expect([seen[0], seen.at(-1)]).toEqual([0, 1]);
    const made = convertedModel(join(goldens, 'qwen3'));
    // Rows of 32 numbers in one block of Q8_0: a scale of 1, and the numbers 0, 1, 2, ...
    const block = Uint8Array.from([0, 0x3c, ...Array.from({ length: 32 }, (_, at) => at)]);
    const wide = made.tensors.map((tensor) => {
      if (tensor.name !== 'token_embd.weight') return tensor;
      const [rows, columns] = tensor.shape as [number, number];
      expect(columns % 32).not.toBe(0);
      return { ...tensor, type: 8, data: Buffer.concat(Array.from({ length: rows * columns }, () => block)) };
    });
    const error = await rejectionOf(openModel(new Blob([ggufFile(made.settings, wide)])));
    expect(error.message).toContain('rows of a multiple of 32 numbers in Q8_0');
  });

  it('refuses what is no such model, with the name of the file', async () => {
    const refused = async (bytes: Uint8Array, name = 'a.gguf') => rejectionOf(openModel([new File([new Uint8Array(bytes)], name)]));
    const header = file.length - tensors.reduce((sum, { data }) => sum + Math.ceil(data.byteLength / 32) * 32, 0);
    for (let size = 0; size < file.length - 32; size += size < header ? 7 : 997) {
      const error = await refused(file.subarray(0, size));
      expect([error.code, error.argument.startsWith('a.gguf: ')], String(size)).toEqual(['E_FORMAT', true]);
    }
    const cases: [bytes: Uint8Array, words: string][] = [
      [Buffer.from('other'), 'a GGUF file'],
      [ggufFile(settings, tensors, 1), 'version 2 or 3'],
      [ggufFile({ ...settings, 'general.architecture': 'mamba' }, tensors), 'one of llama, mistral3'],
      [ggufFile({ ...settings, 'general.alignment': 0 }, tensors), 'general.alignment'],
      [ggufFile({ ...settings, 'split.count': 2 }, tensors), 'join the files with llama-gguf-split'],
      [ggufFile(settings, tensors.slice(2)), 'token_embd.weight'],
      [ggufFile(settings, tensors.slice(0, -1)), 'none of the names'],
      [ggufFile(Object.fromEntries(Object.entries(settings).filter(([name]) => name !== 'llama.block_count')), tensors), 'llama.block_count'],
      [ggufFile(settings, [{ name: 'x', shape: [2 ** 48, 2], data: new Uint8Array() }]), 'at most 2^48 numbers'],
      [ggufFile(settings, [{ name: 'x', shape: [1, 1, 1, 1, 1], data: new Float32Array(1) }]), 'at most 4 axes'],
      [
        ggufFile(
          settings,
          tensors.map((each, at) => ({ ...each, type: at === 5 ? 23 : 0 })),
        ),
        'IQ4_XS, where F32',
      ],
    ];
    for (const [bytes, words] of cases) {
      const error = await refused(bytes);
      expect([error.code, error.message.includes(words)], error.message).toEqual(['E_FORMAT', true]);
    }
    // Any changed byte gives an error or another model.
    for (let at = 4; at < header; at += 13) {
      const changed = new Uint8Array(file);
      changed[at] = (changed[at] as number) ^ (1 << (at % 8));
      await openModel(new Blob([changed])).then(
        (model) => model.dispose(),
        (error: { code: string }) => expect(['E_FORMAT', 'E_OPTION', 'E_MEMORY'], String(error)).toContain(error.code),
      );
    }
    expect((await rejectionOf(openModel([new File([file], 'a.gguf'), new File([file], 'b.gguf')]))).message).toContain('open the file itself');
    expect((await rejectionOf(openModel(root))).message).toContain('open the file itself');
    expect((await rejectionOf(openModel(join(root, 'none.gguf')))).code).toBe('E_FORMAT');
    expect((await rejectionOf(openModel(`${host}/none.gguf`))).code).toBe('E_FORMAT');
    using model = await openModel(path);
    expect(() => saveModel(model)).toThrow('config.json');
  });
});

describe('matrices of groups', () => {
  it.each(builds)('%s: MLX has the numbers that it stands for', async (simd) => {
    const folder = join(goldens, 'llama3');
    const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as object;
    const { tensors: stored } = readSafetensors(readFileSync(join(folder, 'model.safetensors')));
    const [grouped, dense]: Record<string, object>[] = [{}, {}];
    for (const [name, { dtype, shape, data }] of Object.entries(stored)) {
      if (shape.length !== 2) {
        grouped![name] = dense![name] = { dtype, shape, data };
        continue;
      }
      // Groups of 8 inputs with a scale of 1 / 64 and biases of -1 and 0 in turns.
      const [rows, columns] = shape as [number, number];
      const numbers = Uint8Array.from({ length: rows * columns }, (_, at) => (at * 7 + rows) % 16);
      const words = Uint32Array.from({ length: numbers.length / 8 }, (_, at) =>
        numbers.subarray(8 * at, 8 * at + 8).reduce((word, number, i) => word + number * 16 ** i, 0),
      );
      const groups = [rows, columns / 8];
      const biases = Float32Array.from({ length: numbers.length / 8 }, (_, group) => (group % 2) - 1);
      const base = name.replace(/\.weight$/, '');
      grouped![name] = { dtype: 'u32', shape: [rows, columns / 8], data: words };
      grouped![`${base}.scales`] = { shape: groups, data: biases.map(() => 1 / 64) };
      grouped![`${base}.biases`] = { shape: groups, data: biases };
      dense![name] = { shape, data: Float32Array.from(numbers, (number, at) => number / 64 + (biases[Math.floor(at / 8)] as number)) };
    }
    const filesOf = (settings: object, tensors: object) => [
      new File([JSON.stringify({ ...config, ...settings })], 'config.json'),
      new File([writeSafetensors(tensors as never)], 'model.safetensors'),
    ];
    const quantization = { group_size: 8, bits: 4 };
    expect(await logits(filesOf({ quantization, quantization_config: quantization }, grouped!), { simd })).toEqual(
      await logits(filesOf({}, dense!), { simd }),
    );
    expect(await logits(filesOf({ quantization }, grouped!), { simd, weights: undefined })).toEqual(
      await logits(filesOf({}, dense!), { simd, weights: 'int8' }),
    );
    // The saved weights are plain numbers, and the saved settings have no groups.
    using model = await openModel(filesOf({ quantization, quantization_config: quantization }, grouped!), { simd, weights: 'f32' });
    for (const dtype of ['f32', 'asInMemory'] as const) {
      const saved = saveModel(model, { dtype });
      const settings = JSON.parse((await saved.find(({ name }) => name === 'config.json')?.text()) as string) as object;
      expect(settings).toEqual({ ...config, ...(dtype === 'f32' && { dtype: 'float32' }) });
      expect(await logits(saved, { simd })).toEqual((await model.logits(ids)).data);
    }
    const error = await rejectionOf(openModel(filesOf({ quantization: { ...quantization, bits: 3 } }, grouped!)));
    expect(error.message).toContain('4 or 8 bits of MLX');
  });
});

/** A Llama of one layer whose matrices, but for the embedding, are random blocks of one type; `bytes` of `numbers`, which begin with these halves. */
function modelOfBlocks(width: number, mlp: number, type: number, numbers: number, bytes: number, halves: readonly number[]) {
  const heads = 8;
  const settings = {
    'general.architecture': 'llama',
    'llama.context_length': 64,
    'llama.embedding_length': width,
    'llama.block_count': 1,
    'llama.feed_forward_length': mlp,
    'llama.attention.head_count': heads,
    'llama.attention.head_count_kv': heads,
    'llama.attention.key_length': 32,
    'llama.attention.value_length': 32,
    'llama.attention.layer_norm_rms_epsilon': 1e-5,
  };
  let state = 1;
  const byte = () => (state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0) >>> 24;
  const scales = [...new Uint8Array(Uint16Array.from(halves).buffer)];
  const matrix = (name: string, rows: number, columns: number) => ({
    name: `${name}.weight`,
    shape: [rows, columns],
    type,
    data: Uint8Array.from({ length: ((rows * columns) / numbers) * bytes }, (_, at) => scales[at % bytes] ?? byte()),
  });
  const norm = (name: string) => ({ name: `${name}.weight`, shape: [width], data: new Float32Array(width).fill(1) });
  const matrices = [
    ...['attn_q', 'attn_k', 'attn_v'].map((name) => matrix(`blk.0.${name}`, 32 * heads, width)),
    matrix('blk.0.attn_output', width, 32 * heads),
    ...['ffn_gate', 'ffn_up'].map((name) => matrix(`blk.0.${name}`, mlp, width)),
    matrix('blk.0.ffn_down', width, mlp),
  ];
  const embedding = { name: 'token_embd.weight', shape: [24, width], data: Float32Array.from({ length: 24 * width }, () => byte() / 128 - 1) };
  const file = ggufFile(settings, [embedding, ...matrices, ...['output_norm', 'blk.0.attn_norm', 'blk.0.ffn_norm'].map((name) => norm(name))]);
  return { file: new Blob([file]), matrices };
}

describe('blocks of GGUF in memory', () => {
  // More than 64 blocks in a row, which are one round of the kernel, and a rest that is no whole vector.
  const kept = [
    ['Q4_K', modelOfBlocks(9 * 256, 256, 12, 256, 144, [0x0c00, 0x1800]), 18 + 4 / 8],
    ['Q4_1', modelOfBlocks(73 * 32, 96, 3, 32, 20, [0x2400, 0xaf80]), 20],
    ['Q5_0', modelOfBlocks(160, 96, 6, 32, 22, [0x2400]), 34],
  ] as const;
  it.each(builds.flatMap((simd) => kept.map((each) => [simd, ...each] as const)))('%s: %s', async (simd, _, { file, matrices }, blockBytes) => {
    using model = await openModel(file, { simd });
    using wide = await openModel(file, { simd, weights: 'f32' });
    const saved = matrices.reduce((sum, { shape: [rows, columns] }) => sum + rows! * columns! * (4 - blockBytes / 32), 0);
    expect(wide.info.weightBytes - model.info.weightBytes).toBe(saved);
    // One, two and four rows have kernels of their own; with sixteen the weights become f32.
    for (const rows of [1, 2, 3, 7, 16]) {
      const some = Array.from({ length: rows }, (__, at) => (at * 5 + rows) % 24);
      const [got, want] = [(await model.logits(some)).data, (await wide.logits(some)).data];
      const most = Math.max(...want.map(Math.abs));
      got.forEach((number, at) => expect(Math.abs(number - want[at]!), `${rows} rows, logit ${at}`).toBeLessThan(0.05 * most));
    }
  });
});

describe('on a GPU', () => {
  it.each([
    ['Q5_0', 6, 22, [0x2400]],
    ['Q4_1', 3, 20, [0x2400, 0xaf80]],
  ] as const)('%s, which has no kernel, becomes int8', async (_, type, blockBytes, halves) => {
    const { file: bytes } = modelOfBlocks(32, 32, type, 32, blockBytes, halves);
    /** What is in the buffers of the GPU. */
    const uploaded = async (options: OpenModelOptions) => {
      const fake = new FakeDevice();
      const requestAdapter = async () => ({ features: new Set(), limits: fake.limits, requestDevice: async () => fake });
      vi.stubGlobal('navigator', { gpu: { requestAdapter } });
      using model = await openModel(bytes, { device: 'gpu', ...options });
      expect(model.device).toMatch(/^gpu: /);
      return fake.buffers.filter(({ destroyed }) => !destroyed).map((buffer) => [...buffer.words()]);
    };
    const got = await uploaded({});
    expect(got.length).toBeGreaterThan(5);
    expect(got).toEqual(await uploaded({ weights: 'int8', embeddingWeights: 'f32' }));
    vi.unstubAllGlobals();
  });
});

/** The JSON of a file with this tokenizer. */
async function madeOf(tokenizer: Record<string, string | number | boolean | readonly (string | number)[]>, others = {}) {
  const bytes = ggufFile(
    { ...Object.fromEntries(Object.entries(tokenizer).map(([name, value]) => [`tokenizer.ggml.${name}`, value])), ...others },
    [],
  );
  const header = await readGguf({ size: bytes.length, read: async (at, count) => new Uint8Array(bytes.subarray(at, at + count)) });
  return { header, ...tokenizerOf(header) };
}

const texts = [
  ' The bank by the river approved my loan, 12345 times.',
  'It’s naïve; they\'LL say so!\n\n  Twice\t "(and more)" ',
  '日本語と中文 😀👍🏽 <|endoftext|> é e\u0301',
  '',
];

describe('the tokenizer of a GGUF file', () => {
  const english = JSON.parse(readFileSync(fileURLToPath(new URL('../../web/public/english/tokenizer.json', import.meta.url)), 'utf8')) as {
    model: { vocab: Record<string, number>; merges: (string | [string, string])[] };
    added_tokens: { id: number; content: string }[];
    pre_tokenizer: object;
  };
  const tokens: string[] = [];
  for (const [token, id] of Object.entries(english.model.vocab)) tokens[id] = token;
  for (const { id, content } of english.added_tokens) tokens[id] = content;
  const bytes = {
    ...{ model: 'gpt2', pre: 'gpt-2', tokens, merges: english.model.merges.map((merge) => (typeof merge === 'string' ? merge : merge.join(' '))) },
    token_type: tokens.map((_, id) => (english.added_tokens.some((each) => each.id === id) ? 3 : 1)),
  };

  it('merges bytes as tokenizer.json does', async () => {
    const { json, config } = await madeOf(bytes);
    const [got, want] = [
      new Tokenizer(json, config),
      new Tokenizer({ ...english, pre_tokenizer: { ...english.pre_tokenizer, add_prefix_space: false } }, {}),
    ];
    for (const text of texts) {
      const { ids: encoded } = want.encode(text, { add_special_tokens: false });
      expect(got.encode(text).ids).toEqual(encoded);
      if (encoded.length > 0) expect(got.decode(encoded)).toBe(want.decode(encoded));
    }
  });

  it('divides texts as the models do', async () => {
    const pieces = async (pre: string): Promise<string[]> => {
      const { json } = await madeOf({ ...bytes, pre });
      const parts = json['pre_tokenizer'] as { pretokenizers: { pattern?: { Regex: string } }[] };
      const splits = parts.pretokenizers.flatMap(({ pattern }) => pattern ?? []);
      expect(splits.length).toBeGreaterThan(0);
      // Each pattern cuts what the ones before have left.
      return splits
        .reduce(
          (texts, { Regex }) =>
            texts.flatMap((text) => text.split(new RegExp(`(${Regex.replaceAll("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[lL][lL])")})`, 'u'))),
          ["They'LL 12345 don't \n x"],
        )
        .filter((text) => text !== '');
    };
    expect(await pieces('llama-bpe')).toEqual(['They', "'LL", ' ', '123', '45', ' don', "'t", ' \n', ' x']);
    expect(await pieces('qwen2')).toEqual(['They', "'LL", ' ', '1', '2', '3', '4', '5', ' don', "'t", ' \n', ' x']);
    expect(await pieces('smollm')).toEqual(['They', "'", 'LL', ' ', '1', '2', '3', '4', '5', ' don', "'t", ' \n', ' x']);
    expect(await pieces('gpt-2')).toEqual(['They', "'", 'LL', ' 12345', ' don', "'t", ' \n', ' x']);
    expect(await pieces('tekken')).toEqual(['They', "'LL", ' ', '1', '2', '3', '4', '5', ' don', "'t", ' \n', ' x']);
    expect((await pieces('gpt-4o'))[0]).toBe("They'LL");
    expect(await pieces('command-r')).toEqual(await pieces('smollm'));
    for (const name of ['phi-2', 'roberta-bpe', 'modern-bert', 'exaone4']) expect(await pieces(name)).toEqual(await pieces('gpt-2'));
    for (const name of ['glm4', 'chatglm-bpe']) expect(await pieces(name)).toEqual(await pieces('llama-bpe'));
    for (const name of ['stablelm2', 'seed-coder']) expect(await pieces(name)).toEqual(await pieces('qwen2'));
    for (const name of ['deepseek-v3', 'hunyuan-dense']) {
      expect(await pieces(name)).toEqual(['They', "'LL", ' ', '123', '45', ' don', "'t", ' \n', ' x']);
    }
  });

  it('merges pieces by their scores, with bytes for what has no piece', async () => {
    const all = Array.from({ length: 256 }, (_, byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
    const pieces = ['▁', 'a', 'b', 'c', 'ab', 'bc', '▁a', '▁ab', 'abc'];
    const vocabulary = ['<unk>', '<s>', '</s>', ...all, ...pieces];
    const scores = vocabulary.map((token) => ({ bc: -1, ab: -2, '▁a': -3, '▁ab': -4, abc: -5 })[token] ?? -9.5);
    const own = {
      ...{ model: 'llama', tokens: vocabulary, scores, token_type: vocabulary.map((_, id) => (id === 0 ? 2 : id < 3 ? 3 : id < 259 ? 6 : 1)) },
      ...{ bos_token_id: 1, eos_token_id: 2, unknown_token_id: 0 },
    };
    const encoded = async (text: string, change = {}): Promise<string[]> => {
      const { json, config } = await madeOf({ ...own, ...change });
      const tokenizer = new Tokenizer(json, config);
      const { ids: found } = tokenizer.encode(text);
      expect(tokenizer.decode(found, { skip_special_tokens: true, clean_up_tokenization_spaces: false })).toBe(text);
      return found.map((id) => vocabulary[id] as string);
    };
    expect(await encoded('abc')).toEqual(['<s>', '▁a', 'bc']);
    expect(await encoded('a ab')).toEqual(['<s>', '▁a', '▁ab']);
    expect(await encoded('abc', { add_space_prefix: false, add_bos_token: false })).toEqual(['abc']);
    expect(await encoded('é', { add_eos_token: true })).toEqual(['<s>', '▁', '<0xC3>', '<0xA9>', '</s>']);
  });

  /** Ids of texts alone and in pairs are those of the original tokenizer. */
  function expectSame(made: { json: object; config: object }, original: object, texts: readonly string[]): void {
    const [got, want] = [new Tokenizer(made.json, made.config), new Tokenizer(original, {})];
    for (const text of texts) {
      expect(got.encode(text).ids, text).toEqual(want.encode(text).ids);
      const [pair, wanted] = [got, want].map((each) => each.encode(text, { text_pair: text, return_token_type_ids: true }));
      expect(pair, text).toEqual(wanted);
      const skipped = { skip_special_tokens: true, clean_up_tokenization_spaces: false };
      const { ids: encoded } = want.encode(text);
      expect(got.decode(encoded, skipped)).toBe(want.decode(encoded, skipped));
    }
  }
  const addedOf = (contents: readonly string[], mask = ''): object[] =>
    contents.map((content, id) => ({
      ...{ id, content, single_word: false, lstrip: content === mask, rstrip: false, normalized: false, special: true },
    }));
  const special = (id: string, type_id = 0): object => ({ SpecialToken: { id, type_id } });
  const sequence = (id: string, type_id = 0): object => ({ Sequence: { id, type_id } });
  const roles = (vocabulary: readonly string[], names: readonly string[]): object =>
    Object.fromEntries(names.map((name) => [name, { id: name, ids: [vocabulary.indexOf(name)], tokens: [name] }]));

  it.each([
    ['lower case', {}],
    ['both cases', {}],
    ['what new files say', { 'normalizer.lowercase': false }],
    ['the ids of roles that llama.cpp knows', {}],
  ])('reads WordPiece as tokenizer.json does: %s', async (kind, said) => {
    const own = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'];
    // Older files have the tokens at the ids of BERT, and do not say them.
    const isOld = kind.startsWith('the ids');
    const at = { '[PAD]': 0, '[UNK]': 100, '[CLS]': 101, '[SEP]': 102, '[MASK]': 103 } as Record<string, number>;
    const words = ['the', 'bank', '##s', 'naive', '##', '#', '.', 'b', '##an', '##k', '水', ...(kind === 'both cases' ? ['The', 'Bank'] : [])];
    const first = isOld ? Array.from({ length: 104 }, (_, id) => own.find((name) => at[name] === id) ?? `[unused${id}]`) : own;
    const vocabulary = [...first, ...words];
    const isCased = kind === 'both cases' || 'normalizer.lowercase' in said;
    const original = {
      ...{ version: '1.0', added_tokens: addedOf(vocabulary).filter((_, id) => own.includes(vocabulary[id] as string)) },
      normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: !isCased },
      ...{ pre_tokenizer: { type: 'BertPreTokenizer' }, decoder: { type: 'WordPiece', prefix: '##', cleanup: true } },
      post_processor: {
        ...{ type: 'TemplateProcessing', single: [special('[CLS]'), sequence('A'), special('[SEP]')] },
        pair: [special('[CLS]'), sequence('A'), special('[SEP]'), sequence('B', 1), special('[SEP]', 1)],
        special_tokens: roles(vocabulary, ['[CLS]', '[SEP]']),
      },
      model: {
        ...{ type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100 },
        vocab: Object.fromEntries(vocabulary.map((token, id) => [token, id])),
      },
    };
    const made = await madeOf({
      ...{ model: 'bert', pre: 'default', ...said },
      tokens: vocabulary.map((token) => (/^\[/.test(token) ? token : token.startsWith('##') ? token.slice(2) : `▁${token}`)),
      token_type: vocabulary.map((token) => (own.includes(token) ? 3 : 1)),
      ...(isOld ? {} : { bos_token_id: 2, seperator_token_id: 3, unknown_token_id: 1, padding_token_id: 0, mask_token_id: 4, add_sep_token: false }),
    });
    expectSame(made, original, ['The banks, the bank.', 'NAÏVE 水bank ## [MASK] thebank', '']);
  });

  it('reads Unigram as tokenizer.json does', async () => {
    const vocabulary = ['<s>', '<pad>', '</s>', '<unk>', '▁the', '▁', 't', 'he', 'bank', '▁b', 'ank', 's', '<mask>'];
    const scores = [0, 0, 0, 0, -2, -3.5, -4, -4.5, -8, -3, -3.25, -2.5, 0];
    const words = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true };
    const added = addedOf(vocabulary, '<mask>').filter((_, id) => vocabulary[id]?.startsWith('<'));
    const originalOf = (first: object[], pair: object[], names: string[]): object => ({
      ...{ version: '1.0', added_tokens: added },
      normalizer: { type: 'Sequence', normalizers: [{ type: 'Precompiled', precompiled_charsmap: 'AID/' }, { ...spacesOnce }] },
      ...{ pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, words] }, decoder: words },
      post_processor: {
        ...{ type: 'TemplateProcessing', single: [...first, sequence('A'), special('</s>')] },
        ...{ pair: [...first, sequence('A'), special('</s>'), ...pair, sequence('B'), special('</s>')] },
        special_tokens: roles(vocabulary, names),
      },
      model: { type: 'Unigram', unk_id: 3, byte_fallback: false, vocab: vocabulary.map((token, id) => [token, scores[id]]) },
    });
    const spacesOnce = { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' };
    const own = {
      ...{ model: 't5', pre: 'default', tokens: vocabulary, scores, precompiled_charsmap: [0, 128, 255] },
      token_type: vocabulary.map((token) => (token === '<unk>' ? 2 : token.startsWith('<') ? 3 : 1)),
      ...{ eos_token_id: 2, unknown_token_id: 3, padding_token_id: 1, mask_token_id: 12 },
    };
    const some = ['the banks', '  the   bank ﬁ the <mask> the', ''];
    const roberta = await madeOf({ ...own, bos_token_id: 0, add_bos_token: true, add_eos_token: true });
    expect((roberta.json['normalizer'] as { normalizers: object[] }).normalizers[0]).toEqual({ type: 'Precompiled', precompiled_charsmap: 'AID/' });
    expect(roberta.json['added_tokens']).toEqual(added);
    expectSame(roberta, originalOf([special('<s>')], [special('</s>')], ['<s>', '</s>']), some);
    expectSame(await madeOf(own), originalOf([], [], ['</s>']), some);
  });

  it('keeps the elements of short arrays of numbers for the core', async () => {
    const { header } = await madeOf(bytes, { 'x.pattern': [1, 0], 'x.long': Array.from({ length: 1025 }, () => 1), 'x.names': ['a'] });
    const found = [...header.settings].filter(([name]) => name.startsWith('x.') || /types?\.\d/.test(name));
    expect(found).toEqual([
      ['x.pattern', null],
      ['x.pattern.0', 1],
      ['x.pattern.1', 0],
      ['x.long', null],
      ['x.names', null],
    ]);
  });

  it('has the tokens around texts that encoders have', async () => {
    const ends = { bos_token_id: 0, eos_token_id: 1 };
    const encode = async (change: object): Promise<number[]> => {
      const { json, config } = await madeOf({ ...bytes, ...ends, ...change });
      return new Tokenizer(json, config).encode('a', { text_pair: 'a' }).ids;
    };
    const a = (await encode({ pre: 'gpt-2' }))[0] as number;
    expect(await encode({ pre: 'gpt-2' })).toEqual([a, a]);
    expect(await encode({ pre: 'gpt-2', add_bos_token: true })).toEqual([0, a, 0, a]);
    expect(await encode({ pre: 'modern-bert' })).toEqual([0, a, 1, a, 1]);
    const named = { tokens: tokens.map((token, id) => (id === 1 ? '</s>' : token)) };
    expect(await encode({ ...named, pre: 'roberta-bpe' })).toEqual([0, a, 1, 1, a, 1]);
    const { json } = await madeOf({ ...bytes, ...ends, pre: 'phi-2', 'normalizer.nfc': true });
    expect(json['normalizer']).toEqual({ type: 'NFC' });
  });

  it('says which tokens have roles, and has the chat template', async () => {
    const { header, config, json } = await madeOf(
      { ...bytes, pre: 'llama-bpe', bos_token_id: 0, eos_token_id: 1 },
      { 'tokenizer.chat_template': '{{ x }}' },
    );
    expect(tokenizerConfigOf(header)).toEqual(config);
    expect(config).toMatchObject({ bos_token: tokens[0], eos_token: tokens[1], unk_token: undefined, chat_template: '{{ x }}' });
    expect(new Tokenizer(json, config).encode('a').ids[0]).toBe(0);
    expect((json['model'] as { ignore_merges: boolean }).ignore_merges).toBe(true);
  });

  it('is refused with what works if it is of another kind', async () => {
    const message = async (change: object): Promise<string> => {
      const made = madeOf({ ...bytes, ...change });
      return made.then(
        () => 'nothing',
        (error: Error) => error.message,
      );
    };
    expect(await message({ pre: 'unheard-of' })).toContain('got unheard-of; token ids work without a tokenizer');
    expect(await message({ pre: '__proto__' })).toContain('got __proto__');
    expect(await message({ model: 'rwkv' })).toContain('tokenizer.ggml.model of gpt2, llama, bert or t5');
    // A model opens without it.
    using model = await openModel(path, { weights: 'f32' });
    expect((await rejectionOf(model.complete('text'))).message).toContain('tokenizer.ggml.model of gpt2, llama, bert or t5');
    expect((await model.logits(ids)).shape.at(-1)).toBe(120);
  });
});
