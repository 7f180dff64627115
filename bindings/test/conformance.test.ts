// The conformance command on a small pack of cases that pass, fail, or are not supported.

import { execFile } from 'node:child_process';
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
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
  dtype?: 'F32' | 'I32';
}

/** The bytes of a safetensors file. */
function safetensors(tensors: Record<string, Entry>): Buffer {
  let offset = 0;
  const entries = Object.entries(tensors).map(([name, { shape, data, dtype = 'F32' }]) => {
    const data_offsets = [offset, (offset += 4 * data.length)];
    return [name, { dtype, shape, data_offsets }];
  });
  const header = Buffer.from(JSON.stringify(Object.fromEntries(entries)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  const floats = Object.values(tensors).map(({ data }) =>
    Buffer.from(new Float32Array(data).buffer),
  );
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
      { ...entry, name: 'lost\n\u202e\x9b', outputs: { out: 'lost' } },
      // With one key, the weight is 1, so dV is dOut.
      { ...gradient, name: 'grad', outputs: { d_v: 'wrong' } },
      { ...gradient, name: 'no_mask', outputs: { d_v: 'wrong', d_mask: 'wrong' } },
    ];
    await writeFile(
      join(folder, 'small.json'),
      JSON.stringify({ file: 'small.safetensors', cases }),
    );
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
      'FAIL small/lost\\u000a\\u202e\\u009b: tensor lost is not in the file [simd128]',
      'FAIL small/no_mask: d_mask was not computed [simd128]',
      'simd128: 2 passed, 6 failed',
      '2 passed, 6 failed',
    ]);

    const both = await conformance(folder);
    expect(both.lines.slice(-2)).toEqual(['relaxed: 2 passed, 6 failed', '4 passed, 12 failed']);
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

  it('fails each malformed case with a reason, and goes on', async () => {
    const broken = await mkdtemp(join(folder, 'cases-'));
    const good = {
      name: 'good',
      op: 'attention',
      attrs: { causal: false, align: 'top_left', offset: 0, scale: null, softcap: 0 },
      inputs: { q: 'x', k: 'x', v: 'x' },
      outputs: { out: 'out' },
      tolerance: { atol: 1e-6, rtol: 0 },
    };
    const { attrs, inputs } = good;
    const module = {
      op: 'multihead_attention',
      inputs: { query: 'cube', in_proj_weight: 'in', 'out_proj.weight': 'eye' },
      attrs: { self_attention: true, batch_first: true, embed_dim: 2, num_heads: 1, kdim: null },
    };
    const heads = {
      op: 'heads_concat',
      inputs: { x: 'cube', w_q: 'cube', w_k: 'cube', w_v: 'cube' },
    };
    const ofLayer = (layer: number, w_o = 'eye') => ({
      ...{ [`layers.${layer}.w_q`]: 'eye', [`layers.${layer}.w_k`]: 'eye' },
      ...{ [`layers.${layer}.w_v`]: 'eye', [`layers.${layer}.w_o`]: w_o },
    });
    const stack = {
      op: 'attention_only_transformer',
      attrs: { layers: 1, num_heads: 1, head_dim: 2, positions: 'rope_half', rope_base: 100 },
      inputs: { tokens: 'ids', tok_emb: 'eye', unembed: 'eye', ...ofLayer(0) },
      outputs: { logits: 'cube' },
    };
    const block = {
      op: 'gpt2_block',
      attrs: { num_heads: 1 },
      inputs: Object.fromEntries([
        ['x', 'cube'],
        ...['ln_1', 'attn.c_attn', 'attn.c_proj', 'ln_2', 'mlp.c_fc', 'mlp.c_proj'].flatMap((name) => [
          [`${name}.weight`, name.startsWith('ln') ? 'two' : 'eye'],
          [`${name}.bias`, 'two'],
        ]),
      ]) as Record<string, string>,
    };
    const printed = {
      op: 'softmax_masked',
      inputs: { scores: 'eye', printed_weights: 'eye' },
      outputs: { weights: 'eye' },
      tolerance: { atol: 10, rtol: 0 },
    };
    const wrongValues = [null, true, 3, 'x', [], ['x'], {}];
    const cases: unknown[] = [
      ...wrongValues,
      ...['name', 'op', 'attrs', 'inputs', 'outputs', 'tolerance'].flatMap((field) => [
        { ...good, [field]: undefined },
        ...wrongValues
          .filter((value) => !(field === 'name' && value === 'x'))
          .filter((value) => !(field === 'attrs' && JSON.stringify(value) === '{}'))
          .map((value) => ({ ...good, [field]: value })),
      ]),
      ...[
        { atol: 1 },
        { atol: 'x', rtol: 0 },
        { atol: null, rtol: 0 },
        { atol: -1, rtol: 0 },
      ].flatMap((tolerance) => [
        { ...good, tolerance },
        { ...good, output_tolerance: { out: tolerance } },
      ]),
      { ...good, op: 'constructor' },
      ...Object.keys(attrs).map((name) => ({ ...good, attrs: { ...attrs, [name]: {} } })),
      { ...good, attrs: { ...attrs, align: 'constructor' } },
      { ...good, attrs: { ...attrs, align: 'explicit', offset: null } },
      { ...good, attrs: { ...attrs, rope: 'half' } },
      { ...good, attrs: { ...attrs, rope: { style: 'half', scaling: 2 } } },
      { ...good, attrs: { ...attrs, temperature: {} } },
      ...[null, true, 3, 'lost', [], {}].map((q) => ({ ...good, inputs: { ...inputs, q } })),
      ...['cube', 'eye', 'flag', 'none'].map((name) => ({
        ...good,
        inputs: { ...inputs, q: name },
      })),
      { ...good, inputs: { q: 'x', k: 'x' } },
      { ...good, inputs: { ...inputs, surprise: 'x' } },
      { ...good, outputs: { out: 'flag' } },
      { ...good, outputs: { out: 'none' } },
      { ...good, outputs: { out: 'out', surprise: 'out' } },
      { ...good, outputs: { out: 'out', constructor: 'out' } },
      ...[0, -2, 3, 2 ** 40, 1.5].map((embed_dim) => ({
        ...good,
        ...module,
        attrs: { ...module.attrs, embed_dim },
      })),
      ...[0, -1, 3].map((num_heads) => ({
        ...good,
        ...module,
        attrs: { ...module.attrs, num_heads },
      })),
      { ...good, ...module, attrs: { ...module.attrs, kdim: 2 } },
      { ...good, ...module, attrs: { ...module.attrs, self_attention: false } },
      { ...good, ...module, attrs: { ...module.attrs, unbatched: true } },
      { ...good, ...module, attrs: { ...module.attrs, add_bias_kv: true } },
      { ...good, ...module, inputs: { ...module.inputs, attn_mask: 'in' } },
      { ...good, ...module, inputs: { query: 'cube', 'out_proj.weight': 'eye' } },
      { ...good, ...module, inputs: { ...module.inputs, in_proj_weight: 'eye' } },
      ...[0, 2].map((num_heads) => ({ ...good, ...heads, attrs: { num_heads } })),
      ...[
        ...[{ layers: 0 }, { layers: 2 }, { layers: -1 }, { layers: 2 ** 40 }, { layers: {} }, { num_heads: 0 }],
        ...[{ head_dim: 3 }, { head_dim: -2 }, { positions: 'none' }, { positions: 'learned' }],
        ...[{ positions: 3 }, { rope_base: 'x' }, { num_kv_heads: 2 }, {}],
      ].map((change) => ({ ...good, ...stack, attrs: { ...stack.attrs, ...change } })),
      ...[{ tokens: 'eye' }, { pos_emb: 'eye' }, ofLayer(0, 'in'), ofLayer(1), { unembed: 'in' }].map((change) => ({
        ...{ ...good, ...stack, inputs: { ...stack.inputs, ...change } },
      })),
      // In this dict, c_attn is (2, 2) instead of (2, 6).
      ...[{}, { gelu: 'exact' }, { num_heads: 3 }, { eps: -1 }].map((change) => ({
        ...{ ...good, ...block, attrs: { ...block.attrs, ...change } },
      })),
      { ...good, ...block, inputs: { x: 'cube' } },
      ...[{}, { printed_decimals: 0 }, { printed_decimals: -3 }, { printed_decimals: 2 }].map(
        (figures) => ({ ...good, ...printed, attrs: { causal: false, ...figures } }),
      ),
      {
        ...good,
        op: 'onnx_attention',
        attrs: { q_num_heads: 0, kv_num_heads: 3 },
        inputs: { Q: 'cube', K: 'cube', V: 'cube' },
        outputs: { Y: 'cube' },
      },
      good,
      { ...good, attrs: { ...attrs, temperature: null, other: false, third: 0, fourth: -1 } },
    ];
    const file = { file: 'pack.safetensors', cases };
    await writeFile(join(broken, 'pack.json'), JSON.stringify(file));
    await writeFile(
      join(broken, 'pack.safetensors'),
      safetensors({
        x: { shape: [1, 1, 1, 2], data: [3, 4] },
        out: { shape: [1, 1, 1, 2], data: [3, 4] },
        cube: { shape: [1, 2, 2], data: [1, 2, 3, 4] },
        in: { shape: [6, 2], data: Array<number>(12).fill(1) },
        eye: { shape: [2, 2], data: [1, 0, 0, 1] },
        flag: { shape: [1, 1, 1, 2], data: [1, 0], dtype: 'I32' },
        none: { shape: [1, 1, 0, 2], data: [] },
        two: { shape: [2], data: [1, 1] },
        // Zeros have the same bits in both types.
        ids: { shape: [1, 2], data: [0, 0], dtype: 'I32' },
      }),
    );
    const { code, lines } = await conformance(broken, '--simd=simd128');
    expect(code).toBe(1);
    expect(lines.at(-1)).toBe(`2 passed, ${cases.length - 2} failed`);
    const failures = lines.filter((line) => line.startsWith('FAIL pack/'));
    expect(failures).toHaveLength(cases.length - 2);
    expect(failures[0]).toBe('FAIL pack/cases[0]: case: expected an object, got null [simd128]');
    // The reason must come from the runner or the library, not from JavaScript itself.
    for (const line of failures) expect(line).not.toMatch(/undefined|not a function|not iterable/);
  });

  it('fails each malformed file with a reason, and goes on', async () => {
    const broken = await mkdtemp(join(folder, 'files-'));
    const write = (name: string, content: string | Buffer) =>
      writeFile(join(broken, name), content);
    const entry = {
      name: 'copy',
      op: 'attention',
      attrs: {},
      inputs: { q: 'x', k: 'x', v: 'x' },
      outputs: { out: 'out' },
      tolerance: { atol: 1e-6, rtol: 0 },
    };
    const tensor = { shape: [1, 1, 1, 2], data: [3, 4] };
    const tensors = safetensors({ x: tensor, out: tensor });
    const pack = JSON.stringify({ cases: [entry] });
    await write('a_good.json', pack);
    await write('a_good.safetensors', tensors);

    const manifests: Record<string, string | Buffer> = {
      empty: '',
      cut: '{"cases": [',
      array: '[1]',
      null: 'null',
      utf8: Buffer.from([0x22, 0xff, 0x22]),
      no_cases: '{"file": "a_good.safetensors"}',
      cases_empty: '{"file": "a_good.safetensors", "cases": []}',
      cases_object: JSON.stringify({ file: 'a_good.safetensors', cases: { entry } }),
      file_number: JSON.stringify({ file: 3, cases: [entry] }),
      file_null: JSON.stringify({ file: null, cases: [entry] }),
      file_folder: JSON.stringify({ file: '.', cases: [entry] }),
      file_lost: pack,
    };
    for (const [name, content] of Object.entries(manifests)) await write(`${name}.json`, content);
    await mkdir(join(broken, 'folder.json'));

    const withHeader = (header: unknown, data = 16) => {
      const text = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
      const length = Buffer.alloc(8);
      length.writeBigUInt64LE(BigInt(text.length));
      return Buffer.concat([length, text, Buffer.alloc(data)]);
    };
    const x = { dtype: 'F32', shape: [1, 1, 1, 2], data_offsets: [0, 8] };
    const files: Record<string, Buffer> = {
      bytes_none: Buffer.alloc(0),
      bytes_cut: tensors.subarray(0, -4),
      // Removes the golden result, and with it every element to compare.
      bytes_cut_more: tensors.subarray(0, -8),
      bytes_more: Buffer.concat([tensors, Buffer.alloc(4)]),
      header_cut: tensors.subarray(0, 20),
      header_huge: Buffer.alloc(16, 0xff),
      header_text: withHeader('nonsense'),
      header_array: withHeader([1]),
      entry_null: withHeader({ x: null }),
      entry_empty: withHeader({ x: {} }),
      dtype: withHeader({ x: { ...x, dtype: 'F128' }, out: { ...x, data_offsets: [8, 16] } }),
      dtype_number: withHeader({ x: { ...x, dtype: 1 } }),
      shape: withHeader({ x, out: { ...x, shape: [1, 1, 1, 3], data_offsets: [8, 16] } }),
      shape_negative: withHeader({
        x,
        out: { ...x, shape: [1, 1, -1, -2], data_offsets: [8, 16] },
      }),
      shape_huge: withHeader({ x: { ...x, shape: [0, 2 ** 52], data_offsets: [0, 0] } }, 0),
      shape_text: withHeader({ x: { ...x, shape: '1112' } }),
      offsets: withHeader({ x, out: { ...x, data_offsets: [8] } }),
      offsets_beyond: withHeader({ x, out: { ...x, data_offsets: [16, 24] } }),
      offsets_swapped: withHeader({ x, out: { ...x, data_offsets: [16, 8] } }),
      overlap: withHeader({ x, out: x }, 8),
      gap: withHeader({ x, out: { ...x, data_offsets: [16, 24] } }, 24),
    };
    for (const [name, content] of Object.entries(files)) {
      await write(`${name}.json`, pack);
      await write(`${name}.safetensors`, content);
    }

    const { code, lines } = await conformance(broken, '--simd=simd128');
    expect(code).toBe(1);
    const expected = [...Object.keys(manifests), 'folder', ...Object.keys(files)];
    const failed = lines.flatMap((line) => /^FAIL (\w+)\/manifest: .+/.exec(line)?.[1] ?? []);
    expect(failed.sort()).toEqual(expected.sort());
    expect(lines.at(-1)).toBe(`1 passed, ${expected.length} failed`);
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
      { ...short, name: 'input', inputs: {} },
      3,
    ];
    await writeFile(join(models, 'small', 'b_wrong', 'cases.json'), JSON.stringify({ cases: wrong }));
    await rm(join(models, 'small', 'c_lost', 'expected.safetensors'));
    await writeFile(join(models, 'small', 'd_other', 'config.json'), '{"model_type": "mamba"}');
    await rm(join(models, 'small', 'd_other', 'config_v4.json'));

    const { code, lines } = await conformance(models, '--simd=simd128');
    expect(code).toBe(1);
    const failed = lines.flatMap((line) => /^FAIL (.+?): .+/.exec(line)?.[1] ?? []);
    const names = ['exact', 'prompt', 'op', 'output', 'shape', 'input', 'cases[6]'];
    const inBoth = ['config.json', 'config_v4.json'].flatMap((config) => names.map((name) => `b_wrong/${name} (${config})`));
    expect(failed).toEqual([...inBoth, 'c_lost/cases.json', 'd_other/config.json']);
    expect(lines.at(-1)).toBe('6 passed, 16 failed');
    for (const line of lines) expect(line).not.toMatch(/undefined|not a function|not iterable/);

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
