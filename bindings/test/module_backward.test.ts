// Compares MultiHeadAttention.backward() with finite differences of the definition in float64; and tests bad arguments.

import type { ForwardOptions, MultiHeadAttentionConfig, PlainTensor } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { module as referenceModule, type ModuleCase } from './module_reference.ts';
import { random } from './random.ts';
import { filled, product } from './random_case.ts';

const [embed, queries, keys] = [8, 3, 5];
type Inputs = Record<'query' | 'key' | 'value', PlainTensor>;

interface Case {
  readonly config?: Partial<MultiHeadAttentionConfig>;
  readonly options?: ForwardOptions;
  /** Inputs in addition to the query. */
  readonly given?: readonly ('key' | 'value')[];
}

const r = random(8);
const mask = { shape: [queries, keys], data: Uint8Array.from({ length: 15 }, (_, i) => Number(i % 3 > 0)) };
const cases: [string, Case][] = [
  ['self-attention', {}],
  ['cross-attention', { given: ['key', 'value'], config: { kdim: 5, vdim: 7 } }],
  ['a key that is also the value', { given: ['key'], options: { mask } }],
  ['grouped heads, causal, without biases', { config: { numKvHeads: 1, bias: false }, options: { causal: 'topLeft' } }],
  ['RoPE, QK-norm and sinks', { config: { rope: { style: 'half' }, qkNorm: true, qkNormEps: 0.1, sinks: true } }],
  ['appended keys', { config: { addBiasKv: true, addZeroAttn: true }, given: ['key', 'value'] }],
  ['a bias, a window and a soft cap', { options: { bias: filled(r, queries, queries), window: { left: 1 }, softcap: 2 } }],
];

describe.each(builds)('backward() of a module, %s', async (simd) => {
  const mh = await loadBuild(simd);
  const make = (config: Partial<MultiHeadAttentionConfig> = {}) => {
    const module = mh.multiHeadAttention({ embedDim: embed, numHeads: 2, ...config });
    const { numHeads, numKvHeads, headDim, valueDim, kdim, vdim, outDim } = module.config;
    const [q, k, v] = [numHeads * headDim, numKvHeads * headDim, numKvHeads * valueDim];
    const separate = kdim !== embed || vdim !== embed;
    const shapes: Record<string, number[]> = {
      ...(separate ? { q_proj_weight: [q, embed], k_proj_weight: [k, kdim], v_proj_weight: [v, vdim] } : { in_proj_weight: [q + k + v, embed] }),
      ...(module.config.bias && { in_proj_bias: [q + k + v], 'out_proj.bias': [outDim] }),
      'out_proj.weight': [outDim, numHeads * valueDim],
      ...(config.addBiasKv && { bias_k: [1, 1, k], bias_v: [1, 1, v] }),
      ...(config.sinks && { sinks: [numHeads] }),
      ...(config.qkNorm && { 'q_norm.weight': [headDim], 'k_norm.weight': [headDim] }),
    };
    const pick = random(3);
    const dict = Object.fromEntries(
      Object.entries(shapes).map(([name, shape]) => {
        const gain = name.includes('norm') ? 1 : 0;
        return [name, { shape, data: pick.floats(product(shape)).map((x) => gain + x / 2) }];
      }),
    );
    module.loadStateDict(dict);
    return { module, dict };
  };

  it.each(cases)('%s', (_, { config = {}, options = {}, given = [] }) => {
    mh.scope(() => {
      const { module, dict } = make(config);
      const pick = random(4);
      const of = (tokens: number, width: number) => filled(pick, 2, tokens, width);
      const { kdim, vdim } = module.config;
      const all: Inputs = { query: of(queries, embed), key: of(keys, kdim), value: of(keys, vdim) };
      const inputs = { query: all.query, ...Object.fromEntries(given.map((name) => [name, all[name]])) };
      const dOut = of(queries, embed);
      const loss = (changed: object, parameters: object): number => {
        const each = { ...inputs, ...changed } as Inputs;
        const params = { ...dict, ...parameters } as ModuleCase['dict'];
        const { output } = referenceModule({ config: module.config, dict: params, ...each, options });
        return output.reduce((sum, x, i) => sum + x * (dOut.data[i] as number), 0);
      };
      const slope = ({ shape, data }: PlainTensor, direction: Float32Array, at: (moved: object) => number) => {
        const moved = (by: number) => at({ shape, data: Float64Array.from(data, (x, i) => x + by * (direction[i] as number)) });
        return (moved(1e-5) - moved(-1e-5)) / 2e-5;
      };
      const expectSlope = (name: string, gradient: Float32Array, of_: PlainTensor, at: (moved: object) => number) => {
        const direction = pick.floats(of_.data.length);
        const along = gradient.reduce((sum, g, i) => sum + g * (direction[i] as number), 0);
        expect(gradient, name).toHaveLength(direction.length);
        expect(Math.abs(along - slope(of_, direction, at)), name).toBeLessThan(2e-5 * Math.sqrt(direction.length));
      };

      const result = module.backward(given.length > 0 ? inputs : inputs.query, dOut, options);
      expect(Object.keys(result)).toEqual([
        'dQuery',
        ...(given.includes('key') ? ['dKey'] : []),
        ...(given.includes('value') ? ['dValue'] : []),
        'parameters',
      ]);
      const { dQuery, dKey, dValue, parameters } = result;
      for (const [name, gradient] of Object.entries({ query: dQuery, key: dKey, value: dValue })) {
        if (gradient === undefined) continue;
        const input = all[name as keyof Inputs];
        expect(gradient.shape).toEqual(input.shape);
        expectSlope(name, gradient.data, input, (moved) => loss({ [name]: moved }, {}));
      }
      expect(Object.keys(parameters).sort()).toEqual(Object.keys(dict).sort());
      for (const [name, { shape, data }] of Object.entries(parameters)) {
        const parameter = dict[name] as PlainTensor;
        expect(shape, name).toEqual(parameter.shape);
        expectSlope(name, data as Float32Array, parameter, (moved) => loss({}, { [name]: moved }));
      }
      expect(module.backward(inputs, dOut, options).parameters).toEqual(parameters);
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('computes dropout again from its seed', () => {
    mh.scope(() => {
      const { module } = make({ dropout: 0.5, outDropout: 0.5, bias: true });
      const x = filled(r, 1, 2, embed);
      const dOut = { shape: x.shape, data: new Float32Array(2 * embed).fill(1) };
      const seeded = { training: true, dropoutSeed: 3 };
      const { output } = module.forward(x, seeded);
      const gradient = module.backward(x, dOut, seeded).parameters['out_proj.bias']?.data as Float32Array;
      const kept = Array.from({ length: embed }, (_, c) => [0, 1].filter((row) => output.data[row * embed + c] !== 0).length);
      expect([...gradient]).toEqual(kept.map((count) => 2 * count));
      expect(module.backward(x, dOut).parameters['out_proj.bias']?.data).toEqual(new Float32Array(embed).fill(2));
    });
  });

  it('refuses bad arguments', () => {
    const { module } = make();
    const x = filled(r, 2, queries, embed);
    const empty = mh.multiHeadAttention({ embedDim: embed, numHeads: 2 });
    const gone = mh.zeros(x.shape);
    gone.dispose();
    const { shape } = x;
    expectRefused(mh, () => empty.backward(x, x), 'E_OPTION', 'multiHeadAttention', 'loadStateDict()');
    expectRefused(mh, () => module.backward(x, filled(r, 2, queries, 7)), 'E_SHAPE', 'dOut');
    expectRefused(mh, () => module.backward(x, gone), 'E_DISPOSED', 'dOut');
    expectRefused(mh, () => module.backward(x, undefined as never), 'E_OPTION', 'dOut');
    expectRefused(mh, () => module.backward(x, { shape, data: x.data, dtype: 'bf16' } as never), 'E_OPTION', 'dOut');
    expectRefused(mh, () => module.backward({ query: x, keys: x } as never, x), 'E_OPTION', 'keys');
    const options: [object, string, ...string[]][] = [
      [{ causal: 'true' }, 'causal'],
      [{ softcap: -1 }, 'softcap'],
      [{ return: ['weights'] }, 'return', 'all gradients'],
      [{ trace: true }, 'trace', 'forward'],
      [{ out: x }, 'out', 'new tensors'],
      [{ dOut: x }, 'dOut'],
    ];
    for (const [wrong, argument, ...words] of options) {
      expectRefused(mh, () => module.backward(x, x, wrong), 'E_OPTION', argument, ...words);
    }
    module.dispose();
    expectRefused(mh, () => module.backward(x, x), 'E_DISPOSED', 'multiHeadAttention');
    empty.dispose();
  });
});
