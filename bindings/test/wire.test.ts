// The interface between TypeScript and the core, which tables.mjs and CMake generate from wire.inc.

import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path/posix';
import { load } from 'multihead';
import { describe, expect, it } from 'vitest';
import type { Count, Int32, Int64, Operand, Uint32 } from '../src/types/wire.ts';
import { wireVersion } from '../src/generated/tables.ts';
import type { BackwardPart, WireFunctions } from '../src/generated/wire.ts';
import { builds, errorOf, expectWorks, openBuild } from './builds.ts';

const source = new URL('../src/', import.meta.url);

describe.each(builds)('the wire of %s', (simd) => {
  it.each([
    ['one number more than the call reads', 1],
    ['one number less', -1],
    ['no number at all', Number.NEGATIVE_INFINITY],
  ])('refuses %s, and the next call works', async (_, difference) => {
    let change = 0;
    const { mh } = await openBuild(simd, (raw) => ({
      ...raw,
      get HEAPU8() {
        return raw.HEAPU8;
      },
      _multihead_attention() {
        const block = new Float64Array(raw.HEAPU8.buffer, raw.argumentBlock(), 1);
        block[0] = Math.max((block[0] as number) + change, 0);
        return raw._multihead_attention();
      },
    }));
    const x = { shape: [1, 1, 1, 2], data: new Float32Array([1, 2]) };
    change = difference;
    const error = errorOf(() => mh.attention(x, x, x));
    expect(error.code).toBe('E_FATAL');
    expect(error.message).toMatch(/package and its \.wasm disagree on a call/);
    change = 0;
    expectWorks(mh);
  });

  it('has the version of the tables that the package was made with', async () => {
    const wasm = readFileSync(new URL(`../dist/multihead-${simd}.wasm`, import.meta.url));
    const module = await WebAssembly.compile(new Uint8Array(wasm));
    const [section] = WebAssembly.Module.customSections(module, 'multihead');
    expect(wireVersion).toMatch(/^[0-9a-f]{8}$/);
    expect(new TextDecoder().decode(section)).toContain(` wire ${wireVersion} `);
    await expect(load({ simd })).resolves.toBeDefined();
  });
});

/** Compiled but never run: each marked line must be a compiler error. */
export function uncheckedIntegers(raw: WireFunctions, checked: Count, any: number): void {
  raw.moduleCacheTruncate(checked, checked);
  // @ts-expect-error not checked
  raw.moduleCacheTruncate(checked, any);
  // @ts-expect-error 64 bits for 32
  raw.moduleCacheTruncate(checked, checked as Int64);
  // @ts-expect-error a sign
  raw._multihead_release(checked as Int32);
  // @ts-expect-error no sign
  raw.cacheClear(checked as Uint32);
  // @ts-expect-error not checked
  const extents: Operand['shape'] = [checked, any];
  // @ts-expect-error not checked
  const part: BackwardPart = { firstBatch: checked, firstHead: checked, jobs: any };
  void [extents, part];
}

it('no whole number crosses that the compiler lets through unchecked', () => {
  const wire = ['wire', 'gpu_wire'].map((name) => readFileSync(new URL(`generated/${name}.ts`, source), 'utf8')).join('');
  const types = { int32_t: 'Int32', uint32_t: 'Uint32', int64_t: 'Int64', double: 'number', bool: 'boolean' };
  const written = readFileSync(new URL('../wire.inc', import.meta.url), 'utf8');
  const functions = [...written.matchAll(/^WIRE_(?:CORE_|SHARED_|PLANNED_|GPU_)?FUNCTION\((\w+), \w+, \w+\((.*)\)\)/gm)];
  expect(functions.length).toBeGreaterThan(50);
  for (const [, name, parameters = ''] of functions) {
    const typed = parameters.replaceAll(/(\w+) (\w+)/g, (_, type: keyof typeof types, parameter) => `${parameter}: ${types[type]}`);
    expect(wire).toContain(`  ${name}(${typed}): `);
  }
  const blocks = written.split(/^(?=WIRE_)/m).filter((block) => /^WIRE_(RECORD|CALL)\(/.test(block));
  const rows = blocks.flatMap((block) => [...block.matchAll(/WIRE_FIELD\((u?int\d+_t), ([^)]+)\)/g)]);
  const fields = rows.flatMap(([, type = '', members = '']) => members.split(', ').map((member) => [type, member] as const));
  expect(fields.length).toBeGreaterThan(50);
  for (const [type, member] of fields) {
    const name = member.replace(/[._](\w)/g, (_, letter: string) => letter.toUpperCase());
    const javascript = type === 'uint64_t' ? 'Whole64' : types[type as keyof typeof types];
    expect(wire).toMatch(new RegExp(`^  ${name}: ${javascript}[;,]$`, 'm'));
  }
});

it('no file of src imports itself by way of others, not even a type', () => {
  const imports = new Map<string, string[]>();
  for (const name of readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))) {
    const text = readFileSync(new URL(name, source), 'utf8');
    const from = [...text.matchAll(/from '(\.[^']+)\.js'/g)].map(([, file]) => join(dirname(name), `${file}.ts`));
    imports.set(name, from);
  }
  expect(imports.get('runtime/raw.ts')).toContain('generated/wire.ts');
  const done = new Set<string>();
  const visit = (name: string, path: readonly string[]): void => {
    expect(path, `${[...path, name].join(' > ')}`).not.toContain(name);
    if (done.has(name)) return;
    for (const next of imports.get(name) ?? []) visit(next, [...path, name]);
    done.add(name);
  };
  for (const name of imports.keys()) visit(name, []);
});
