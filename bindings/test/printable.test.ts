// Text from outside in error messages: short, on one line, and in its own order.

import { MultiheadError, readSafetensors, writeSafetensors, type SafetensorsSource } from 'multihead';
import { describe, expect, it } from 'vitest';
import { printable, quoted } from '../src/runtime/text.ts';
import { builds, errorOf, loadBuild } from './builds.ts';

/** Starts with a line feed and U+202E, which writes from right to left. */
const huge = `x\n\u202e${'y'.repeat(1_000_000)}`;
const controls = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;

function expectShort(error: MultiheadError): void {
  for (const part of [error.message, error.argument, error.expected, error.got]) {
    expect(part.length, part.slice(0, 300)).toBeLessThan(600);
    expect(part).not.toMatch(controls);
  }
  expect(error.message).toMatch(/x\\(n|u000a)\\u202eyyy/);
}

describe('printable()', () => {
  it('keeps text of every script', () => {
    const text = 'h.0.attn \\u202e é ⊤ 注意 👩‍🚀 ﷽';
    expect(printable(text)).toBe(text);
    expect(printable('')).toBe('');
  });

  it('escapes controls, separators and surrogates alone, and nothing else', () => {
    const escaped: number[] = [];
    for (let code = 0; code < 0x10000; code += 1) {
      const letter = String.fromCharCode(code);
      if (printable(letter) === letter) continue;
      expect(printable(letter)).toBe(`\\u${code.toString(16).padStart(4, '0')}`);
      escaped.push(code);
    }
    const range = (first: number, last: number) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
    expect(escaped).toEqual([
      ...[...range(0, 0x1f), ...range(0x7f, 0x9f), 0x61c, ...range(0x200e, 0x200f)],
      ...[...range(0x2028, 0x202e), ...range(0x2066, 0x2069), ...range(0xd800, 0xdfff)],
    ]);
    expect(printable('a\0b\n\x1b[2J \ud83d')).toBe('a\\u0000b\\u000a\\u001b[2J \\ud83d');
  });

  it('cuts between characters', () => {
    expect(printable('x'.repeat(80))).toBe('x'.repeat(80));
    expect(printable('x'.repeat(81))).toBe(`${'x'.repeat(80)}…`);
    expect(printable('x👩y', 2)).toBe('x…');
    expect(printable('x👩y', 3)).toBe('x👩…');
    const once = printable('x'.repeat(200), 100);
    expect(printable(once, 100)).toBe(once);
  });

  it('is in quotation marks as in JSON', () => {
    expect(quoted('a"b\n\u2028')).toBe('"a\\"b\\n\\u2028"');
    expect(quoted('x'.repeat(99), 3)).toBe('"xxx…"');
  });
});

describe('errors', () => {
  it('shorten and escape what they are made of', () => {
    expectShort(new MultiheadError('E_FORMAT', { argument: huge, expected: 'a', got: quoted(huge) }));
    const message = new MultiheadError('E_OPTION', { argument: 'a', expected: huge, got: huge, message: huge }).message;
    expect(message.length).toBeLessThan(13_000);
    expect(message).not.toMatch(controls);
  });

  const entry = (changes: object = {}) => ({ dtype: 'F32', shape: [1], data_offsets: [0, 4], ...changes });
  it.each<[string, unknown]>([
    ['a dtype', { [huge]: entry({ dtype: 'Q9' }) }],
    ['a tensor', { [huge]: 1 }],
    ['a shape', { [huge]: entry({ shape: ['a'] }) }],
    ['offsets', { [huge]: entry({ data_offsets: [0, 9] }) }],
    ['a size', { [huge]: entry({ shape: [2] }) }],
    ['the text of a dtype', { x: entry({ dtype: huge }) }],
    ['the text in place of a tensor', { x: huge }],
    ['the texts in a shape', { x: entry({ shape: [huge] }) }],
    ['a name of the metadata', { __metadata__: { [huge]: 1 }, x: entry() }],
    ['the metadata', { __metadata__: huge, x: entry() }],
    ['the header', huge],
  ])('of a safetensors file with %s that is wrong are short', (_, header) => {
    const json = new TextEncoder().encode(JSON.stringify(header));
    const file = new Uint8Array(8 + json.length + 4);
    new DataView(file.buffer).setUint32(0, json.length, true);
    file.set(json, 8);
    expectShort(errorOf(() => readSafetensors(file)));
  });

  it('of tensors that cannot be written are short', () => {
    const data = new Float32Array(1);
    for (const wrong of [
      1,
      { data, shape: [2] },
      { data: [1], shape: [1] },
      { data, shape: 'a' },
      { data: new Uint16Array(1), shape: [1], dtype: huge },
    ]) {
      expectShort(errorOf(() => writeSafetensors({ [huge]: wrong } as unknown as SafetensorsSource)));
    }
    expectShort(errorOf(() => writeSafetensors({ [`${huge}\ud83d`]: { data, shape: [1] } })));
    expectShort(errorOf(() => writeSafetensors({}, { metadata: { [huge]: 1 } as unknown as Record<string, string> })));
    expectShort(errorOf(() => writeSafetensors({}, { [huge]: 1 } as object)));
  });

  it.each(builds)('of state dicts are short, and count the names that are too many (%s)', async (simd) => {
    const mh = await loadBuild(simd);
    const layer = mh.multiHeadAttention({ embedDim: 4, numHeads: 2 });
    const zeros = (...shape: number[]) => ({ data: new Float32Array(shape.reduce((product, extent) => product * extent)), shape });
    const right = {
      in_proj_weight: zeros(12, 4),
      in_proj_bias: zeros(12),
      'out_proj.weight': zeros(4, 4),
      'out_proj.bias': zeros(4),
    };
    expectShort(errorOf(() => layer.loadStateDict({ ...right, [huge]: { data: [1], shape: [1] } as never })));
    const { got } = errorOf(() =>
      layer.loadStateDict({ ...right, ...Object.fromEntries(Array.from({ length: 521 }, (_, i) => [`extra.${i}`, zeros(1)])), [huge]: zeros(1) }),
    );
    expect(got).toMatch(/^unexpected: extra\.0, extra\.1, extra\.10, .* and 512 more$/);
    expectShort(errorOf(() => layer.loadStateDict({ ...right, [huge]: zeros(1) })));
    layer.loadStateDict(right); // the next call works
    expectShort(errorOf(() => layer.forward(zeros(1, 1, 4), { [huge]: 1 } as object)));
    expectShort(errorOf(() => mh.multiHeadAttention({ embedDim: 4, numHeads: 2, [huge]: 1 } as never)));
    layer.dispose();
  });
});
