// The package's command as a program: its output, its files and its exit codes.

import { execFile, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { fileURLToPath } from 'node:url';
import { readSafetensors, writeSafetensors } from 'multihead';
import { openModel, openSparseAutoencoder, saveModel } from 'multihead/models';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import type { Bench } from '../src/command/session.ts';
import { main } from '../src/command/main.ts';
import type { Stream } from '../src/command/output.ts';
import { type Statistics, statisticsOf } from '../src/command/statistics.ts';
import { blocksOf } from './examples.ts';
import { folderWithTokenizer, goldens } from './tokenizer_files.ts';

const script = fileURLToPath(new URL('../dist/command.js', import.meta.url));
const gpt2 = join(goldens, 'gpt2');
const loadBench = (): Promise<Bench> => import('../dist/benchmarks.js' as string) as Promise<Bench>;

interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function command(...args: string[]): Promise<Ended> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [script, ...args], (_, stdout, stderr) => resolve({ code: child.exitCode, stdout, stderr }));
  });
}

async function succeeds(...args: string[]): Promise<Ended> {
  const ended = await command(...args);
  expect([ended.code, ended.stderr.replace(/^\d+ tokens, .*\n/, '')], args.join(' ')).toEqual([0, '']);
  return ended;
}

const json = async (...args: string[]): Promise<Record<string, unknown>> =>
  JSON.parse((await succeeds(...args, '--json')).stdout) as Record<string, unknown>;

/** Runs the command in this process: starting another takes half a second. */
const here = (...args: string[]): Promise<Ended> => hereWith([], ...args);

/** As here(), with what standard input gives. */
async function hereWith(input: readonly string[], ...args: string[]): Promise<Ended> {
  const texts = { stdout: '', stderr: '' };
  const stream = (name: keyof typeof texts): Stream => ({
    on() {},
    write(text, done) {
      texts[name] += text;
      done();
      return true;
    },
  });
  const process = { stdin: Readable.from(input), stdout: stream('stdout'), stderr: stream('stderr'), on() {}, off() {} };
  return { code: await main(args, { openModel, saveModel, openSparseAutoencoder, loadBench, version: '1.2.3', process }), ...texts };
}

/** Fails unless the command ends with a code, one line that matches, and no output. */
async function refused(args: string[], code: number, message: RegExp, run = here): Promise<void> {
  const { code: ended, stdout, stderr } = await run(...args);
  expect(stderr, args.join(' ')).toMatch(message);
  expect([ended, stdout, stderr.trimEnd().split('\n').length], `${args.join(' ')}\n${stderr}`).toEqual([code, '', 1]);
}

describe('multihead convert', () => {
  const root = mkdtempSync(join(tmpdir(), 'multihead-convert-'));
  afterAll(() => rmSync(root, { recursive: true }));

  it('writes a folder that opens with the same numbers', async () => {
    const out = join(root, 'new', 'int4');
    const { stdout } = await succeeds('convert', text, out, '--weights', 'int4');
    expect(stdout).toMatch(/model\.safetensors\n/);
    expect(stdout).toMatch(/int4: [\d.]+ kB of weights, [\d.]+ kB before\.\n$/);
    expect(readdirSync(out).sort()).toEqual(['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json']);
    expect(readdirSync(join(root, 'new'))).toEqual(['int4']);
    const { tensors } = readSafetensors(readFileSync(join(out, 'model.safetensors')));
    expect([tensors['model.embed_tokens.weight'], tensors['model.layers.0.mlp.up_proj.weight']]).toMatchObject([
      { dtype: 'i8', shape: [120, 34] },
      { dtype: 'i8', shape: [24, 18] },
    ]);
    using one = await openModel(out);
    using other = await openModel(text, { weights: 'int4', embeddingWeights: 'int8' });
    expect((await one.logits([5, 6, 7])).data).toEqual((await other.logits([5, 6, 7])).data);
    expect((await one.encode('the cat')).ids).toEqual([4, 5]);
    const { files, embedding_weights: embedding } = await json('convert', gpt2, join(root, 'f16'), '--weights', 'f16');
    expect(embedding).toBe('f16');
    expect(files).toContainEqual({ name: 'config.json', bytes: statSync(join(root, 'f16', 'config.json')).size });
    await succeeds('convert', join(goldens, 'vit'), join(root, 'vit'));
  });

  it('refuses what it cannot do, and writes nothing', async () => {
    await refused(['convert'], 2, /^FOLDER: expected a folder with config\.json/);
    await refused(['convert', gpt2], 2, /^OUT: expected the name of a new folder, got none/);
    await refused(['convert', gpt2, 'a', 'b'], 2, /^OUT: expected one new folder, got "b"/);
    await refused(['convert', gpt2, gpt2], 2, /^OUT: expected the name of a new folder, or an empty one, got .*gpt2 with /);
    await refused(['convert', gpt2, join(gpt2, 'config.json')], 2, /ENOTDIR/);
    await refused(['convert', gpt2, join(root, 'x'), '--weights', 'int2'], 2, /^--weights: expected one of int8, int4/);
    await refused(['convert', root, join(root, 'x')], 2, /config\.json/);
    await refused(['convert', gpt2, join(gpt2, 'config.json', 'x')], 2, /ENOTDIR/);
    expect(existsSync(join(root, 'x'))).toBe(false);
  });
});

let text: string;
let long: string;
beforeAll(() => {
  text = folderWithTokenizer('llama3', JSON.parse(readFileSync(join(goldens, 'llama3', 'config.json'), 'utf8')).vocab_size as number);
  // Positions by RoPE need no table, so more of them need no other weights.
  long = folderWithTokenizer('llama3', 5);
  const config = JSON.parse(readFileSync(join(long, 'config.json'), 'utf8')) as Record<string, unknown>;
  writeFileSync(join(long, 'config.json'), JSON.stringify({ ...config, max_position_embeddings: 100_000, eos_token_id: null }));
  rmSync(join(long, 'generation_config.json'), { force: true });
});
afterAll(() => {
  for (const folder of [text, long]) rmSync(folder, { recursive: true });
});

describe('multihead run', () => {
  it('continues token ids as transformers does', async () => {
    const { tensors } = readSafetensors(readFileSync(join(gpt2, 'expected.safetensors')));
    const [prompt, wanted] = ['greedy.input_ids', 'greedy.generated_ids'].map((name) => tensors[name]?.data as Int32Array);
    const { stdout, stderr } = await succeeds('run', gpt2, '--ids', String(prompt), '--max-new-tokens', '16');
    expect(stdout).toBe(`${wanted?.join(' ')}\n`);
    expect(stderr).toMatch(/^16 tokens, [\d.]+ tokens\/s; prompt of \d+ in [\d.]+ s\n$/);
    const { ids, model_type, weights, weight_bytes, tokens_per_second } = await json(
      'run',
      gpt2,
      `--ids=${prompt}`,
      '--max-new-tokens=16',
      '--weights',
      'int8',
    );
    expect([(ids as number[]).length, model_type, weights]).toEqual([16, 'gpt2', 'int8']);
    const divided = await json('run', gpt2, `--ids=${prompt}`, '--max-new-tokens=16', '--weights', 'int8', '--workers', '2');
    expect([divided.workers, divided.ids]).toEqual([2, ids]);
    expect([typeof weight_bytes, typeof tokens_per_second]).toEqual(['number', 'number']);
  });

  it('writes text as it comes, as the package generates it', async () => {
    using model = await openModel(text);
    const options = { maxNewTokens: 8, temperature: 1.5, topK: 40, topP: 0.9, repetitionPenalty: 1.2, seed: 3 };
    let wanted = '';
    for await (const step of model.generate('the cat sat', options)) wanted += step.text;
    const flags = ['--max-new-tokens=8', '--temperature=1.5', '--top-k=40', '--top-p=0.9', '--repetition-penalty=1.2', '--seed=3'];
    expect((await succeeds('run', text, 'the cat sat', ...flags)).stdout).toBe(`${wanted}\n`);
    expect((await json('run', text, 'the cat sat', ...flags))['text']).toBe(wanted);
    const once = ['--max-new-tokens=9', '--no-repeat-ngram-size=1', '--min-new-tokens=9'];
    expect(new Set((await json('run', text, 'the cat sat', ...once))['ids'] as number[]).size).toBe(9);
  });

  it('adds a direction of a sparse autoencoder, as lens does', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'multihead-sae-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    using model = await openModel(gpt2);
    const { embedDim } = model.info;
    const row = Float32Array.from({ length: embedDim }, (_, at) => Math.sin(at));
    const [vector, matrix] = [(length: number) => ({ shape: [length], data: new Float32Array(length) }), { shape: [1, embedDim], data: row }];
    const weights = { W_enc: { shape: [embedDim, 1], data: row }, W_dec: matrix, b_enc: vector(1), b_dec: vector(embedDim) };
    writeFileSync(join(folder, 'sae_weights.safetensors'), writeSafetensors(weights));
    writeFileSync(join(folder, 'cfg.json'), JSON.stringify({ d_in: embedDim, d_sae: 1, hook_name: 'blocks.1.hook_resid_pre' }));
    const edits = [{ site: 'resid_pre', layer: 1, add: row.map((x) => -4 * x) }] as const;
    const flags = ['--ids=5,6,7', '--sae', folder, '--feature', '0', '--strength=-4', '--json'];
    const { ids } = await model.complete([5, 6, 7], { edits, maxNewTokens: 6 });
    expect(ids).not.toEqual((await model.complete([5, 6, 7], { maxNewTokens: 6 })).ids);
    expect(JSON.parse((await here('run', gpt2, ...flags, '--max-new-tokens=6')).stdout)).toMatchObject({ ids });
    const { predictions } = JSON.parse((await here('lens', gpt2, ...flags, '--top=1')).stdout) as { predictions: { top: { id: number }[] }[] };
    expect(predictions.map(({ top }) => top[0]?.id)).toEqual([...(await model.lens([5, 6, 7], { edits, top: 1 })).ids]);
    await refused(['run', gpt2, '--ids=5', '--feature=0'], 2, /^--sae: expected a folder beside --feature, got none/);
    await refused(['run', gpt2, '--ids=5', '--sae', folder], 2, /^--feature: expected a feature of --sae, got none/);
    await refused(['lens', gpt2, '--ids=5', '--sae', folder, '--feature=1'], 2, /^--feature: expected 0 to 0, got 1/);
    await refused(['run', gpt2, '--ids=5', '--sae', gpt2, '--feature=1'], 2, /cfg\.json: expected a file of this name/);
  });

  it('takes a text from standard input, and answers messages by the chat template', async () => {
    const flags = ['--max-new-tokens=4', '--seed=3', '--temperature=1.5'];
    const { stdout: wanted } = await here('run', text, 'the cat\nsat', ...flags);
    expect((await hereWith(['the c', 'at\nsat\n'], 'run', text, ...flags)).stdout).toBe(wanted);
    const template = '{% for m in messages %}{{ m.role[0] }} {{ m.content }} {% endfor %}';
    writeFileSync(join(text, 'chat_template.jinja'), template);
    try {
      using model = await openModel(text);
      const options = { maxNewTokens: 4, seed: 3, temperature: 1.5 };
      const chat = [{ role: 'user', content: 'the cat' }];
      const first = await model.complete(chat, options);
      expect((await here('run', text, 'the cat', '--chat', ...flags)).stdout).toBe(`${first.text}\n`);
      const { stdout } = await here('run', text, 'the cat', '--chat', '--json', ...flags);
      expect(JSON.parse(stdout)).toMatchObject({ text: first.text, ids: first.ids, finish_reason: first.finishReason });
      chat.push({ role: 'assistant', content: first.text }, { role: 'user', content: 'sat' });
      const second = await model.complete(chat, options);
      expect((await hereWith(['the cat\n\n', 'sat'], 'run', text, '--chat', ...flags)).stdout).toBe(`${first.text}\n${second.text}\n`);
    } finally {
      rmSync(join(text, 'chat_template.jinja'));
    }
    await refused(['run', text, 'the', '--chat'], 2, /^messages need a chat template in the folder/);
    await refused(['run', text, '--ids', '1', '--chat'], 2, /^--ids: expected none beside --chat/);
  });

  it('ends with 130 after Ctrl-C, with a whole line of output', async () => {
    const child = spawn(process.execPath, [script, 'run', long, '--ids', '5,6,7', '--max-new-tokens', '50000']);
    let [stdout, stderr] = ['', ''];
    child.stdout.on('data', (data: Buffer) => {
      if (stdout === '') child.kill('SIGINT');
      stdout += data.toString();
    });
    child.stderr.on('data', (data: Buffer) => (stderr += data.toString()));
    const code = await new Promise((resolve) => child.on('close', resolve));
    expect([code, stdout.endsWith('\n')]).toEqual([130, true]);
    expect(stderr).toMatch(/^\d+ tokens, .*\n$/);
    expect(stdout.trim().split(' ').length).toBeLessThan(50_000);
  });

  it('ends quietly when its reader has closed the pipe', async () => {
    const line = `"${process.execPath}" "${script}" run "${long}" --ids 5,6,7 --max-new-tokens 50000 | head -c 1; echo " \${PIPESTATUS[0]}"`;
    const { stdout, stderr } = await new Promise<{ stdout: string; stderr: string }>((resolve) => {
      execFile('bash', ['-c', line], (_, out, err) => resolve({ stdout: out, stderr: err }));
    });
    expect(stdout).toMatch(/^\d 0\n$/);
    expect(stderr).toBe('');
  });
});

describe('multihead embed', () => {
  it('prints the cosines of all pairs', async () => {
    const lists = ['5,6,7,8', '9,10', '5,6,7,9'];
    using model = await openModel(join(goldens, 'bert'));
    const vectors = await model.embed(lists.map((list) => list.split(',').map(Number)));
    const cosine = (a: number, b: number) => vectors[a]?.reduce((sum, value, at) => sum + value * (vectors[b]?.[at] ?? NaN), 0) ?? NaN;
    const flags = lists.flatMap((list) => ['--ids', list]);
    const { stdout } = await succeeds('embed', join(goldens, 'bert'), ...flags);
    const rows = stdout
      .trimEnd()
      .split('\n')
      .map((line) => line.trim().split(/\s+/));
    expect(rows[0]).toEqual(['1', '2', '3']);
    for (const [a, list] of lists.entries()) {
      expect(rows[a + 1]).toEqual([String(a + 1), ...lists.map((_, b) => cosine(a, b).toFixed(3)), list]);
    }
    const { vectors: given, similarities } = await json('embed', join(goldens, 'bert'), ...flags, '--pooling', 'mean');
    expect((given as number[][]).map((each) => Float32Array.from(each))).toEqual(vectors);
    expect((similarities as number[][])[0]?.[2]).toBeCloseTo(cosine(0, 2), 6);
    const { vectors: first } = await json('embed', join(goldens, 'bert'), ...flags, '--pooling', 'first');
    expect(first).not.toEqual(given);
  });

  it('takes texts', async () => {
    const { stdout } = await succeeds('embed', text, 'the cat sat', 'a dog\u202e sat');
    expect(stdout).toMatch(/^ {6} +1 +2\n +1 +1\.000 +\S+ {2}the cat sat\n +2 +\S+ +1\.000 {2}a dog\\u202e sat\n$/);
  });
});

describe('multihead heads', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'multihead-heads-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it('prints a row for each head, and those of --json', async () => {
    const { stdout } = await succeeds('heads', gpt2, '--ids', '5,6,7,5,6');
    const rows = stdout
      .trimEnd()
      .split('\n')
      .map((line) => line.trim().split(/\s+/));
    expect(rows[0]).toEqual(['layer', 'head', 'entropy', 'previous', 'first', 'self', 'induction']);
    expect(rows.slice(1).map(([layer, head]) => `${layer} ${head}`)).toEqual(['0 0', '0 1', '1 0', '1 1']);
    const { maps, ids } = await json('heads', gpt2, '--ids', '5,6,7,5,6', '--layers', '1', '--heads=1,0,1');
    expect(ids).toEqual([5, 6, 7, 5, 6]);
    const found = maps as Record<string, number>[];
    expect(found.map(({ layer, head }) => [layer, head])).toEqual([
      [1, 0],
      [1, 1],
    ]);
    for (const [at, each] of found.entries()) {
      const numbers = ['entropy', 'previous', 'first', 'self', 'induction'].map((name) => each[name]?.toFixed(3));
      expect(rows[3 + at]?.slice(2)).toEqual(numbers);
    }
  });

  it('computes the maps of long texts a few at a time', async () => {
    using model = await openModel(long);
    const { numLayers, numHeads } = model.info;
    // One pass computes all maps of 7 tokens, the maps of one layer of 1500 tokens, or one map of 2500 tokens.
    for (const tokens of [7, 1500, 2500]) {
      const ids = Array.from({ length: tokens }, (_, at) => (at * at) % 31);
      const { maps } = await json('heads', long, '--ids', String(ids), '--layers', String(numLayers - 1));
      expect(maps).toHaveLength(numHeads);
      const { data } = await model.attentions(ids, { layer: numLayers - 1, head: numHeads - 1 });
      expect((maps as Statistics[]).at(-1)).toEqual({ layer: numLayers - 1, head: numHeads - 1, ...statisticsOf(data, ids) });
    }
  });

  it('writes a chart, and says what no token has', async () => {
    const chart = join(folder, 'heads.svg');
    const { stdout } = await succeeds('heads', text, 'the cat <sat on', '--chart', chart);
    expect(stdout.split('\n')[1]).toMatch(/–$/);
    const svg = readFileSync(chart, 'utf8');
    expect(svg.match(/<image /g)?.length).toBe(stdout.trimEnd().split('\n').length - 1);
    expect(svg).toContain('the cat &#60;sat on');
  });

  it('ends with 3 if the chart cannot be written', async () => {
    const { code, stderr } = await command('heads', gpt2, '--ids', '1,2', '--chart', join(folder, 'none', 'heads.svg'));
    expect([code, stderr.trimEnd().split('\n').length]).toEqual([3, 1]);
    expect(stderr).toMatch(/heads\.svg: cannot be written \(ENOENT/);
  });
});

describe('multihead lens, patch, ablate and attribute', () => {
  const [clean, corrupt] = ['5,6,7,5,6', '5,8,7,5,8'];
  const both = ['--ids', clean, '--ids', corrupt];
  const metric = ['--token', '3', '--against', '4'];
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'multihead-analyses-'));
  });
  afterAll(() => rmSync(folder, { recursive: true }));
  const document = async (...args: string[]) => JSON.parse((await here(...args, '--json')).stdout) as Record<string, unknown>;
  const ids = (list: string): number[] => list.split(',').map(Number);

  it('print what the package computes', async () => {
    using model = await openModel(gpt2);
    const difference = { token: 3, against: 4 };
    const rows = (data: Float32Array, size: number) =>
      Array.from({ length: data.length / size }, (_, at) => [...data.subarray(at * size, (at + 1) * size)]);
    const patched = await model.patch(ids(clean), ids(corrupt), difference, { by: 'position' });
    expect(await document('patch', gpt2, ...both, ...metric, '--by', 'position')).toMatchObject({
      clean: patched.clean,
      corrupt: patched.corrupt,
      metrics: rows(patched.values.data, 5),
    });
    const estimated = await model.attributionPatch(ids(clean), ids(corrupt), difference, { site: 'q' });
    expect(await document('attribute', gpt2, ...both, ...metric, '--site', 'q')).toMatchObject({ changes: rows(estimated.values.data, 2) });
    const ablated = await model.ablate([ids(clean), ids(corrupt)], { meanLogProb: true }, { ablation: 'mean' });
    expect(await document('ablate', gpt2, ...both, '--ablation', 'mean', '--workers', '2')).toMatchObject({
      workers: 2,
      clean: ablated.clean,
      metrics: rows(ablated.values.data, 2),
    });
    using paired = await openModel(join(goldens, 't5_seq2seq'));
    const cross = await paired.ablate([ids(clean)], { meanLogProb: true }, { decoderInputs: [[0, 7, 9]], site: 'cross_z' });
    const decoder = ['--cross', '--decoder-ids', '0,7,9'];
    expect(await document('ablate', join(goldens, 't5_seq2seq'), '--ids', clean, ...decoder)).toMatchObject({
      clean: cross.clean,
      metrics: rows(cross.values.data, 2),
    });
    const direct = await model.logitAttribution(ids(clean), difference);
    expect(await document('attribute', gpt2, '--ids', clean, ...metric)).toMatchObject({
      metric: direct.metric,
      heads: rows(direct.heads.data, 2),
      mlp: [...direct.mlp],
    });
    const { predictions } = await document('lens', gpt2, '--ids', clean, '--top', '2');
    const lens = await model.lens(ids(clean), { top: 2 });
    expect((predictions as { top: { id: number }[] }[]).flatMap(({ top }) => top.map(({ id }) => id))).toEqual([...lens.ids]);
  });

  it('print tables, and write charts', async () => {
    for (const [name, cells, ...args] of [
      ['lens', 15, gpt2, '--ids', clean],
      ['patch', 4, gpt2, ...both, ...metric],
      ['ablate', 4, gpt2, '--ids', clean],
      ['attribute', 4, gpt2, ...both, '--token', '3', '--position=-2'],
      ['attribute', 6, gpt2, '--ids', clean, ...metric],
    ] as const) {
      const chart = join(folder, 'chart.svg');
      const { code, stdout, stderr } = await here(name, ...args, '--chart', chart);
      expect([code, stderr], name).toEqual([0, '']);
      expect(stdout.trimEnd().split('\n'), name).toHaveLength(4);
      expect(readFileSync(chart, 'utf8').match(/<rect [^>]*><title>/g), name).toHaveLength(cells);
    }
    const { stdout } = await here('lens', text, 'the cat', '--position', '0', '--top', '1', '--layers', '0');
    expect(stdout).toMatch(/^after token 0, "the":\n {4}0 {2}".*" [\d.]+ %\n$/);
    expect((await here('patch', text, 'the cat sat', 'the dog sat', '--token', ' on', '--against', '4')).code).toBe(0);
  });

  it('refuse wrong arguments with 2 and one line', async () => {
    await refused(['patch', gpt2, '--ids', clean], 2, /^TEXT: expected two texts, .*, got 1/);
    await refused(['patch', gpt2, ...both, '--against', '1'], 2, /^--token: expected a token beside --against, got none/);
    await refused(['patch', gpt2, ...both, '--token', '999'], 2, /^--token: expected a token id, 0 to /);
    await refused(['patch', gpt2, ...both, '--token', '1', '--position', '9'], 2, /^--position: expected -/);
    await refused(['ablate', gpt2, '--ids', '1,2', '--decoder-ids', '1'], 2, /^--decoder-ids: expected none for gpt2/);
    await refused(['patch', gpt2, ...both, '--site', 'resid_pre'], 2, /^--by: expected layer or position for resid_pre, got head/);
    await refused(['patch', text, 'the cat', 'the dog', '--token', 'the cat'], 2, /^--token: expected a text that is one token/);
    await refused(['patch', gpt2, '--ids', clean, '--ids', '1,2'], 2, /^corrupt: expected 5 tokens, as the clean sequence has, got 2/);
    await refused(['attribute', gpt2, '--ids', clean, '--token', '1'], 2, /^--against: /);
    await refused(['lens', gpt2, '--ids', clean, '--position', '5'], 2, /^--position: expected -5 to 4, got 5/);
    await refused(['lens', gpt2, '--ids', clean, '--layers', '3'], 2, /^--layers: expected 0 to 2, got 3/);
    await refused(['ablate', join(goldens, 'bert'), '--ids', clean], 2, /bert: expected a causal language model, got bert/);
    await refused(['attribute', gpt2, '--ids', clean, '--workers', '2'], 2, /^--workers: /);
  });

  it('end with 130 at Ctrl-C', async () => {
    const many = String(Array.from({ length: 300 }, (_, at) => (at * at) % 31));
    let listeners = 0;
    const stream = { on() {}, write: (_: string, done: () => void) => (done(), true) } as Stream;
    // The first one is there while the folder is opened, the second one during the sweep.
    const on = (_: string, listener: () => void): void => void ((listeners += 1) === 2 && setImmediate(listener));
    const process = { stdin: Readable.from([]), stdout: stream, stderr: stream, on, off() {} };
    const args = ['patch', long, '--ids', many, '--ids', many, '--by', 'position'];
    expect([await main(args, { openModel, saveModel, openSparseAutoencoder, loadBench, version: '1.2.3', process }), listeners]).toEqual([130, 2]);
  });
});

describe('multihead', () => {
  it('refuses wrong arguments with 2 and one line', async () => {
    await refused([], 2, /^COMMAND: expected run, embed, heads, lens, patch, ablate, attribute, convert, bench, got none/);
    await refused(['fly'], 2, /^COMMAND: expected run, embed, heads, lens, patch, ablate, attribute, convert, bench, got "fly"/, command);
    await refused(['constructor'], 2, /^COMMAND: /);
    for (const name of ['run', 'embed', 'heads']) {
      await refused([name], 2, /^FOLDER: expected a folder .*, got none/);
      await refused([name, gpt2], 2, /^TEXT: expected one text.*, got none/);
      await refused([name, gpt2, '--fliter'], 2, /^--fliter: /);
      await refused([name, gpt2, '-x'], 2, /^-x: /);
      await refused([name, gpt2, 'text', '--ids', '1'], 2, /^--ids: expected no text beside it, got "text"/);
      await refused([name, gpt2, '--ids', '1,x'], 2, /^--ids: expected token ids .*, got "1,x"/);
      await refused([name, gpt2, '--ids'], 2, /^--ids: .*, got none/);
      await refused([name, gpt2, '--ids', '1', '--json=3'], 2, /^--json: expected no value, got "3"/);
      await refused([name, gpt2, '--ids', '1', '--workers', '65'], 2, /^--workers: expected a whole number from 1 to 64, or all, got "65"/);
      await refused([name, gpt2, '--ids', '1', '--weights', 'int2'], 2, /^--weights: expected one of stored, f32, .*, got "int2"/);
      await refused([name, gpt2, '--ids', '99999'], 2, /expected whole numbers from 0 to \d+, got 99999/);
      await refused([name, join(goldens, 'vit'), '--ids', '1'], 2, /vit: expected a model of token ids, got vit/);
      await refused([name, join(goldens, 'none'), '--ids', '1'], 2, /none: config\.json: expected a file of this name/);
      await refused(
        [name, join(gpt2, 'config.json'), '--ids', '1'],
        2,
        /config\.json: .* a file in place of the folder: give the folder that it is in/,
      );
      await refused([name, gpt2, 'text'], 2, /text needs tokenizer\.json in the folder/);
    }
    await refused(['run', gpt2, '--ids', '99999'], 2, /expected whole numbers from 0 to \d+, got 99999/, command);
    await refused(['run', gpt2, 'a', 'b'], 2, /^TEXT: expected one text, in quotes, or --ids, got 2/);
    await refused(['run', gpt2, '--ids', '1', '--temperature', '-1'], 2, /^--temperature: expected 0 or more, got "-1"/);
    await refused(['run', gpt2, '--ids', '1', '--top-p', '1.5'], 2, /^--top-p: expected more than 0, at most 1, got "1.5"/);
    await refused(['run', gpt2, '--ids', '1', '--top-k', '1.5'], 2, /^--top-k: expected a whole number, 0 or more, got "1.5"/);
    await refused(['run', gpt2, '--ids', '1', '--repetition-penalty', '0'], 2, /^--repetition-penalty: expected more than 0/);
    await refused(['run', gpt2, '--ids', '1', '--seed', ''], 2, /^--seed: /);
    await refused(['run', gpt2, `--ids=${'1,'.repeat(500)}1`], 2, /^prompt: expected 1 to \d+ tokens, got 501 tokens/);
    await refused(['run', join(goldens, 'bert'), '--ids', '1'], 2, /bert: expected a causal language model, got bert/);
    await refused(['heads', text, ''], 2, /^input: expected one token or more, got 0 tokens/);
    await refused(['embed', text, 'the', ''], 2, /^inputs\[1\]: expected one token or more, got 0 tokens/);
    await refused(['heads', gpt2, '--ids', '1', '--layers', '2'], 2, /^--layers: expected 0 to 1, got 2/);
    await refused(['heads', gpt2, '--ids', '1', '--heads', '0,9'], 2, /^--heads: expected 0 to 1, got 9/);
    await refused(['heads', gpt2, '--ids', '1', '--chart', 'heads.png'], 2, /^--chart: expected .* ends with \.svg, got "heads\.png"/);
  });

  it('takes a text that begins with a dash after --', async () => {
    expect((await succeeds('embed', text, '--json', '--', '-the cat')).stdout).toContain('"-the cat"');
  });

  it('lists every option in its help, and has the version of the package', async () => {
    const { stdout: overview } = await succeeds('--help');
    const options: Record<string, string> = {
      run: '--max-new-tokens --temperature --top-k --top-p --repetition-penalty --num-beams --no-repeat-ngram-size --min-new-tokens --forced-bos --seed --stop --cache-type --chat --sae --feature --strength --ids --weights --workers --revision --local --json --help',
      embed: '--pooling --raw --truncate --prompt --prompt-name --ids --weights --workers --revision --local --json --help',
      heads: '--layers --heads --chart --ids --weights --workers --revision --local --json --help',
      lens: '--layers --top --position --sae --feature --strength --chart --ids --weights --workers --revision --local --json --help',
      patch: '--token --against --position --by --site --chart --ids --weights --workers --revision --local --json --help',
      ablate: '--token --against --position --ablation --cross --decoder-ids --chart --ids --weights --workers --revision --local --json --help',
      attribute: '--token --against --position --by --site --chart --ids --weights --revision --local --json --help',
    };
    for (const [name, list] of Object.entries(options)) {
      expect(overview).toContain(`multihead ${name} FOLDER`);
      const { stdout } = await succeeds(name, '--help');
      expect([...stdout.matchAll(/^ {2}(--[\w-]+)/gm)].map(([, flag]) => flag)).toEqual(list.split(' '));
    }
    const manifest = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { version: string };
    expect((await succeeds('--version')).stdout).toBe(`${manifest.version}\n`);
  });

  it.skipIf(!existsSync('/dev/full'))('ends with 3 on a full disk', async () => {
    for (const args of [['run', gpt2, '--ids', '1'], ['embed', gpt2, '--ids', '1'], ['heads', gpt2, '--ids', '1', '--json'], ['--help']]) {
      const child = spawn(process.execPath, [script, ...args], { stdio: ['ignore', openSync('/dev/full', 'w'), 'pipe'] });
      let stderr = '';
      child.stderr?.on('data', (data: Buffer) => (stderr += data.toString()));
      const code = await new Promise((resolve) => child.on('close', resolve));
      expect([code, stderr]).toEqual([3, expect.stringMatching(/^standard output: cannot be written \(.+\)\n$/)]);
    }
  });

  it('prints what the README shows', async () => {
    const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
    const lines = blocksOf(readme).flatMap(({ language, code }) => (language === 'sh' ? code.trimEnd().split('\n') : []));
    // The benchmarks take a minute, and have their own tests.
    const examples = lines.filter((line) => /^npx multihead (?!bench)/.test(line));
    expect(examples.length).toBe(10);
    const folder = mkdtempSync(join(tmpdir(), 'multihead-readme-'));
    for (const line of examples) {
      const args = [...line.replace(/ +#.*/, '').matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, word]) => quoted ?? word ?? '').slice(2);
      const places: Record<string, string> = { FOLDER: text, SMALLER: join(folder, 'smaller'), 'tests/conformance/models/gpt2': gpt2 };
      const { stdout } = await succeeds(...args.map((each) => places[each] ?? (each.endsWith('.svg') ? join(folder, each) : each)));
      if (args.includes('tests/conformance/models/gpt2')) expect(readme).toContain(stdout);
    }
    expect(existsSync(join(folder, 'heads.svg'))).toBe(true);
    rmSync(folder, { recursive: true });
  });
});

describe('multihead bench', () => {
  const tiny = ['--filter', 'forward/tiny/causal'];

  it('measures this machine and a case, against float64, as one document', async () => {
    const { runs } = (await json('bench', ...tiny)) as { runs: [{ machine: Record<string, unknown>; benchmarks: [Record<string, unknown>] }] };
    expect(runs).toHaveLength(1);
    const [{ machine, benchmarks }] = runs;
    expect(Object.keys(machine)).toEqual([
      'runner',
      'version',
      'cpu',
      'engine',
      'simd',
      'threads',
      'wasmBytes',
      'fma_peak',
      'read_stream',
      'load',
      'date',
    ]);
    expect([machine['runner'], machine['threads']]).toEqual(['wasm', 1]);
    expect(machine['fma_peak']).toBeGreaterThan(0);
    expect(machine['read_stream']).toBeGreaterThan(0);
    expect(benchmarks).toHaveLength(1);
    const [{ name, us, pct_peak: peak, err, peers }] = benchmarks;
    expect([name, peers]).toEqual(['forward/tiny/causal/f32/threads:1', {}]);
    expect(us).toBeGreaterThan(0);
    expect(peak).toBeGreaterThan(0);
    expect(err).toBeLessThan(2e-6);
  }, 60_000);

  it('prints a table: the machine, the titles, and a row for each case', async () => {
    const { stdout, code } = await here('bench', ...tiny);
    expect(code).toBe(0);
    const [machine, titles, row, ...rest] = stdout.split('\n');
    expect(machine).toMatch(/^wasm (relaxed|simd128): .*Node .*FMA peak [\d.]+ GFLOP\/s a thread, read stream [\d.]+ GB\/s/);
    expect(titles).toMatch(/^name .* % peak .* err .* peers/);
    expect(row).toMatch(/^forward\/tiny\/causal\/f32\/threads:1 +\d/);
    expect(rest).toEqual(['']);
  }, 60_000);

  it('refuses a filter that nothing matches, and what is no option', async () => {
    await refused(
      ['bench', '--filter', 'none'],
      2,
      /^--filter: expected a regular expression that some name matches, such as forward\/gpt2, got "none"\n$/,
    );
    await refused(['bench', '--filter', '('], 2, /^--filter: expected a regular expression, got "\("\n$/);
    await refused(['bench', 'folder'], 2, /^bench: expected options alone, got "folder"\n$/);
  });
});
