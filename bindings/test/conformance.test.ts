// The conformance command on a small pack of cases that pass, fail, or are not supported.

import { execFile } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const script = fileURLToPath(new URL('../conformance.mjs', import.meta.url));

/** Runs the command; returns its exit code and output. */
function conformance(...args: string[]): Promise<{ code: number; lines: string[]; error: string }> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [script, ...args], (_, stdout, stderr) => {
      resolve({ code: child.exitCode ?? -1, lines: stdout.trimEnd().split('\n'), error: stderr });
    });
  });
}

interface Entry {
  shape: number[];
  data: number[];
}

/** The bytes of a safetensors file. */
function safetensors(tensors: Record<string, Entry>): Buffer {
  let offset = 0;
  const entries = Object.entries(tensors).map(([name, { shape, data }]) => {
    const data_offsets = [offset, (offset += 4 * data.length)];
    return [name, { dtype: 'F32', shape, data_offsets }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const floats = Object.values(tensors).map(({ data }) => Buffer.from(new Float32Array(data).buffer));
  return Buffer.concat([length, header, ...floats]);
}

describe('npm run conformance', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'multihead-conformance-'));
  });
  afterAll(() => rm(folder, { recursive: true }));

  it('counts the cases that pass, and gives a reason for every other', async () => {
    const attrs = { causal: false, align: 'top_left', offset: 0, scale: null, softcap: 0 };
    const tolerance = { atol: 0, rtol: 0 };
    const entry = { op: 'attention', attrs, inputs: { q: 'x', k: 'x', v: 'x' }, tolerance };
    const close = { out: { atol: 1e-6, rtol: 0 } };
    const gradient = {
      ...{ ...entry, op: 'attention_grad', inputs: { ...entry.inputs, d_out: 'wrong' } },
      tolerance: { atol: 1e-5, rtol: 0 },
    };
    const cases = [
      { ...entry, name: 'right', outputs: { out: 'out' }, output_tolerance: close },
      { ...entry, name: 'wrong', outputs: { out: 'wrong' }, output_tolerance: close },
      { ...entry, name: 'odd', attrs: { ...attrs, temperature: 2 }, outputs: { out: 'out' } },
      { ...entry, name: 'other', op: 'gpt3_block', outputs: { out: 'out' } },
      { ...entry, name: 'shape', outputs: { out: 'short' } },
      { ...entry, name: 'lost', outputs: { out: 'lost' } },
      { ...entry, name: 'input', inputs: { ...entry.inputs, surprise: 'x' }, outputs: { out: 'out' } },
      { ...entry, name: 'nothing', outputs: {} },
      // With one key, the weight is 1, so dV is dOut.
      { ...gradient, name: 'grad', outputs: { d_v: 'wrong' } },
      { ...gradient, name: 'no_mask', outputs: { d_v: 'wrong', d_mask: 'wrong' } },
    ];
    await writeFile(join(folder, 'small.json'), JSON.stringify({ file: 'small.safetensors', cases }));
    await writeFile(
      join(folder, 'small.safetensors'),
      safetensors({
        x: { shape: [1, 1, 1, 2], data: [3, 4] },
        out: { shape: [1, 1, 1, 2], data: [3, 4] },
        wrong: { shape: [1, 1, 1, 2], data: [3, 5] },
        short: { shape: [1, 1, 1, 1], data: [3] },
      }),
    );

    const one = await conformance(folder, '--simd=simd128');
    expect(one.code).toBe(1);
    expect(one.lines).toEqual([
      'FAIL small/wrong: out[1] is 4, expected 5 (1.00e+6 times the tolerance) [simd128]',
      'FAIL small/odd: not supported yet: attribute temperature [simd128]',
      'FAIL small/other: not supported yet: op gpt3_block [simd128]',
      'FAIL small/shape: out has shape (1,1,1,2), expected (1,1,1,1) [simd128]',
      'FAIL small/lost: out: tensor lost is not in the file [simd128]',
      'FAIL small/input: not supported yet: input surprise [simd128]',
      'FAIL small/nothing: outputs: nothing to compare [simd128]',
      'FAIL small/no_mask: d_mask was not computed [simd128]',
      'simd128: 2 passed, 8 failed',
      '2 passed, 8 failed',
    ]);

    const both = await conformance(folder);
    expect(both.lines.slice(-2)).toEqual(['relaxed: 2 passed, 8 failed', '4 passed, 16 failed']);
  });

  it('refuses a folder without cases, and unknown options', async () => {
    const empty = await mkdtemp(join(folder, 'empty-'));
    expect(await conformance(empty)).toMatchObject({
      code: 2,
      error: expect.stringMatching('no cases') as string,
    });
    expect(await conformance(folder, '--simd=mmx')).toMatchObject({
      code: 2,
      error: expect.stringMatching('usage') as string,
    });
    expect(await conformance(folder, '--fast')).toMatchObject({ code: 2 });
  });

  it('runs the cases of models with both forms of their configuration', async () => {
    const models = await mkdtemp(join(folder, 'models-'));
    const golden = fileURLToPath(new URL('../../tests/conformance/models/gpt2', import.meta.url));
    const copy = (name: string) => cp(golden, join(models, 'small', name), { recursive: true });
    for (const name of ['a_good', 'b_wrong', 'c_lost', 'd_other']) await copy(name);
    const { cases } = JSON.parse(await readFile(join(golden, 'cases.json'), 'utf8')) as { cases: { name: string }[] };
    const [short, , greedy] = cases;
    const wrong = [
      { ...short, name: 'exact', tolerance: { logits: 0 } },
      { ...greedy, name: 'prompt', inputs: { input_ids: 'short.input_ids' } },
      { ...short, name: 'op', op: 'sing' },
      { ...short, name: 'output', outputs: { surprise: 'short.logits' } },
      { ...short, name: 'shape', outputs: { logits: 'long.logits' } },
      { ...short, name: 'nothing', outputs: {} },
    ];
    await writeFile(join(models, 'small', 'b_wrong', 'cases.json'), JSON.stringify({ cases: wrong }));
    await rm(join(models, 'small', 'c_lost', 'expected.safetensors'));
    await writeFile(join(models, 'small', 'd_other', 'config.json'), '{"model_type": "mamba"}');
    await rm(join(models, 'small', 'd_other', 'config_v4.json'));

    const { code, lines } = await conformance(models, '--simd=simd128');
    expect(code).toBe(1);
    const failed = lines.flatMap((line) => /^FAIL (.+?): .+/.exec(line)?.[1] ?? []);
    const names = ['exact', 'prompt', 'op', 'output', 'shape', 'nothing'];
    const inBoth = ['config.json', 'config_v4.json'].flatMap((config) => names.map((name) => `b_wrong/${name} (${config})`));
    expect(failed).toEqual([...inBoth, 'c_lost/cases.json', 'd_other/config.json']);
    expect(lines.at(-1)).toBe('6 passed, 14 failed');

    const alone = await conformance(join(models, 'small', 'a_good'));
    expect([alone.code, alone.lines]).toEqual([0, ['simd128: 6 passed, 0 failed', 'relaxed: 6 passed, 0 failed', '12 passed, 0 failed']]);
  });

  it('accepts printed figures that are off by one in the last place, and no more', async () => {
    const printed = await mkdtemp(join(folder, 'printed-'));
    const cases = ['same', 'next', 'far'].map((name) => ({
      name,
      op: 'softmax_masked',
      attrs: { causal: false, printed_decimals: 2 },
      inputs: { scores: 'scores', printed_weights: name },
      outputs: { weights: 'same' },
      tolerance: { atol: 1e-6, rtol: 0 },
    }));
    await writeFile(join(printed, 'printed.json'), JSON.stringify({ cases }));
    await writeFile(
      join(printed, 'printed.safetensors'),
      safetensors({
        scores: { shape: [1, 2], data: [0, 0] },
        same: { shape: [1, 2], data: [0.5, 0.5] },
        next: { shape: [1, 2], data: [0.51, 0.49] },
        far: { shape: [1, 2], data: [0.511, 0.489] },
      }),
    );
    const { lines } = await conformance(printed, '--simd=simd128');
    expect(lines[0]).toMatch(/^FAIL printed\/far: weights\[0\] is 0.5, printed as 0.51/);
    expect(lines.at(-1)).toBe('2 passed, 1 failed');
  });
});
