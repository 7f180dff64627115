import { load, type Multihead } from 'multihead';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import type { ForwardInput, GivenHeads } from '../../src/attention/messages.js';
import { cPlusPlus, fileName, javaScript } from '../../src/sections/use_it/code.js';
import { sentenceFile } from '../../src/sections/use_it/sentence_file.js';

const tokens = ['the', 'black', 'cat', 'sat', 'on', 'the', 'mat'];
const input = (bend: Partial<Bend>, causal: boolean): ForwardInput => ({
  ...{ tokens, heads: ['previous', 'first', 'same', 'nearby'], causal, bend: { ...unbent, ...bend } },
});
const size = { tokens: 7, embedDim: 64, headDim: 16, bias: false };
/** A folder inside the checkout, where Node finds the package. */
const folder = fileURLToPath(new URL('../../../build/page-code/', import.meta.url));
const bent: Partial<Bend> = { window: 2, temperature: 2.5, divisor: 'model', muted: [1], withoutOutput: true };

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
  mkdirSync(folder, { recursive: true });
});

describe('the program in JavaScript', () => {
  it.each([
    ['plain', {}, false],
    ['causal', {}, true],
    ['bent', bent, true],
    ['undivided', { divisor: 'none' }, false],
  ] as const)('prints the weights on the screen: %s', (name, bend, causal) => {
    const result = createForward(mh)(input(bend, causal));
    const [head, query] = [2, 5];
    const program = `${folder}${name}.mjs`;
    const text = javaScript({ ...size, heads: 4, causal, bend: result.bend, head, query });
    writeFileSync(program, text.replace(fileName, `${folder}${name}.safetensors`));
    writeFileSync(`${folder}${name}.safetensors`, sentenceFile(result));
    const printed = execFileSync(process.execPath, [program], { encoding: 'utf8' }).trim();
    const row = result.trace.weights.data.subarray((head * 7 + query) * 7, (head * 7 + query + 1) * 7);
    expect(printed).toBe(Array.from(row, (weight) => weight.toFixed(4)).join(' '));
  });

  it('prints the weights of given heads, with biases and RoPE', () => {
    let seed = 1;
    const noise = (length: number) =>
      Float32Array.from({ length }, () => {
        seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
        return seed / 2 ** 32 - 0.5;
      });
    const weights = { qProj: noise(192), kProj: noise(192), vProj: noise(192), outProj: noise(192), inBias: noise(48), outBias: noise(12) };
    const given: GivenHeads = {
      ...{ key: 'noise', tokens, x: noise(7 * 12), embedDim: 12, headDim: 8, weights, rope: { style: 'half', base: 500 } },
      ...{ names: ['one', 'two'], line: '', layer: 0, layers: 1 },
    };
    const result = createForward(mh)({ given, tokens, heads: ['previous', 'first'], causal: true, bend: unbent });
    const what = { tokens: 7, heads: 2, embedDim: 12, headDim: 8, bias: true, rope: given.rope, causal: true, bend: unbent, head: 1, query: 5 };
    writeFileSync(`${folder}given.mjs`, javaScript(what).replace(fileName, `${folder}given.safetensors`));
    writeFileSync(`${folder}given.safetensors`, sentenceFile(result));
    const printed = execFileSync(process.execPath, [`${folder}given.mjs`], { encoding: 'utf8' }).trim();
    const row = result.trace.weights.data.subarray((7 + 5) * 7, (7 + 6) * 7);
    expect(printed).toBe(Array.from(row, (weight) => weight.toFixed(4)).join(' '));
    expect(new Set(row.subarray(0, 6)).size).toBe(6);
  });

  it('says that weights set by hand are left out', () => {
    const edits = [{ head: 0, query: 1, key: 0, weight: 1 }];
    const shown = { ...size, heads: 4, causal: true, bend: { ...unbent, edits }, head: 0, query: 1 };
    for (const write of [javaScript, cPlusPlus]) expect(write(shown)).toMatch(/set by hand on the page are not set here/);
  });
});

// tests/native/page_code.test.mjs compiles and runs these programs, and compares their output.
describe('the programs that are run natively', () => {
  const shown = { ...size, heads: 4, causal: true, bend: { ...unbent, ...bent }, head: 2, query: 5 };
  const plain = { ...size, heads: 4, causal: false, bend: { ...unbent, divisor: 'none' as const }, head: 0, query: 1 };

  const given = { ...size, heads: 4, bias: true, rope: { style: 'half', base: 500 }, causal: true, bend: unbent, head: 3, query: 6 } as const;

  it.each([
    ['bent', shown],
    ['plain', plain],
    ['given', given],
  ] as const)('are what the page shows: %s', async (name, what) => {
    await expect(cPlusPlus(what)).toMatchFileSnapshot(`programs/${name}.cc.txt`);
    await expect(javaScript(what)).toMatchFileSnapshot(`programs/${name}.mjs.txt`);
  });
});
