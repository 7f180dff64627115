import { load } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { reference } from '../../../tests/browser/reference.mjs';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { embedDim } from '../../src/attention/embedding.js';
import { createForward } from '../../src/attention/forward.js';
import type { ForwardInput, ForwardResult } from '../../src/attention/messages.js';
import { headDim, patternIds } from '../../src/attention/patterns.js';

const tokens = 'the black cat sat on the mat'.split(' ');
const plain: ForwardInput = { tokens, heads: patternIds, causal: false, bend: unbent };
const bent = (change: Partial<Bend>) => ({ bend: { ...unbent, ...change } });

let forward: (input: ForwardInput) => ForwardResult;
let live: () => number;

beforeAll(async () => {
  const mh = await load();
  forward = createForward(mh);
  live = () => mh.memory().live;
});

function expectExact({ tokens: { length: n }, heads, causal, bend, weights, trace }: ForwardResult): void {
  const wanted = reference({
    ...{ x: trace.x.data, n, embedDim, headDim, heads: heads.length, causal, weights, bend },
  });
  for (const [name, values] of Object.entries(wanted)) {
    const shown = trace[name as keyof typeof trace].data;
    expect(shown.length, name).toBe(values.length);
    const wrong = values.findIndex((value, i) =>
      value === -Infinity ? shown[i] !== value : !(Math.abs(shown[i]! - value) <= 1e-5 * Math.max(1, Math.abs(value))),
    );
    expect(wrong, `${name}: index of the first wrong number`).toBe(-1);
  }
}

describe('a forward pass', () => {
  it.each<[string, Partial<Bend>]>([
    ['nothing bent', {}],
    ['a window of 1', { window: 1 }],
    ['a window of 0', { window: 0 }],
    ['a high temperature', { temperature: 5 }],
    ['÷√d_model', { divisor: 'model' }],
    ['no divisor', { divisor: 'none' }],
    ['two muted heads', { muted: [0, 3] }],
    ['no W_O', { withoutOutput: true }],
    [
      'weights set by hand',
      {
        edits: [
          { head: 0, query: 2, key: 0, weight: 0.5 },
          { head: 0, query: 2, key: 1, weight: 0.25 },
          { head: 1, query: 6, key: 0, weight: 0.5 },
          { head: 2, query: 0, key: 0, weight: 0.3 },
          { head: 3, query: 4, key: 6, weight: 1 },
        ],
      },
    ],
    [
      'everything at once',
      {
        ...{ window: 3, temperature: 0.5, divisor: 'model', muted: [1], withoutOutput: true },
        edits: [{ head: 2, query: 5, key: 4, weight: 0.4 }],
      },
    ],
  ])('with %s equals float64 to 1e-5', (_, change) => {
    for (const causal of [false, true]) expectExact(forward({ ...plain, causal, ...bent(change) }));
  });

  it('keeps a weight that was set, and every row sums to 1', () => {
    const { trace } = forward({
      ...plain,
      causal: true,
      ...bent({ edits: [{ head: 0, query: 3, key: 1, weight: 0.75 }] }),
    });
    const { data } = trace.weights;
    expect(data[3 * 7 + 1]).toBe(0.75);
    for (let row = 0; row < data.length; row += 7) {
      expect(data.subarray(row, row + 7).reduce((a, b) => a + b)).toBeCloseTo(1, 6);
    }
    for (let key = 4; key < 7; key += 1) expect(Object.is(data[3 * 7 + key], 0)).toBe(true);
  });

  it('says what it would be with nothing bent', () => {
    expect(forward(plain).straight).toBe(null);
    const { straight } = forward({ ...plain, ...bent({ temperature: 2 }) });
    const { trace } = forward(plain);
    expect(straight!.weights.data).toEqual(trace.weights.data);
    expect(straight!.output.data).toEqual(trace.output.data);
  });

  it('gives statistics and the mean over heads', () => {
    const { statistics, meanWeights, trace } = forward({ ...plain, heads: ['previous', 'first'] });
    expect(statistics.previousToken[0]).toBeGreaterThan(0.9);
    expect(statistics.firstToken[1]).toBeGreaterThan(0.9);
    expect(statistics.entropy.length).toBe(2);
    expect(statistics.induction!.length).toBe(2);
    meanWeights.data.forEach((mean, i) => {
      expect(mean).toBeCloseTo((trace.weights.data[i]! + trace.weights.data[49 + i]!) / 2, 6);
    });
  });

  it('leaves outputs before an edited token the same, bit for bit, only if causal', () => {
    const edits = [{ head: 0, query: 3, key: 1, weight: 0.75 }];
    for (const change of [{}, { temperature: 2, window: 4 }, { edits }]) {
      for (const causal of [true, false]) {
        const earlier = (last: string) =>
          forward({ ...plain, tokens: [...tokens.slice(0, -1), last], causal, ...bent(change) })
            .trace.output.data.slice(0, 6 * embedDim)
            .join();
        expect(earlier('mat') === earlier('tree')).toBe(causal);
      }
    }
  });

  it('leaves only the module of the heads in use', () => {
    forward(plain);
    const before = live();
    for (const window of [-1, 2, 3]) forward({ ...plain, ...bent({ window, edits: [] }) });
    forward({ ...plain, heads: ['first'] });
    expect(live()).toBe(before);
  });
});

describe('heads whose weights do not fit their number', () => {
  it('are refused without keeping a module', () => {
    forward(plain);
    const before = live();
    const given = {
      ...{ key: 'wrong', tokens, x: new Float32Array(tokens.length * 4), embedDim: 4, headDim: 2, names: ['one'], line: '', layer: 0, layers: 1 },
      weights: { qProj: new Float32Array(16), kProj: new Float32Array(16), vProj: new Float32Array(16), outProj: new Float32Array(16) },
    };
    expect(() => forward({ ...plain, given, heads: patternIds.slice(0, 1) })).toThrow(/q_proj_weight/);
    // The module of the earlier call is gone, too.
    expect(live()).toBeLessThan(before);
    expectExact(forward(plain));
    expect(live()).toBe(before);
  });
});
