import { load } from 'multihead';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { attend, type AttendInput } from '../../src/attention/attend.js';
import { cPlusPlus, javaScript, jobPrograms, maskProgram } from '../../src/story/program.js';
import { Peek } from '../../src/training/peek.js';

/** A folder inside the checkout, where Node finds the package. */
const folder = fileURLToPath(new URL('../../../build/page-code/', import.meta.url));
const matrix = (rows: number, cols: number, seed: number) => ({
  data: Float32Array.from({ length: rows * cols }, (_, i) => Math.sin(seed + 1.7 * i) * 2),
  shape: [rows, cols],
});
const input: AttendInput = { q: matrix(1, 3, 1), k: matrix(7, 3, 2), v: matrix(7, 2, 3), scale: 0.5, causal: true };

function printedBy(name: string, program: string): string {
  mkdirSync(folder, { recursive: true });
  writeFileSync(`${folder}${name}.mjs`, program);
  return execFileSync(process.execPath, [`${folder}${name}.mjs`], { encoding: 'utf8' }).trim();
}

describe('the program of a scene', () => {
  it.each([
    ['story', input],
    ['usual', { ...input, scale: undefined, causal: false }],
    ['rows', { ...input, q: matrix(3, 3, 4) }],
  ] as const)('prints the weights on the screen: %s', async (name, given) => {
    const { weights } = attend(await load(), given);
    expect(printedBy(name, javaScript(given))).toBe(Array.from(weights, (weight) => weight.toFixed(4)).join(' '));
  });

  it('about the mask prints the shares of the screen', async () => {
    const peek = new Peek(await load());
    const { masked, peeking } = peek.run(100);
    peek.dispose();
    expect(printedBy('mask', maskProgram(100))).toBe([masked, peeking].map(({ writing }) => writing.toFixed(3)).join('\n'));
  });

  it('about jobs trains the heads of the screen', () => {
    expect(Number(printedBy('jobs', jobPrograms(12)[0]!))).toBeGreaterThan(0.98);
  }, 60_000);

  // tests/native/page_code.test.mjs compiles the C++ program, and compares the numbers that both programs print.
  it('is the one that the native tests compile', async () => {
    await expect(javaScript(input)).toMatchFileSnapshot('../sections/programs/story.mjs.txt');
    await expect(cPlusPlus(input)).toMatchFileSnapshot('../sections/programs/story.cc.txt');
  });
});

describe('one call of attention', () => {
  it('gives products, weights and outputs of all rows', async () => {
    const { q, k, v } = input;
    const { products, weights, output } = attend(await load(), { ...input, causal: false });
    const dot = (key: number): number => [0, 1, 2].reduce((sum, c) => sum + q.data[c]! * k.data[3 * key + c]!, 0);
    const exps = Array.from({ length: 7 }, (_, key) => Math.exp(0.5 * dot(key)));
    const total = exps.reduce((a, b) => a + b);
    exps.forEach((each, key) => {
      expect(products[key]).toBeCloseTo(dot(key), 5);
      expect(weights[key]).toBeCloseTo(each / total, 5);
    });
    [0, 1].forEach((c) =>
      expect(output[c]).toBeCloseTo(
        exps.reduce((sum, each, key) => sum + (each / total) * v.data[2 * key + c]!, 0),
        5,
      ),
    );
  });
});
