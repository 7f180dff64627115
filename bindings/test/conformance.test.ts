// The command itself, on a small pack of its own: what passes, what is wrong, what is not supported.

import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

const script = fileURLToPath(new URL('../conformance.mjs', import.meta.url));

/** Exit code and output. */
function conformance(...args: string[]): Promise<{ code: number; lines: string[]; error: string }> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [script, ...args], (_, stdout, stderr) => {
      resolve({ code: child.exitCode ?? -1, lines: stdout.trimEnd().split('\n'), error: stderr });
    });
  });
}

/** A safetensors file of float tensors. */
function safetensors(tensors: Record<string, { shape: number[]; data: number[] }>): Buffer {
  let offset = 0;
  const entries = Object.entries(tensors).map(([name, { shape, data }]) => {
    const data_offsets = [offset, (offset += 4 * data.length)];
    return [name, { dtype: 'F32', shape, data_offsets }];
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

  it('counts what passes, and gives a reason for what does not', async () => {
    const attrs = { causal: false, align: 'top_left', offset: 0, scale: null, softcap: 0 };
    const tolerance = { atol: 0, rtol: 0 };
    const entry = { op: 'attention', attrs, inputs: { q: 'x', k: 'x', v: 'x' }, tolerance };
    const close = { out: { atol: 1e-6, rtol: 0 } };
    const cases = [
      { ...entry, name: 'right', outputs: { out: 'out' }, output_tolerance: close },
      { ...entry, name: 'wrong', outputs: { out: 'wrong' }, output_tolerance: close },
      { ...entry, name: 'capped', attrs: { ...attrs, softcap: 2 }, outputs: { out: 'out' } },
      { ...entry, name: 'other', op: 'attention_varlen', outputs: { out: 'out' } },
      { ...entry, name: 'shape', outputs: { out: 'short' } },
      { ...entry, name: 'lost', outputs: { out: 'lost' } },
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
      'FAIL small/capped: not supported yet: softcap [simd128]',
      'FAIL small/other: not supported yet: op attention_varlen [simd128]',
      'FAIL small/shape: out has shape (1,1,1,2), expected (1,1,1,1) [simd128]',
      'FAIL small/lost: tensor lost is not in the file [simd128]',
      'simd128: 1 passed, 5 failed',
      '1 passed, 5 failed',
    ]);

    const both = await conformance(folder);
    expect(both.lines.slice(-2)).toEqual(['relaxed: 1 passed, 5 failed', '2 passed, 10 failed']);
  });

  it('refuses a folder without cases, and options that it does not have', async () => {
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
});
