// multihead/models against golden models of the transformers library, with files in every form that openModel() takes.

import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readSafetensors, type SafetensorsTensor, writeSafetensors } from 'multihead';
import { type ForwardOutput, type Model, type ModelFile, openModel, type TextTokenizer } from 'multihead/models';
import { describe, expect, it } from 'vitest';
import { StopTexts, TextStream } from '../src/models/tokenizer.ts';
import { builds, rejectionOf } from './builds.ts';
import { folderWithTokenizer } from './tokenizer_files.ts';

const folder = fileURLToPath(new URL('../../tests/conformance/models', import.meta.url));
const names = readdirSync(folder, { withFileTypes: true })
  .filter((entry) => entry.isDirectory())
  .map(({ name }) => name)
  // Cases with a decoder's input or with options are those of conformance_models.mjs, and of encoder_decoder.test.ts.
  .filter((name) => !/"decoder_input_ids"|"options"/.test(readFileSync(join(folder, name, 'cases.json'), 'utf8')));

interface Case {
  readonly name: string;
  readonly op: 'forward' | 'generate' | 'similarity';
  readonly inputs: Readonly<Record<string, string>>;
  readonly outputs: Readonly<Record<string, string>>;
  readonly tolerance?: Readonly<Record<string, number>>;
  readonly max_new_tokens?: number;
}

interface Golden {
  readonly cases: readonly Case[];
  readonly tensors: Readonly<Record<string, SafetensorsTensor>>;
}

function readGolden(name: string): Golden {
  const { cases } = JSON.parse(readFileSync(join(folder, name, 'cases.json'), 'utf8')) as { cases: Case[] };
  const { tensors } = readSafetensors(readFileSync(join(folder, name, 'expected.safetensors')));
  return { cases, tensors };
}

/** The files of a folder as a page has them; config_v4.json in place of config.json. */
function filesOf(name: string, change: (file: string, bytes: Buffer) => Buffer | undefined = (_, bytes) => bytes): ModelFile[] {
  return readdirSync(join(folder, name), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== 'config.json')
    .flatMap((entry) => {
      const bytes = change(entry.name, readFileSync(join(entry.parentPath ?? entry.path, entry.name)));
      return bytes === undefined ? [] : [new File([new Uint8Array(bytes)], entry.name.replace('config_v4', 'config'))];
    });
}

function expectClose(got: Float32Array, want: ArrayLike<number>, tolerance: number, what: string): void {
  let worst = 0;
  let at = 0;
  expect(got.length, what).toBe(want.length);
  for (let i = 0; i < got.length; i += 1) {
    const error = Math.abs((got[i] as number) - (want[i] as number));
    if (!(error <= worst)) [worst, at] = [error, i];
  }
  expect(worst, `${what}[${at}]`).toBeLessThanOrEqual(tolerance);
}

const part = (tensor: SafetensorsTensor, row: number, count: number): Float32Array => {
  const size = tensor.data.length / (tensor.shape[0] as number);
  return (tensor.data as Float32Array).subarray(row * size, row * size + count);
};

/** Runs a forward case, a sequence of its batch at a time. */
async function checkForward(model: Model, golden: Golden, entry: Case): Promise<void> {
  const input = (name: string) => golden.tensors[entry.inputs[name] ?? ''];
  const [ids, mask, types, pixels] = ['input_ids', 'attention_mask', 'token_type_ids', 'pixel_values'].map(input);
  const batch = ((ids ?? pixels) as SafetensorsTensor).shape[0] as number;
  const wanted = Object.keys(entry.outputs);
  const { embedDim, numHeads, output } = model.info;
  for (let row = 0; row < batch; row += 1) {
    const all = ids && [...(ids.data as Int32Array).subarray(row * (ids.shape[1] as number), (row + 1) * (ids.shape[1] as number))];
    const real = all?.filter((_, at) => mask === undefined || mask.data[row * all.length + at] !== 0) ?? [];
    const padded = all !== undefined && real.length < all.length;
    const returned: ForwardOutput[] = ['hiddenStates', 'lastHiddenState'];
    if (output !== 'none') returned.push('logits');
    if (model.info.hasPooler) returned.push('poolerOutput');
    const input = {
      ...(types && { tokenTypes: (types.data as Int32Array).subarray(row * (all?.length ?? 0), row * (all?.length ?? 0) + real.length) }),
      ...(pixels && { pixels: part(pixels, row, pixels.data.length / batch) }),
    };
    const result = await model.forward(real, { return: returned, ...input });
    const close = (got: Float32Array, name: string): void => {
      const tensor = golden.tensors[entry.outputs[name] as string] as SafetensorsTensor;
      const want = part(tensor, row, padded ? got.length : tensor.data.length / batch);
      expectClose(got, want, entry.tolerance?.[name] ?? 1e-5, `${entry.name} ${name}`);
    };
    const tokens = result.lastHiddenState.shape[0] as number;
    for (const name of wanted) {
      if (name.startsWith('hidden_states.')) {
        const at = Number(name.slice('hidden_states.'.length)) * tokens * embedDim;
        close(result.hiddenStates.data.subarray(at, at + tokens * embedDim), name);
      } else if (name === 'last_hidden_state') {
        // The golden one of a class with a head is the last of its hidden states, which in ViT is before the final norm.
        const states = result.hiddenStates.data;
        close(pixels && output !== 'none' ? states.subarray(states.length - tokens * embedDim) : result.lastHiddenState.data, name);
      } else if (name === 'pooler_output') close(result.poolerOutput.data, name);
      else if (name === 'logits') {
        const want = golden.tensors[entry.outputs[name] as string] as SafetensorsTensor;
        const isLast = output === 'languageModel' && want.shape[1] === 1;
        close(isLast ? (await model.logits(real)).data : result.logits.data, name);
      } else if (name.startsWith('attentions.') && !padded) {
        const layer = Number(name.slice('attentions.'.length));
        const tensor = golden.tensors[entry.outputs[name] as string] as SafetensorsTensor;
        for (let head = 0; head < numHeads; head += 1) {
          const map = await model.attentions(real, { layer, head, ...input });
          const want = part(tensor, row, numHeads * tokens * tokens).subarray(head * tokens * tokens, (head + 1) * tokens * tokens);
          expectClose(map.data, want, entry.tolerance?.[name] ?? 1e-5, `${entry.name} ${name} head ${head}`);
        }
      } else if (name === 'embeds') {
        const [vector] = pixels ? await model.embedImages([input.pixels as Float32Array]) : await model.embed([real]);
        close(vector as Float32Array, name);
      } else if (name === 'mean_pooled' || name === 'cls_pooled') {
        const [vector] = await model.embed([real], { pooling: name === 'mean_pooled' ? 'mean' : 'firstToken' });
        if (types === undefined || !(types.data as Int32Array).includes(1)) close(vector as Float32Array, name);
      }
    }
  }
}

/** Checks the vectors of texts and images, and their similarities. */
async function checkSimilarity(model: Model, golden: Golden, entry: Case): Promise<void> {
  const rowsOf = <T>(name: string): T[] => {
    const { data, shape } = golden.tensors[entry.inputs[name] as string] as SafetensorsTensor;
    const size = data.length / (shape[0] as number);
    return Array.from({ length: shape[0] as number }, (_, row) => (data as Float32Array).slice(row * size, (row + 1) * size) as T);
  };
  const [texts, images] = [rowsOf<Int32Array>('input_ids'), rowsOf<Float32Array>('pixel_values')];
  const close = (got: Float32Array, name: string): void => {
    expectClose(got, golden.tensors[entry.outputs[name] as string]?.data as Float32Array, 1e-5, name);
  };
  close(Float32Array.from((await model.embed(texts)).flatMap((vector) => [...vector])), 'text_embeds');
  close(Float32Array.from((await model.embedImages(images)).flatMap((vector) => [...vector])), 'image_embeds');
  const { shape, data } = await model.similarity(texts, images);
  expect(shape).toEqual([images.length, texts.length]);
  close(data, 'logits_per_image');
}

const checks = { forward: checkForward, generate: checkGenerate, similarity: checkSimilarity };

async function checkGenerate(model: Model, golden: Golden, entry: Case): Promise<void> {
  const prompt = golden.tensors[entry.inputs['input_ids'] as string]?.data as Int32Array;
  const want = golden.tensors[entry.outputs['generated_ids'] as string]?.data as Int32Array;
  const got: number[] = [];
  for await (const { token } of model.generate(prompt, { maxNewTokens: entry.max_new_tokens ?? want.length })) got.push(token);
  expect(got).toEqual([...want].slice(0, got.length));
  expect(got.length === want.length || model.info.endIds.includes(got.at(-1) as number)).toBe(true);
}

describe.each(builds)('openModel, %s', (simd) => {
  it.each(names)('%s gives what transformers computes', async (name) => {
    const golden = readGolden(name);
    for (const source of [join(folder, name), filesOf(name)]) {
      using model = await openModel(source, { simd });
      for (const entry of golden.cases) {
        await checks[entry.op](model, golden, entry);
      }
    }
  });

  it('embeds a padded batch as each text alone', async () => {
    using model = await openModel(join(folder, 'bert'), { simd });
    const inputs = [[5, 6, 7, 8, 9], [10, 11], [12]];
    const together = await model.embed(inputs);
    for (const [at, input] of inputs.entries()) {
      const [alone] = await model.embed([input]);
      expectClose(together[at] as Float32Array, alone as Float32Array, 2e-6, `input ${at}`);
      expect(Math.hypot(...(alone as Float32Array))).toBeCloseTo(1, 5);
    }
    expect(await model.embed([])).toEqual([]);
  });

  it('keeps weights in every type, closer to the stored ones the more bits it has', async () => {
    const ids = [3, 14, 15, 92, 65];
    using exact = await openModel(join(folder, 'gpt2'), { simd });
    const { data: want } = await exact.logits(ids);
    let before = 0;
    let bytes = exact.info.weightBytes + 1;
    for (const weights of ['f32', 'f16', 'int8', 'int4'] as const) {
      using model = await openModel(join(folder, 'gpt2'), { simd, weights });
      const { data } = await model.logits(ids);
      const error = Math.max(...data.map((value, at) => Math.abs(value - (want[at] as number))));
      expect(error).toBeGreaterThanOrEqual(before);
      expect(model.info.weightBytes).toBeLessThan(bytes);
      before = error;
      bytes = model.info.weightBytes;
    }
    expect(before).toBeLessThan(1);
  });

  it('samples the same tokens from the same seed, and ends at stops', async () => {
    using model = await openModel(join(folder, 'llama3'), { simd });
    const tokens = async (options: Parameters<Model['generate']>[1]): Promise<number[]> => {
      const found: number[] = [];
      for await (const { token } of model.generate([1, 2, 3], { maxNewTokens: 12, ...options })) found.push(token);
      return found;
    };
    const greedy = await tokens({});
    expect(await tokens({})).toEqual(greedy);
    const options = { temperature: 1.5, topK: 50, topP: 0.95, repetitionPenalty: 1.1 };
    const drawn = await tokens({ ...options, seed: 7 });
    expect(await tokens({ ...options, seed: 7 })).toEqual(drawn);
    expect(await tokens({ ...options, seed: 8 })).not.toEqual(drawn);
    expect(await tokens({ stop: [greedy[2] as number] })).toEqual(greedy.slice(0, greedy.indexOf(greedy[2] as number) + 1));
    expect(await tokens({ maxNewTokens: 0 })).toEqual([]);
  });

  it('says why a generation ended, and checks options when it is called', async () => {
    using model = await openModel(join(folder, 'llama3'), { simd });
    const { ids, ...whole } = await model.complete([1, 2, 3], { maxNewTokens: 12 });
    expect(whole).toEqual({ text: '', accepted: 0, finishReason: 'length' });
    expect(ids).toHaveLength(12);
    const stop = [ids[2] as number];
    const stopped = await model.complete([1, 2, 3], { stop });
    expect(stopped).toEqual({ text: '', ids: ids.slice(0, ids.indexOf(stop[0] as number) + 1), accepted: 0, finishReason: 'stop' });
    expect(await model.complete([1, 2, 3], { maxNewTokens: 0 })).toEqual({ text: '', ids: [], accepted: 0, finishReason: 'length' });
    const reasons: unknown[] = [];
    for await (const step of model.generate([1, 2, 3], { maxNewTokens: 3 })) reasons.push(step.finishReason);
    expect(reasons).toEqual([undefined, undefined, 'length']);
    expect(() => model.generate([1], { topP: 2 })).toThrow('topP: expected more than 0');
    expect(() => model.generate([])).toThrow('prompt: expected one token or more');
    expect(() => model.generate([1], { likeliest: 2 } as never)).toThrow('topTokens');
    expect(() => model.generate({} as never)).toThrow('prompt: expected a text, messages, an Int32Array or an array of token ids, got a Object');
  });

  it('gives the logits or the last hidden state by default', async () => {
    using language = await openModel(join(folder, 'llama3'), { simd });
    expect(await language.forward([1, 2])).toEqual(await language.forward([1, 2], { return: ['logits'] }));
    using states = await openModel(join(folder, 'bert'), { simd });
    const name = states.info.output === 'none' ? 'lastHiddenState' : 'logits';
    expect(Object.keys(await states.forward([1, 2], { headScales: undefined }))).toEqual([name]);
  });

  it('gives the maps of all layers and heads in one pass, with the bits of single ones', async () => {
    const ids = [3, 14, 15, 92, 65];
    using model = await openModel(join(folder, 'qwen3'), { simd });
    const { numLayers, numHeads } = model.info;
    const all = await model.attentions(ids);
    expect(all.shape).toEqual([numLayers, numHeads, 5, 5]);
    const [headsOfOne, oneHead] = [await model.attentions(ids, { layer: 1 }), await model.attentions(ids, { head: 1 })];
    expect([headsOfOne.shape, oneHead.shape]).toEqual([
      [numHeads, 5, 5],
      [numLayers, 5, 5],
    ]);
    for (let layer = 0; layer < numLayers; layer += 1) {
      for (let head = 0; head < numHeads; head += 1) {
        const { data, shape } = await model.attentions(ids, { layer, head });
        const at = (index: number) => [25 * index, 25 * (index + 1)] as const;
        expect(shape).toEqual([5, 5]);
        expect(all.data.slice(...at(layer * numHeads + head))).toEqual(data);
        if (layer === 1) expect(headsOfOne.data.slice(...at(head))).toEqual(data);
        if (head === 1) expect(oneHead.data.slice(...at(layer))).toEqual(data);
      }
    }
  });

  it('says which tokens were likely at each step', async () => {
    const prompt = [5, 6, 7];
    using model = await openModel(join(folder, 'gpt2'), { simd });
    const ids = [...prompt];
    for await (const { token, topTokens } of model.generate(prompt, { maxNewTokens: 4, topTokens: 5 })) {
      const { data } = await model.logits(ids);
      const sum = data.reduce((total, value) => total + Math.exp(value), 0);
      const sorted = [...data.keys()].sort((a, b) => (data[b] as number) - (data[a] as number) || a - b);
      expect(topTokens.map((each) => each.token)).toEqual(sorted.slice(0, 5));
      for (const each of topTokens) expect(each.probability).toBeCloseTo(Math.exp(data[each.token] as number) / sum, 5);
      expect(token).toBe(sorted[0]);
      ids.push(token);
    }
    expect(ids.length).toBe(7);
    for await (const { topTokens } of model.generate(prompt, { maxNewTokens: 1 })) expect(topTokens).toEqual([]);
    const every = await model.generate(prompt, { topTokens: 100 }).next();
    expect(every.value?.topTokens.length).toBe(100);
    expect((await rejectionOf(model.complete(prompt, { topTokens: 101 }))).argument).toBe('topTokens');
  });

  it('gives as many tokens as the library at the end of the context, and as many as possible', async () => {
    using model = await openModel(join(folder, 'gpt2'), { simd });
    const { maxTokens } = model.info;
    const count = async (given: number, maxNewTokens: number): Promise<number> => {
      let tokens = 0;
      for await (const _ of model.generate(new Int32Array(given).fill(3), { maxNewTokens, stop: [] })) tokens += 1;
      return tokens;
    };
    expect(await count(maxTokens - 1, 10)).toBe(2);
    expect(await count(maxTokens, 10)).toBe(1);
    expect(await count(maxTokens, 0)).toBe(0);
    for (const most of [2 ** 31 - 10, 2 ** 31, 2 ** 53, Infinity]) expect(await count(maxTokens - 2, most)).toBe(3);
    using endless = await openModel(join(folder, 'llama3'), { simd });
    for (const maxNewTokens of [1e9, 2 ** 31 - 10, 2 ** 53, Infinity]) {
      for await (const { token } of endless.generate([1], { maxNewTokens })) {
        expect(token).toBeGreaterThanOrEqual(0);
        break;
      }
    }
    expect((await endless.logits([1])).shape).toEqual([endless.info.vocabSize]);
    expect((await rejectionOf(endless.complete([1], { maxNewTokens: 1.5 }))).argument).toBe('maxNewTokens');
  });

  it('scales heads while it generates', async () => {
    using model = await openModel(join(folder, 'gpt2'), { simd });
    const { numLayers, numHeads } = model.info;
    const headScales = new Float32Array(numLayers * numHeads).fill(1);
    headScales[1] = 0;
    headScales[3] = -2;
    const ids = [1, 2, 3, 4];
    for await (const { token } of model.generate(ids.slice(), { maxNewTokens: 5, headScales })) {
      const { data } = await model.logits(ids, { headScales });
      expect(token).toBe(data.indexOf(Math.max(...data)));
      ids.push(token);
    }
    expect(ids.length).toBe(9);
    expect(await rejectionOf(model.complete(ids, { headScales: new Float32Array(1) }))).toMatchObject({ code: 'E_SHAPE', argument: 'headScales' });
    for (const call of [model.run(ids, { headScales: headScales.fill(NaN) }), model.prefix(ids, { headScales }), model.lens(ids, { headScales })])
      expect(await rejectionOf(call)).toMatchObject({ code: 'E_OPTION', argument: 'headScales', got: 'NaN' });
  });

  it('refuses logits and vectors that are not finite, and names the first layer', async () => {
    const broken = (name: string, part: string): ModelFile[] =>
      filesOf(name, (file, bytes) => {
        if (file !== 'model.safetensors') return bytes;
        const length = Number(bytes.readBigUInt64LE(0));
        const header = JSON.parse(bytes.toString('utf8', 8, 8 + length)) as Record<string, { data_offsets: [number, number] }>;
        const [tensor] = Object.keys(header).filter((each) => each.includes(part));
        return bytes.fill(
          255,
          8 + length + (header[tensor as string]?.data_offsets[1] as number) - 4,
          8 + length + (header[tensor as string]?.data_offsets[1] as number),
        );
      });
    const message = 'expected finite numbers, got NaN or an infinity, first in the output of';
    for (const workers of [undefined, 2]) {
      using model = await openModel(broken('mistral', 'layers.1.post_attention_layernorm'), { simd, workers });
      const failures = [model.logits([5, 6]), model.generate([5, 6]).next(), model.generate([5, 6], { temperature: 1 }).next()];
      for (const each of failures) {
        expect(await rejectionOf(each)).toMatchObject({ code: 'E_OPTION', argument: 'logits', message: `logits: ${message} layer 1` });
      }
      expect((await model.forward([5], { return: ['hiddenStates'] })).hiddenStates.data.includes(NaN)).toBe(true);
      using bert = await openModel(broken('bert', 'layer.0.output.dense.bias'), { simd, workers });
      expect((await rejectionOf(bert.embed([[5, 6], [7]]))).message).toBe(`embedding: ${message} layer 0`);
    }
  });

  it('mutes heads', async () => {
    using model = await openModel(join(folder, 'gpt2'), { simd });
    const { numLayers, numHeads } = model.info;
    const headScales = new Float32Array(numLayers * numHeads).fill(1);
    const ids = [1, 2, 3, 4];
    const { data } = await model.logits(ids);
    expect((await model.logits(ids, { headScales })).data).toEqual(data);
    headScales[1] = 0;
    expect((await model.logits(ids, { headScales })).data).not.toEqual(data);
  });
});

describe('openModel', () => {
  const refused = async (source: Parameters<typeof openModel>[0], code: string, argument: string, options = {}) => {
    const error = await rejectionOf(openModel(source, options));
    expect([error.code, error.argument], error.message).toEqual([code, argument]);
    return error;
  };
  const config = (change: (config: Record<string, unknown>) => void) => (file: string, bytes: Buffer) => {
    if (file !== 'config_v4.json') return bytes;
    const json = JSON.parse(bytes.toString()) as Record<string, unknown>;
    change(json);
    return Buffer.from(JSON.stringify(json));
  };

  it('refuses folders that lack a file, are truncated, or are no models', async () => {
    await refused(join(folder, 'none'), 'E_FORMAT', 'config.json');
    await refused(
      filesOf('gpt2', (file, bytes) => (file.endsWith('.safetensors') ? undefined : bytes)),
      'E_FORMAT',
      'model.safetensors',
    );
    await refused(
      filesOf('gpt2', (file, bytes) => (file === 'config_v4.json' ? Buffer.from('{') : bytes)),
      'E_FORMAT',
      'config.json',
    );
    const half = (file: string, bytes: Buffer) => (file === 'model.safetensors' ? bytes.subarray(0, bytes.length / 2) : bytes);
    expect((await rejectionOf(openModel(filesOf('gpt2', half)))).code).toBe('E_FORMAT');
    const cut = (file: string, bytes: Buffer) => (file.endsWith('.safetensors') ? bytes.subarray(0, 100) : bytes);
    await refused(filesOf('gpt2', cut), 'E_FORMAT', 'model.safetensors: safetensors header');
    await refused(
      filesOf(
        'gpt2',
        config((json) => (json['model_type'] = 'mamba')),
      ),
      'E_OPTION',
      'config.json: model_type',
    );
    const unreadable = mkdtempSync(join(tmpdir(), 'multihead-model-'));
    cpSync(join(folder, 'gpt2', 'config.json'), join(unreadable, 'config.json'));
    mkdirSync(join(unreadable, 'model.safetensors'));
    await refused(unreadable, 'E_LOAD', 'model.safetensors');
    rmSync(unreadable, { recursive: true });
    const wider = await rejectionOf(
      openModel(
        filesOf(
          'gpt2',
          config((json) => (json['n_embd'] = 96)),
        ),
      ),
    );
    expect(wider.code).toBe('E_FORMAT');
  });

  it('names the setting of config.json that makes no sense, and other models live on', async () => {
    using other = await openModel(join(folder, 'gpt2'));
    const { data } = await other.logits([1, 2, 3]);
    for (const [name, setting, value] of [
      ['bert', 'num_attention_heads', null],
      ['bert', 'num_attention_heads', 0],
      ['bert', 'hidden_size', 2 ** 31 - 2],
      ['llama3', 'head_dim', 2 ** 31 - 2],
      ['gpt2', 'n_layer', null],
      ['gpt2', 'n_head', 1e300],
      ['roberta', 'pad_token_id', 47],
      ['t5', 'relative_attention_max_distance', 2],
      ['vit', 'patch_size', null],
      ['vit', 'num_channels', 1659435599],
      ['llama3', 'rms_norm_eps', null],
      ['mistral', 'rope_scaling', 'linear'],
    ] as const) {
      await refused(
        filesOf(
          name,
          config((json) => (json[setting] = value)),
        ),
        'E_OPTION',
        `config.json: ${setting}`,
      );
    }
    const noType = config((json) => (json['rope_scaling'] = { factor: 4 }));
    await refused(filesOf('mistral', noType), 'E_OPTION', 'config.json: rope_scaling.rope_type');
    for (const [name, setting, value] of [
      ['llama3', 'pad_token_id', -1],
      ['llama3', 'eos_token_id', -1],
      ['bert', 'eos_token_id', '</s>'],
    ] as const) {
      (
        await openModel(
          filesOf(
            name,
            config((json) => (json[setting] = value)),
          ),
        )
      ).dispose();
    }
    expect((await other.logits([1, 2, 3])).data).toEqual(data);
  });

  it('takes images that are no multiple of a patch', async () => {
    using model = await openModel(
      filesOf(
        'vit',
        config((json) => (json['image_size'] = 13)),
      ),
    );
    const { maxTokens, channels, embedDim } = model.info;
    const pixels = new Float32Array(channels * 13 * 13).fill(0.5);
    const { lastHiddenState } = await model.forward([], { return: ['lastHiddenState'], pixels });
    expect(lastHiddenState.shape).toEqual([maxTokens, embedDim]);
    expect((await model.attentions([], { layer: 0, head: 0, pixels })).shape).toEqual([maxTokens, maxTokens]);
  });

  it('gives the start and the end of an answer', async () => {
    const [weight, bias] = [Float32Array.from({ length: 32 }, (_, i) => Math.sin(i)), Float32Array.of(0.5, -0.25)];
    const files = filesOf('bert', (file, bytes) => {
      if (file !== 'model.safetensors') return config((json) => (json['architectures'] = ['BertForQuestionAnswering']))(file, bytes);
      const { tensors } = readSafetensors(bytes);
      const head = { 'qa_outputs.weight': { data: weight, shape: [2, 16] }, 'qa_outputs.bias': { data: bias, shape: [2] } };
      return Buffer.from(writeSafetensors({ ...tensors, ...head }));
    });
    using model = await openModel(files);
    expect([model.info.output, model.labels]).toEqual(['questionAnswering', ['start', 'end']]);
    const { logits, lastHiddenState } = await model.forward([5, 6, 7], { return: ['logits', 'lastHiddenState'] });
    expect(logits.shape).toEqual([3, 2]);
    const want = [...logits.data.keys()].map((at) => {
      const row = lastHiddenState.data.subarray((at >> 1) * 16, ((at >> 1) + 1) * 16);
      return row.reduce((sum, x, c) => sum + x * (weight[(at & 1) * 16 + c] as number), bias[at & 1] as number);
    });
    expectClose(logits.data, want, 1e-5, 'logits');
  });

  it.each([0, 1])('copies arrays before a call gives the thread back, with %i workers', async (workers) => {
    using model = await openModel(join(folder, 'bert'), workers === 0 ? {} : { workers });
    const { numLayers, numHeads, tokenTypes } = model.info;
    const input = Int32Array.of(1, 2, 3);
    const scales = new Float32Array(numLayers * numHeads);
    const types = new Int32Array(3);
    const passes = [0, 1, 2].map((i) => () => {
      input[0] = i;
      scales.fill(1)[i] = 0;
      types.fill(0)[i] = tokenTypes - 1;
      return model.forward(input, { return: ['lastHiddenState'], headScales: scales, tokenTypes: types });
    });
    const together = await Promise.all(passes.map((pass) => pass()));
    for (const [i, pass] of passes.entries()) expect(together[i]).toEqual(await pass());
  });

  it("checks what a caller's tokenizer returns", async () => {
    const decode = () => 'a';
    for (const [tokenizer, got] of [
      [{ encode: () => 5, decode }, '5'],
      [{ encode: async () => ({ ids: [1] }), decode }, 'a Promise'],
      [{ encode: () => ({ ids: ['a'] }), decode }, '"a" at [0]'],
      [{ encode: () => ({ ids: [1] }), decode: () => 5 }, '5'],
    ] as [never, string][]) {
      using model = await openModel(join(folder, 'gpt2'), { tokenizer });
      expect(await rejectionOf(model.complete('a'))).toMatchObject({ code: 'E_OPTION', argument: 'tokenizer', got });
    }
  });

  it('gives a pair no types of tokens if the model has one type, as RoBERTa', async () => {
    const tokenizer = { encode: () => ({ ids: [5, 6, 7], tokens: [], token_type_ids: [0, 0, 1] }), decode: () => '' };
    using model = await openModel(join(folder, 'roberta'), { tokenizer });
    expect(model.info.tokenTypes).toBe(1);
    expect(await model.logits('a', { pair: 'b' })).toEqual(await model.logits([5, 6, 7]));
  });

  it('refuses other values, and names them', async () => {
    await refused(3 as never, 'E_OPTION', 'source');
    await refused([3] as never, 'E_OPTION', 'source');
    await refused(join(folder, 'gpt2'), 'E_OPTION', 'weights', { weights: 'int2' });
    await refused(join(folder, 'gpt2'), 'E_OPTION', 'onProgress', { onProgress: 1 });
    await refused(join(folder, 'gpt2'), 'E_OPTION', 'tokenizer', { tokenizer: {} });
    await refused(join(folder, 'gpt2'), 'E_OPTION', 'wieghts', { wieghts: 'f16' });
    using model = await openModel(join(folder, 'gpt2'));
    const ids = await rejectionOf(model.logits([0, model.info.vocabSize]));
    expect(ids.code).toBe('E_OPTION');
    expect((await rejectionOf(model.logits([1.5]))).argument).toBe('input');
    const moved = Int32Array.of(1, 2);
    structuredClone(moved, { transfer: [moved.buffer] });
    expect(await rejectionOf(model.logits(moved))).toMatchObject({ argument: 'input', got: '0 tokens' });
    expect((await rejectionOf(model.logits([]))).message).toBe(`input: expected 1 to ${model.info.maxTokens} tokens, got 0 tokens`);
    expect((await rejectionOf(model.embed([[1], []]))).argument).toBe('inputs[1]');
    expect((await rejectionOf(model.logits('a text', {}))).message).toMatch('tokenizer.json');
    for (const place of [{ layer: 99, head: 0 }, { layer: 99 }, { head: 99 }, { layer: -1 }]) {
      expect((await rejectionOf(model.attentions([1], place))).code).toBe('E_OPTION');
    }
    const pixels = new Float32Array(3);
    expect((await rejectionOf(model.attentions([1], { layer: 0, head: 0, pixels }))).argument).toBe('pixels');
    expect((await rejectionOf(model.logits([1], { pixels }))).expected).toBe('none for a model of token ids');
    const { vocabSize } = model.info;
    for (const [wrong, argument, got] of [
      [model.logits([1], { tokenTypes: [0] }), 'tokenTypes', 'an array of 1'],
      [model.logits([[5]] as never), 'input', 'an array of 1 at [0]'],
      [model.logits([3, vocabSize]), 'input', `${vocabSize} at [1]`],
      [model.embed([[5], [vocabSize]]), 'inputs[1]', `${vocabSize} at [0]`],
      [model.logits([1], { headScales: new Float32Array(3) }), 'headScales', '3'],
      [model.forward([1], { return: ['poolerOutput'] }), 'poolerOutput', 'gpt2 without'],
      [model.complete([vocabSize]), 'prompt', `${vocabSize} at [0]`],
      [model.complete([1], { topP: 2 }), 'topP', '2'],
      [model.complete([1], { topP: 1e-60 }), 'topP', '1e-60'],
      [model.complete([1], { repetitionPenalty: 0 }), 'repetitionPenalty', '0'],
      [model.complete([1], { temperature: Infinity }), 'temperature', 'Infinity'],
    ] as [Promise<unknown>, string, string][]) {
      expect(await rejectionOf(wrong)).toMatchObject({ argument, got });
    }
    using bert = await openModel(join(folder, 'bert'));
    const types = bert.info.tokenTypes;
    expect(await rejectionOf(bert.logits([1, 2], { tokenTypes: [0, types] }))).toMatchObject({ argument: 'tokenTypes', got: `${types} at [1]` });
    expect(await rejectionOf(bert.logits([1, 2], { tokenTypes: [0] }))).toMatchObject({ code: 'E_SHAPE', argument: 'tokenTypes', got: '1' });
    const long = Array.from({ length: model.info.maxTokens + 1 }, () => 0);
    expect((await rejectionOf(model.complete(long))).argument).toBe('prompt');
    expect((await rejectionOf(model.complete([1], { seed: -1 }))).argument).toBe('seed');
    expect((await model.logits([0])).data.length).toBe(model.info.vocabSize);
    model.dispose();
    expect((await rejectionOf(model.logits([0]))).code).toBe('E_DISPOSED');
  });

  it('reports progress, and ends when it is aborted', async () => {
    const seen: number[] = [];
    let total = 0;
    using model = await openModel(join(folder, 'gpt2'), {
      onProgress(loaded, all) {
        seen.push(loaded);
        total = all;
      },
    });
    expect(seen[0]).toBe(0);
    expect(seen.at(-1)).toBe(total);
    expect(model.disposed).toBe(false);
    const aborter = new AbortController();
    const onProgress = (): void => aborter.abort();
    await refused(join(folder, 'gpt2'), 'E_ABORTED', 'signal', { signal: aborter.signal, onProgress });
    const later = new AbortController();
    const steps = model.generate([1, 2], { signal: later.signal });
    await steps.next();
    later.abort();
    expect((await rejectionOf(steps.next())).code).toBe('E_ABORTED');
  });

  it('reads responses from their begin to their end', async () => {
    const responses = filesOf('qwen3').map((file) => {
      const response = new Response(file.stream());
      Object.defineProperty(response, 'url', { value: `https://example.org/qwen3/${file.name}` });
      return response;
    });
    using model = await openModel(responses);
    using direct = await openModel(join(folder, 'qwen3'));
    expect((await model.logits([1, 2, 3])).data).toEqual((await direct.logits([1, 2, 3])).data);
  });
});

describe('text', () => {
  const tokenizer = {
    encode: (text: string) => ({ ids: [...Buffer.from(text)], tokens: [...text] }),
    // Throws for no ids, like the Tokenizer of @huggingface/tokenizers.
    decode(ids: number[]) {
      if (ids.length === 0) throw new Error('token_ids must be a non-empty array of integers.');
      return Buffer.from(ids.filter((id) => id < 256)).toString();
    },
  };

  it('comes with the tokens, a character when it is complete', () => {
    const stream = new TextStream(tokenizer);
    const pieces = [...Buffer.from('aé😀!')].map((id) => stream.add(id));
    expect(pieces).toEqual(['a', '', 'é', '', '', '', '😀', '!']);
    expect(stream.rest()).toBe('');
    expect([stream.add(0xf0), stream.add(0x9f), stream.rest()]).toEqual(['', '', '\ufffd']);
  });

  it('ends before a stop that comes in pieces', () => {
    const add = (stops: StopTexts, ...pieces: string[]) => pieces.map((piece) => stops.add(piece));
    const stops = new StopTexts(['</s>', '\n\n']);
    expect(add(stops, 'a<', '/', 's', '>b')).toEqual([
      { text: 'a', ends: false },
      { text: '', ends: false },
      { text: '', ends: false },
      { text: '', ends: true },
    ]);
    const others = new StopTexts(['</s>']);
    expect(add(others, 'a<', 'b')).toEqual([
      { text: 'a', ends: false },
      { text: '<b', ends: false },
    ]);
    expect(add(others, '<')[0]).toEqual({ text: '', ends: false });
    expect(others.rest()).toBe('<');
  });

  it('comes from the tokenizer of the folder, by @huggingface/tokenizers', async () => {
    const own = folderWithTokenizer('llama3', 100);
    using model = await openModel(own);
    expect(await model.encode('The cat sat.')).toEqual({ ids: [4, 5, 7, 11], tokens: ['the', 'cat', 'sat', '.'] });
    expect(await model.decode([4, 5, 3, 7])).toBe('the cat sat');
    expect(await model.decode([])).toBe('');
    const ids: number[] = [];
    let text = '';
    for await (const step of model.generate('the cat', { maxNewTokens: 12, temperature: 2, seed: 1 })) {
      ids.push(step.token);
      text += step.text;
    }
    expect(text).toBe(await model.decode(ids));
    // Token ids as a prompt give the same text.
    let ofIds = '';
    for await (const step of model.generate([4, 5], { maxNewTokens: 12, temperature: 2, seed: 1 })) ofIds += step.text;
    expect(ofIds).toBe(text);
    using without = await openModel(join(folder, 'llama3'));
    for await (const step of without.generate([4, 5], { maxNewTokens: 3 })) expect(step.text).toBe('');
    writeFileSync(join(own, 'tokenizer.json'), '{"model": {"type": "Nonsense"}}');
    using other = await openModel(own);
    expect(await rejectionOf(other.encode('the'))).toMatchObject({ code: 'E_FORMAT', argument: 'tokenizer.json' });
    rmSync(own, { recursive: true });
  });

  it('comes of messages by the chat template of the folder, by @huggingface/jinja', async () => {
    const own = folderWithTokenizer('llama3', 100);
    const change = (settings: object): void => writeFileSync(join(own, 'tokenizer_config.json'), JSON.stringify(settings));
    const messages = [
      { role: 'user', content: 'The cat' },
      { role: 'assistant', content: 'sat' },
    ];
    const spoken = "{{ bos_token }}{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}a{% endif %}";
    const idsOf = async (prompt = messages): Promise<readonly number[]> => {
      using model = await openModel(own);
      const { ids } = await model.encode(prompt);
      const options = { maxNewTokens: 3, temperature: 2, seed: 1 };
      expect(await model.complete(prompt, options)).toEqual(await model.complete(ids, options));
      return ids;
    };
    change({ chat_template: spoken, bos_token: '[BOS]' });
    expect(await idsOf()).toEqual([2, 4, 5, 7, 9]);
    change({
      chat_template: [
        { name: 'tools', template: 'on' },
        { name: 'default', template: spoken },
      ],
      bos_token: { content: '[EOS]' },
    });
    expect(await idsOf()).toEqual([3, 4, 5, 7, 9]);
    // A file of its own counts first; it may begin like an HTML page.
    writeFileSync(join(own, 'chat_template.jinja'), '<{{ messages[0].content }}');
    expect(await idsOf()).toEqual([0, 4, 5]);
    rmSync(join(own, 'chat_template.jinja'));

    using model = await openModel(own);
    const wrong = await rejectionOf(model.complete([messages[0], { role: 'user' }] as never));
    expect(wrong).toMatchObject({ code: 'E_OPTION', argument: 'prompt[1]', got: '{ role: "user", content: undefined }' });
    change({ chat_template: "{{ raise_exception('roles must alternate') }}" });
    expect((await rejectionOf(idsOf())).message).toMatch('messages need a chat template that takes them, got roles must alternate');
    change({});
    expect(await rejectionOf(idsOf())).toMatchObject({ code: 'E_OPTION', argument: 'prompt', got: 'neither' });
    rmSync(own, { recursive: true });
  });

  it('goes without special tokens where it is told so', async () => {
    const encode: TextTokenizer['encode'] = (_, { add_special_tokens: added = true } = {}) => ({ ids: added ? [1, 5, 2] : [5], tokens: [] });
    using model = await openModel(join(folder, 'llama3'), { tokenizer: { encode, decode: () => '' } });
    const none = { addSpecialTokens: false };
    expect((await model.encode('a')).ids).toEqual([1, 5, 2]);
    expect((await model.encode('a', none)).ids).toEqual([5]);
    expect(await model.logits('a', none)).toEqual(await model.logits([5]));
    expect(await model.logits('a', { addSpecialTokens: true })).toEqual(await model.logits([1, 5, 2]));
    const first = async (...args: Parameters<Model['generate']>) => (await model.generate(...args).next()).value;
    expect(await first('a', { ...none, topTokens: 2 })).toEqual(await first([5], { topTokens: 2 }));
    expect(await first('a', { topTokens: 2 })).toEqual(await first([1, 5, 2], { topTokens: 2 }));
    for (const wrong of [model.encode('a', { addSpecialTokens: 1 as never }), model.complete('a', { addSpecialTokens: 1 as never })]) {
      expect((await rejectionOf(wrong)).argument).toBe('addSpecialTokens');
    }
  });

  it('is taken by every verb', async () => {
    using model = await openModel(join(folder, 'llama3'), { tokenizer });
    expect(await model.encode('ab')).toEqual({ ids: [97, 98], tokens: ['a', 'b'] });
    expect(await model.decode([97, 98])).toBe('ab');
    expect((await model.logits('ab')).data).toEqual((await model.logits([97, 98])).data);
    let text = '';
    const ids: number[] = [];
    for await (const step of model.generate('ab', { maxNewTokens: 5 })) {
      text += step.text;
      ids.push(step.token);
    }
    expect(tokenizer.decode(ids).startsWith(text.replaceAll('\ufffd', ''))).toBe(true);
  });
});

// Trained weights are no part of the repository. This runs where its neighbor folder has them.
const real = fileURLToPath(new URL('../../../shared/models/real/stories260K', import.meta.url));
if (existsSync(real)) {
  describe.each(builds)('trained weights, %s', (simd) => {
    it('write the story that llama2.c writes with them, and lose nothing as int8', async () => {
      const story = readFileSync(join(real, 'greedy.txt'), 'utf8').trimEnd();
      const losses: number[] = [];
      for (const weights of ['f32', 'int8'] as const) {
        using model = await openModel(real, { simd, weights });
        const { values } = await model.logProbs(story);
        losses.push(-values.reduce((sum, value) => sum + value, 0) / values.length);
        if (weights === 'f32') expect((await model.complete('', { maxNewTokens: values.length, temperature: 0 })).text).toBe(story);
      }
      expect(Math.abs((losses[1] as number) - (losses[0] as number))).toBeLessThan(0.01);
    });
  });
}
