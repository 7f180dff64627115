// The build's last step, which reorders functions so that gzip finds more repeats.

import { readFileSync } from 'node:fs';
import { gzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { builds } from './builds.ts';

const { orderFunctions } = (await import(
  new URL('../order_functions.mjs', import.meta.url).href
)) as { orderFunctions(wasm: Uint8Array): Uint8Array };

const section = (id: number, ...content: number[]): number[] => [id, content.length, ...content];
const name = (text: string): number[] => [text.length, ...new TextEncoder().encode(text)];

/** Function 0 is imported. Function 4 is the largest, and therefore comes first afterwards. */
const small = new Uint8Array([
  ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
  ...section(1, 2, 0x60, 1, 0x7f, 1, 0x7f, 0x60, 0, 0), // (i32) -> i32, () -> ()
  ...section(2, 1, ...name('m'), ...name('f'), 0, 0),
  ...section(3, 4, 0, 0, 1, 0),
  ...section(4, 1, 0x70, 0, 2),
  ...section(6, 1, 0x7f, 1, 0x41, 5, 0x0b),
  ...section(7, 3, ...name('twice'), 0, 1, ...name('run'), 0, 4, ...name('state'), 3, 0),
  ...section(8, 3),
  ...section(9, 1, 0, 0x41, 0, 0x0b, 2, 2, 0),
  ...section(
    10,
    ...[4, ...[7, 0, 0x20, 0, 0x41, 2, 0x6c, 0x0b]], // 1: x * 2
    ...[7, 0, 0x20, 0, 0x41, 1, 0x6a, 0x0b], // 2: x + 1
    ...[8, 0, 0x41, 20, 0x10, 1, 0x24, 0, 0x0b], // 3: state = twice(20)
    // 4: table[0](twice(f(x)))
    ...[13, 0, 0x20, 0, 0x10, 0, 0x10, 1, 0x41, 0, 0x11, 0, 0, 0x0b],
  ),
  ...section(0, ...name('note'), 1, 2, 3),
]);

async function results(wasm: Uint8Array): Promise<unknown[]> {
  const imports = { m: { f: (x: number) => x - 3 } };
  const { instance } = await WebAssembly.instantiate(new Uint8Array(wasm), imports);
  const { twice, run, state } = instance.exports as unknown as {
    twice(x: number): number;
    run(x: number): number;
    state: WebAssembly.Global;
  };
  return [twice(7), run(10), state.value];
}

describe('orderFunctions', () => {
  it('moves functions and changes every reference to them', async () => {
    const ordered = orderFunctions(small);
    expect(Buffer.compare(ordered, small)).not.toBe(0);
    expect(ordered.length).toBe(small.length);
    expect(await results(small)).toEqual([14, 15, 40]);
    expect(await results(ordered)).toEqual([14, 15, 40]);
  });

  it('keeps sections that say what the module is, and leaves a module with debug names as it is', () => {
    const module = new WebAssembly.Module(new Uint8Array(orderFunctions(small)));
    const [note] = WebAssembly.Module.customSections(module, 'note');
    expect([...new Uint8Array(note as ArrayBuffer)]).toEqual([1, 2, 3]);
    const named = new Uint8Array([...small, ...section(0, ...name('name'))]);
    expect(orderFunctions(named)).toBe(named);
  });

  it('refuses what it does not know', () => {
    const unknown = small.map((byte) => (byte === 0x6c ? 0xff : byte));
    expect(() => orderFunctions(unknown)).toThrow(/instruction 0xff at \d+/);
  });

  it.each(builds)('has made the package smaller: %s', (simd) => {
    const size = (path: string) =>
      gzipSync(readFileSync(new URL(`../${path}`, import.meta.url))).length;
    const linked = size(`../build/wasm/bindings/${simd}/multihead.wasm`);
    expect(size(`dist/multihead-${simd}.wasm`)).toBeLessThan(0.97 * linked);
  });
});
