// Compares gradients with central finite differences of the float64 reference; and tests bad arguments.

import type { AttentionGradients, FloatDType, GradientName, MaskOptions, Multihead, MultiheadErrorCode, Tensor } from 'multihead';
import { describe, expect, it } from 'vitest';
import { attentionSchema } from '../src/attention/options.ts';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled, product, randomCase, stored, type Stored } from './random_case.ts';
import * as reference from './reference.ts';

interface Call {
  readonly q: Stored;
  readonly k: Stored;
  readonly v: Stored;
  readonly options: MaskOptions & reference.ReferenceOptions;
  readonly dOut: ReturnType<typeof filled>;
}

const names: GradientName[] = ['dQ', 'dK', 'dV', 'dBias', 'dSinks', 'dQGain', 'dKGain'];

/** Returns the variable of a gradient; a missing gain is 1. */
function variable({ q, k, v, options }: Call, name: GradientName): Float64Array | undefined {
  const { bias, sinks, qkNorm } = options;
  const ones = qkNorm && new Float64Array(q.plain.shape[3] as number).fill(1);
  const numbers: Record<GradientName, ArrayLike<number> | undefined> = {
    ...{ dQ: q.plain.data, dK: k.plain.data, dV: v.plain.data, dBias: bias?.data, dSinks: sinks },
    ...{ dQGain: qkNorm?.qGain ?? ones, dKGain: qkNorm?.kGain ?? ones },
  };
  return numbers[name] && Float64Array.from(numbers[name]);
}

/** Computes Σ out · dOut after replacing one variable by `data`. */
function loss({ q, k, v, options, dOut }: Call, name: GradientName, data: Float64Array): number {
  const of = (stored: Stored, its: GradientName) => (its === name ? { shape: stored.plain.shape, data } : stored.plain);
  // The reference reads numbers of any type.
  const array = data as unknown as Float32Array;
  const { bias, qkNorm } = options;
  const { out } = reference.attention(of(q, 'dQ'), of(k, 'dK'), of(v, 'dV'), {
    ...options,
    ...(name === 'dBias' && bias && { bias: { shape: bias.shape, data } }),
    ...(name === 'dSinks' && { sinks: array }),
    ...(name === 'dQGain' && { qkNorm: { ...qkNorm, qGain: array } }),
    ...(name === 'dKGain' && { qkNorm: { ...qkNorm, kGain: array } }),
  });
  return out.reduce((sum, each, i) => sum + each * (dOut.data[i] as number), 0);
}

/** Small, because QK-norm of a short vector is steep: its eps is 1e-6. */
const step = 1e-7;

/** The derivative of the loss along a direction, by central differences. */
function derivative(call: Call, name: GradientName, direction: ArrayLike<number>): number {
  const numbers = variable(call, name) ?? new Float64Array();
  const moved = (by: number) => numbers.map((x, i) => x + by * (direction[i] as number));
  return (loss(call, name, moved(step)) - loss(call, name, moved(-step))) / (2 * step);
}

/** Computes every element of every gradient. */
function expectedGradients(call: Call): Partial<Record<GradientName, Float64Array>> {
  const entries = names.flatMap((name) => {
    const numbers = variable(call, name);
    if (numbers === undefined) return [];
    const unit = (i: number) => numbers.map((_, at) => (at === i ? 1 : 0));
    return [[name, numbers.map((_, i) => derivative(call, name, unit(i)))] as const];
  });
  return Object.fromEntries(entries);
}

/** Names of the gradients that a call has, including gradients of gains that are not given. */
const namesOf = (call: Call): GradientName[] => names.filter((name) => variable(call, name));

/** Computes the gradients, and returns copies. */
function gradientsOf(mh: Multihead, call: Call): Partial<Record<GradientName, Float32Array>> {
  const { options, dOut } = call;
  const [q, k, v] = [call.q.given, call.k.given, call.v.given];
  return mh.scope(() => {
    const { out, lse } = mh.attention(q, k, v, { ...options, return: ['lse'] });
    const inputs = { q, k, v, out, lse, dOut };
    const all = mh.attentionBackward(inputs, { ...options, return: namesOf(call) });
    return Object.fromEntries(Object.entries(all).map(([name, each]) => [name, each instanceof Float32Array ? each : each.toFloat32()]));
  });
}

interface Extents {
  batch?: number;
  heads?: number;
  numKvHeads?: number;
  queries?: number;
  keys?: number;
  valueDim?: number;
  dtype?: 'f32' | 'f16' | 'bf16';
}
const width = 4;

function callOf(options: Call['options'], extents: Extents = {}): Call {
  const { batch = 1, heads = 2, numKvHeads = heads, queries = 3, keys = 5, valueDim = 4 } = extents;
  const r = random(7);
  const tensor = (...shape: number[]) => stored(extents.dtype ?? 'f32', shape, r.floats(product(shape)));
  return {
    q: tensor(batch, heads, queries, width),
    k: tensor(batch, numKvHeads, keys, width),
    v: tensor(batch, numKvHeads, keys, valueDim),
    dOut: filled(r, batch, heads, queries, valueDim),
    options,
  };
}

const r = random(3);
const mask = { shape: [3, 5], data: new Uint8Array([1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]) };
const biased = (...shape: number[]) => filled(r, ...shape);
const sinks = new Float32Array([0.5, -1]);
const gain = () => r.floats(width).map((x) => 1 + x / 2);
const hidingBias = biased(3, 5);
hidingBias.data[2] = -Infinity;

const calls: [what: string, call: Call][] = [
  ['no options', callOf({}, { batch: 2 })],
  ['grouped heads', callOf({ scale: -0.7 }, { heads: 4, numKvHeads: 2, valueDim: 3 })],
  ['causal: top left', callOf({ causal: 'topLeft' })],
  ['rows that see no key', callOf({ causal: 'bottomRight' }, { queries: 5, keys: 3 })],
  ['a mask with a row that sees no key', callOf({ mask })],
  ['a bias for all heads, which hides a key', callOf({ bias: hidingBias })],
  ['a bias of each head and row', callOf({ bias: biased(1, 2, 3, 1) })],
  ['a bias of each key', callOf({ bias: biased(2, 1, 1, 5) }, { batch: 2 })],
  ['softcap', callOf({ softcap: 0.5 })],
  ['ALiBi', callOf({ alibi: true, causal: 'bottomRight' })],
  ['sinks', callOf({ sinks, mask })],
  ['a window', callOf({ window: { left: 1, right: 1 } })],
  ['RoPE', callOf({ rope: { style: 'half', rotaryDim: 2, qPositions: new Int32Array([4, 0, 9]) } })],
  ['QK-norm without gains', callOf({ qkNorm: { eps: 0.1 } })],
  ['QK-norm and RoPE', callOf({ qkNorm: { qGain: gain(), kGain: gain() }, rope: { style: 'interleaved' } })],
  ['dropout', callOf({ dropout: { probability: 0.5, seed: 5n } })],
  ['lengths', callOf({ kvLengths: new Int32Array([3, 0]), sinks }, { batch: 2 })],
  ['f16', callOf({ causal: 'topLeft' }, { dtype: 'f16' })],
  [
    'all of them, bf16',
    callOf(
      {
        ...{ scale: 0.8, causal: { offset: 1 }, window: { left: 3 }, softcap: 2, mask, bias: biased(3, 1) },
        ...{ alibi: new Float32Array([0.5, 0.1]), sinks, kvLengths: new Int32Array([4]) },
        ...{ dropout: { probability: 0.25, seed: 1 }, qkNorm: { kGain: gain() }, rope: { style: 'half' } },
      },
      { dtype: 'bf16', numKvHeads: 1 },
    ),
  ],
];
const goldens = new Map<Call, ReturnType<typeof expectedGradients>>();
const golden = (call: Call) => {
  const known = goldens.get(call) ?? expectedGradients(call);
  goldens.set(call, known);
  return known;
};

describe.each(builds)('attentionBackward, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it.each(calls)('gives the derivatives: %s', (_, call) => {
    const expected = golden(call);
    const actual = gradientsOf(mh, call);
    expect(Object.keys(actual)).toEqual(Object.keys(expected));
    for (const name of namesOf(call)) {
      const off = reference.maxDifference(actual[name] ?? [], expected[name] ?? []);
      expect(off, name).toBeLessThan(1e-5);
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it(`agrees with derivatives in random directions (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(8); round += 1) {
      const { q, k, v, options, extents, label } = randomCase(runSeed + round);
      const { return: _, capture: __, outDtype: ___, ...masking } = options;
      const source = random(runSeed + round + 1);
      const [batch, heads, queries] = extents;
      const dOut = filled(source, batch, heads, queries, v.plain.shape[3] as number);
      const call: Call = { q, k, v, options: masking, dOut };
      const actual = gradientsOf(mh, call);
      for (const name of namesOf(call)) {
        const gradient = actual[name] ?? new Float32Array();
        const direction = source.floats(gradient.length);
        const expected = derivative(call, name, direction);
        const sum = gradient.reduce((total, each, i) => total + each * (direction[i] as number), 0);
        // The exact dQ and dK of a row that sees a single key are zero. Their rounding errors are up to 3e-6 an element.
        const size = gradient.reduce((total, each) => total + Math.abs(each), 1 + gradient.length / 16);
        expect(Math.abs(sum - expected), `${name}, ${label}`).toBeLessThan(2e-5 * size);
      }
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it.each(calls)('gives zero for a dOut of zero: %s', (_, call) => {
    const zero = { shape: call.dOut.shape, data: new Float32Array(call.dOut.data.length) };
    for (const [name, each] of Object.entries(gradientsOf(mh, { ...call, dOut: zero }))) {
      expect(
        each.every((x) => x === 0),
        name,
      ).toBe(true);
    }
  });

  it('ignores hidden keys and values that are NaN', () => {
    const call = callOf({ kvLengths: new Int32Array([3]), bias: biased(3, 5) });
    const clean = gradientsOf(mh, call);
    for (const { plain } of [call.k, call.v]) {
      const data = plain.data as Float32Array;
      for (const head of [0, 1]) data.fill(NaN, (head * 5 + 3) * width, (head + 1) * 5 * width);
    }
    expect(gradientsOf(mh, call)).toEqual(clean);
    const { dK = [] } = clean;
    expect([...dK.slice(3 * width, 5 * width)]).toEqual(Array(2 * width).fill(0));
  });

  /** Makes the inputs and results of a call; they belong to the open scope. */
  function open(options: MaskOptions, { q, k, v, dOut } = callOf({})) {
    const [x, y, z] = [q.given, k.given, v.given];
    return { q: x, k: y, v: z, ...mh.attention(x, y, z, { ...options, return: ['lse'] }), dOut };
  }

  it('returns dQ, dK and dV, and the gradients of the options given', () => {
    mh.scope(() => {
      const bias = biased(3, 5);
      const keysOf = (options: MaskOptions) => Object.keys(mh.attentionBackward(open(options), options));
      expect(keysOf({})).toEqual(['dQ', 'dK', 'dV']);
      expect(keysOf({ qkNorm: {}, alibi: true, mask })).toEqual(['dQ', 'dK', 'dV']);
      expect(keysOf({ bias, sinks })).toEqual(['dQ', 'dK', 'dV', 'dBias', 'dSinks']);
      expect(keysOf({ qkNorm: { kGain: gain() } })).toEqual(['dQ', 'dK', 'dV', 'dKGain']);
      expect(keysOf({ qkNorm: { qGain: gain() } })).toEqual(['dQ', 'dK', 'dV', 'dQGain']);
    });
  });

  it('returns only the gradients named, with the same bits', () => {
    mh.scope(() => {
      const options = { bias: biased(1, 2, 1, 5), sinks, qkNorm: { qGain: gain(), kGain: gain() } };
      const inputs = open(options);
      const all = mh.attentionBackward(inputs, options);
      const bits = (each: AttentionGradients[GradientName] | undefined) => (each instanceof Float32Array ? each : each?.toFloat32());
      expect(all.dBias?.shape).toEqual([1, 2, 1, 5]);
      expect([all.dSinks?.length, all.dQGain?.length, all.dKGain?.length]).toEqual([2, 4, 4]);
      for (const wanted of [['dV'], ['dQ', 'dQGain'], ['dKGain', 'dK'], ['dBias'], ['dSinks'], []] as const) {
        const some: Partial<AttentionGradients> = mh.attentionBackward(inputs, {
          ...options,
          return: wanted as readonly GradientName[],
        });
        expect(new Set(Object.keys(some))).toEqual(new Set(wanted));
        for (const name of wanted) expect(bits(some[name]), name).toEqual(bits(all[name]));
      }
    });
  });

  it('writes to given tensors, and overwrites what they hold', () => {
    mh.scope(() => {
      const bias = biased(3, 5);
      const inputs = open({ bias });
      const fresh = mh.attentionBackward(inputs, { bias });
      const out = {
        dQ: mh.tensor(new Float32Array(24).fill(NaN), [1, 2, 3, 4]),
        dBias: mh.tensor(new Float32Array(15).fill(NaN), [3, 5]),
      };
      const { live } = mh.memory();
      const given = mh.attentionBackward(inputs, { bias, out });
      expect(mh.memory().live).toBe(live + 2);
      expect(given.dQ).toBe(out.dQ);
      expect(given.dBias).toBe(out.dBias);
      for (const name of ['dQ', 'dK', 'dV', 'dBias'] as const) {
        expect(given[name]?.data, name).toEqual(fresh[name]?.data);
      }
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('takes a whole result of attention(), and tensors in any float dtype', () => {
    mh.scope(() => {
      const x = mh.tensor(r.floats(24), [1, 2, 3, 4]);
      const result = mh.attention(x, x, x, {
        ...{ causal: 'topLeft', outDtype: 'bf16', dropout: { probability: 0.5 } },
        ...{ return: ['lse', 'weights', 'dropoutMask'], capture: [{ stage: 'raw' }] },
      });
      const dOut = mh.tensor(r.floats(24), [1, 2, 3, 4], { dtype: 'f16' });
      const inputs = { q: x, k: x, v: x, ...result, dOut };
      const options = { causal: 'topLeft', dropout: { probability: 0.5 } } as const;
      const { dQ } = mh.attentionBackward(inputs, options);
      const floats = (tensor: Tensor<FloatDType>) => ({ shape: tensor.shape, data: tensor.toFloat32() });
      const same = mh.attentionBackward({ ...inputs, out: floats(result.out), dOut: floats(dOut) }, options);
      expect(dQ.data).toEqual(same.dQ.data);
    });
  });

  it.each([
    ['no queries', { queries: 0 }],
    ['no keys', { keys: 0 }],
    ['no batch entries', { batch: 0 }],
    ['values of width 0', { valueDim: 0 }],
  ])('takes %s', (_, extents: Extents) => {
    mh.scope(() => {
      const { batch = 1, queries = 3, keys = 5 } = extents;
      const options = { bias: biased(1, 1, queries, keys), sinks };
      const call = callOf(options, extents);
      const { dQ, dK, dV, dBias, dSinks } = mh.attentionBackward(open(options, call), options);
      const zeros = [dQ.data, dK.data, dV.data, dBias?.data, dSinks];
      expect(zeros.every((each) => each?.every((x) => x === 0))).toBe(true);
      expect(dQ.shape).toEqual([batch, 2, queries, width]);
      expect(dK.shape).toEqual([batch, 2, keys, width]);
    });
  });

  it('of the parts of the keys, from their merged results, add up to those of the whole', () => {
    const [q, dOut] = [filled(random(1), 1, 2, 3, 4), filled(random(2), 1, 2, 3, 4)];
    const parts = [2, 3].map((keys, i) => ({
      k: filled(random(3 + i), 1, 2, keys, 4),
      v: filled(random(5 + i), 1, 2, keys, 4),
    }));
    mh.scope(() => {
      const [a, b] = parts.map(({ k, v }) => mh.attention(q, k, v, { return: ['lse'] }));
      if (a === undefined || b === undefined) throw new Error('two parts');
      mh.mergeAttention(a, b);
      const of = (i: number, checkLse?: boolean) => mh.attentionBackward({ q, ...(parts[i] as (typeof parts)[number]), ...a, dOut }, { checkLse });
      expectRefused(mh, () => of(0), 'E_OPTION', 'lse');
      expectRefused(mh, () => of(0, true), 'E_OPTION', 'lse');
      const [first, second] = [of(0, false), of(1, false)];

      const joined = (name: 'k' | 'v') => {
        const data = [0, 1].flatMap((head) =>
          parts.flatMap(({ [name]: { data: from, shape } }) => {
            const floats = (shape[2] ?? NaN) * 4;
            return [...from.subarray(head * floats, (head + 1) * floats)];
          }),
        );
        return { shape: [1, 2, 5, 4], data: Float32Array.from(data) };
      };
      const whole = mh.attentionBackward({ q, k: joined('k'), v: joined('v'), ...a, dOut });
      const dQ = second.dQ.toFloat32();
      first.dQ.toFloat32().forEach((x, i) => expect(x + (dQ[i] ?? NaN)).toBeCloseTo(whole.dQ.toFloat32()[i] ?? NaN, 5));
      const dK = whole.dK.toFloat32();
      first.dK.toFloat32().forEach((x, i) => expect(x).toBeCloseTo(dK[Math.floor(i / 8) * 20 + (i % 8)] ?? NaN, 5));
    });
  });

  describe('refuses', () => {
    const anything = (value: unknown) => value as never;
    const call = callOf({});
    const { q, k, v } = { q: call.q.given, k: call.k.given, v: call.v.given };
    const plain = (...shape: number[]) => filled(random(5), ...shape);
    const inputs = { q, k, v, out: plain(1, 2, 3, 4), lse: plain(1, 2, 3), dOut: plain(1, 2, 3, 4) };
    const refused = (changes: object, options: object, code: MultiheadErrorCode, argument: string, ...words: (string | RegExp)[]) =>
      expectRefused(mh, () => mh.attentionBackward(anything({ ...inputs, ...changes }), anything(options)), code, argument, ...words);

    it.each<[string, number[], ...string[]]>([
      ['q', [2, 3, 4], '(B, H_q, N_q, d_k)'],
      ['k', [1, 2, 5, 3], '(1, 2, 5, 3)'],
      ['v', [1, 2, 6, 4], '(1, 2, 6, 4)'],
      ['out', [1, 2, 3, 5], '(1, 2, 3, 4)', '(1, 2, 3, 5)'],
      ['out', [6, 4], '(B, H_q, N_q, d_v)'],
      ['lse', [1, 2, 4], '(1, 2, 3)', '(1, 2, 4)'],
      ['lse', [6], '(B, H_q, N_q)'],
      ['dOut', [1, 3, 2, 4], '(1, 2, 3, 4)', '(1, 3, 2, 4)'],
    ])('a %s of shape %j', (name, shape, ...words) => {
      refused({ [name]: plain(...shape) }, {}, 'E_SHAPE', name, ...words);
    });

    it.each(['q', 'k', 'v', 'out', 'lse', 'dOut'])('%s missing, of the wrong kind, or disposed', (name) => {
      refused({ [name]: undefined }, {}, 'E_OPTION', name, 'undefined');
      refused({ [name]: null }, {}, 'E_OPTION', name, 'null');
      refused({ [name]: [1, 2] }, {}, 'E_OPTION', name, /number\[\]/);
      refused({ [name]: { shape: [1], data: new Float64Array(1) } }, {}, 'E_OPTION', name, 'Float64Array');
      const bool = mh.tensor(new Uint8Array(24), [1, 2, 3, 4]);
      refused({ [name]: bool }, {}, 'E_OPTION', name, '"bool"');
      bool.dispose();
      refused({ [name]: bool }, {}, 'E_DISPOSED', name);
    });

    it('inputs that do not exist, or are none', () => {
      refused({ dout: inputs.dOut }, {}, 'E_OPTION', 'dout', 'dOut');
      const none = (given: unknown) => () => mh.attentionBackward(anything(given));
      expectRefused(mh, none(undefined), 'E_OPTION', 'q');
      expectRefused(mh, none([]), 'E_OPTION', 'inputs');
      refused({ lse: undefined }, {}, 'E_OPTION', 'lse', "return: ['lse']");
      refused({ lse: { ...inputs.lse, data: new Uint16Array(6), dtype: 'f16' } }, {}, 'E_OPTION', 'lse');
    });

    type Wrong = [options: object, code: MultiheadErrorCode, argument: string, ...(string | RegExp)[]];
    const wrongOptions: Wrong[] = [
      [{ outDtype: 'f16' }, 'E_OPTION', 'outDtype', 'f32'],
      [{ capture: [] }, 'E_OPTION', 'capture'],
      [{ attnMask: mask }, 'E_OPTION', 'attnMask', 'mask'],
      [{ scale: NaN }, 'E_OPTION', 'scale'],
      [{ causal: true }, 'E_OPTION', 'causal', 'topLeft'],
      [{ sinks: new Float32Array(3) }, 'E_SHAPE', 'sinks', '2', '3'],
      [{ bias: plain(4, 5) }, 'E_SHAPE', 'bias'],
      [{ return: 'dQ' }, 'E_OPTION', 'return', 'dQ, dK, dV, dBias, dSinks, dQGain, dKGain'],
      [{ return: ['lse'] }, 'E_OPTION', 'return', '"lse"'],
      [{ return: ['dBias'] }, 'E_OPTION', 'dBias', /the call has no bias/],
      [{ return: ['dQ', 'dSinks'] }, 'E_OPTION', 'dSinks', /the call has no sinks/],
      [{ return: ['dQ', 'dQGain'] }, 'E_OPTION', 'dQGain', /qkNorm is not enabled/],
      [{ return: ['dV', 'dKGain'] }, 'E_OPTION', 'dKGain', /qkNorm is not enabled/],
      [{ return: ['dQGain'], qkNorm: {} }, 'E_OPTION', 'dQGain', 'dQ with dQGain'],
      [{ return: ['dQ', 'dKGain'], qkNorm: {} }, 'E_OPTION', 'dKGain', 'dK with dKGain'],
      [{ checkLse: 0 }, 'E_OPTION', 'checkLse', '0'],
      [{ out: 3 }, 'E_OPTION', 'out', 'dQ, dK, dV, dBias'],
      [{ out: { dSinks: new Float32Array(2) }, sinks }, 'E_OPTION', 'dSinks', 'dBias'],
      [{ out: { dQ: plain(1, 2, 3, 4) } }, 'E_OPTION', 'out.dQ', 'same load()'],
    ];
    const named = wrongOptions.map((row): [string, Wrong] => [Object.keys(row[0]).join(), row]);
    it.each(named)('wrong options: %s', (_, [options, ...error]) => {
      refused({}, options, ...error);
    });

    it.each([...Object.keys(attentionSchema), 'return', 'out'])('null for %s', (name) => {
      refused({}, { [name]: null }, 'E_OPTION', name, 'null');
    });

    it('outputs that do not fit, are not returned, or share memory', async () => {
      const other = await loadBuild(simd);
      using foreign = other.zeros([1, 2, 3, 4]);
      mh.scope(() => {
        const dQ = mh.zeros([1, 2, 3, 4]);
        const half = mh.zeros([1, 2, 3, 4], { dtype: 'f16' });
        const into = (out: object, changes: object = {}, options: object = {}) => [changes, { ...options, out }] as const;
        refused(...into(dQ), 'E_OPTION', 'out', 'dQ, dK, dV, dBias', 'a tensor');
        refused(...into({ dK: dQ }), 'E_SHAPE', 'out.dK', '(1, 2, 5, 4)', '(1, 2, 3, 4)');
        refused(...into({ dQ: half }), 'E_OPTION', 'out.dQ', '"f32"', '"f16"');
        refused(...into({ dQ: foreign }), 'E_OPTION', 'out.dQ', 'another');
        refused(...into({ dBias: dQ }), 'E_OPTION', 'out.dBias', 'dQ, dK, dV');
        refused(...into({ dQ }, {}, { return: ['dK'] }), 'E_OPTION', 'out.dQ', 'dK');
        for (const name of ['q', 'out', 'dOut']) {
          refused(...into({ dQ }, { [name]: dQ }), 'E_OPTION', 'out.dQ', `same as ${name}`);
          refused(...into({ dQ: dQ.reshape([1, 2, 3, 4]) }, { [name]: dQ }), 'E_OPTION', 'out.dQ');
        }
        const dK = mh.zeros([1, 2, 5, 4]);
        refused(...into({ dK, dV: dK }), 'E_OPTION', 'out.dV', 'same as out.dK');
        const bias = mh.zeros([3, 5]);
        refused(...into({ dBias: bias }, {}, { bias }), 'E_OPTION', 'out.dBias', 'same as bias');
        dQ.dispose();
        refused(...into({ dQ }), 'E_DISPOSED', 'out.dQ');
      });
    });

    it('a tensor that the reading of a later argument disposes', () => {
      const given = mh.zeros([1, 2, 3, 4]);
      const before = mh.memory();
      const late = {
        shape: [1, 2, 3, 4],
        get data() {
          given.dispose();
          return new Float32Array(24);
        },
      };
      expect(() => mh.attentionBackward({ ...inputs, q: given, dOut: late })).toThrow(/disposed/);
      expect(mh.memory().live).toBe(before.live - 1);
    });
  });
});
