import { load, type Multihead } from 'multihead';
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { beforeAll, describe, expect, it } from 'vitest';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import type { ForwardInput } from '../../src/attention/messages.js';
import { cPlusPlus, fileName, javaScript } from '../../src/sections/use_it/code.js';
import { sentenceFile } from '../../src/sections/use_it/sentence_file.js';

const tokens = ['the', 'black', 'cat', 'sat', 'on', 'the', 'mat'];
const input = (bend: Partial<Bend>, causal: boolean): ForwardInput => ({
  ...{ tokens, heads: ['previous', 'first', 'same', 'nearby'], causal, bend: { ...unbent, ...bend }, splitHeads: 8 },
});
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
    const text = javaScript({ tokens: 7, heads: 4, causal, bend: result.bend, head, query });
    writeFileSync(program, text.replace(fileName, `${folder}${name}.safetensors`));
    writeFileSync(`${folder}${name}.safetensors`, sentenceFile(result));
    const printed = execFileSync(process.execPath, [program], { encoding: 'utf8' }).trim();
    const row = result.trace.weights.data.subarray((head * 7 + query) * 7, (head * 7 + query + 1) * 7);
    expect(printed).toBe(Array.from(row, (weight) => weight.toFixed(4)).join(' '));
  });

  it('says that weights set by hand are left out', () => {
    const edits = [{ head: 0, query: 1, key: 0, weight: 1 }];
    const shown = { tokens: 7, heads: 4, causal: true, bend: { ...unbent, edits }, head: 0, query: 1 };
    for (const write of [javaScript, cPlusPlus]) expect(write(shown)).toMatch(/set by hand on the page are not set here/);
  });
});

// tests/native/page_code.test.mjs compiles and runs these programs, and compares their output.
describe('the programs that are run natively', () => {
  const shown = { tokens: 7, heads: 4, causal: true, bend: { ...unbent, ...bent }, head: 2, query: 5 };
  const plain = { tokens: 7, heads: 4, causal: false, bend: { ...unbent, divisor: 'none' as const }, head: 0, query: 1 };

  it.each([
    ['bent', shown],
    ['plain', plain],
  ] as const)('are what the page shows: %s', async (name, what) => {
    await expect(cPlusPlus(what)).toMatchFileSnapshot(`programs/${name}.cc.txt`);
    await expect(javaScript(what)).toMatchFileSnapshot(`programs/${name}.mjs.txt`);
  });
});
