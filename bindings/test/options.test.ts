// What somebody has added to Object.prototype is no option of a call.

import { load } from 'multihead';
import { expect, it } from 'vitest';
import { expectWorks } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

const mh = await load();
const r = random(31);
const [q, k, v] = [filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8)];

class OfAClass {
  get causal(): 'topLeft' {
    return 'topLeft';
  }
}

it.each<[string, unknown]>([
  ['causal', true],
  ['softcap', 3],
  ['right', 0],
  ['out', {}],
  ['signal', AbortSignal.abort()],
  ['simd', 'simd'],
  ['extra', 1],
])('%s, added to Object.prototype', async (name, value) => {
  const attend = (): unknown[] =>
    [undefined, {}, { window: { left: 2 } }, new OfAClass()].map((options) =>
      mh.scope(() => [...mh.attention(q, k, v, options).out.data]),
    );
  const expected = attend();
  const prototype = Object.prototype as unknown as Record<string, unknown>;
  prototype[name] = value;
  try {
    expect(attend()).toEqual(expected);
    expect(await load()).toBe(mh);
    expect(await load({})).toBe(mh);
  } finally {
    delete prototype[name];
  }
  expectWorks(mh);
});
