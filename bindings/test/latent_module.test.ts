// Multi-head latent attention as an option of the module, compared with mh.latentAttention, which has its own tests.
import type { StateDict } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';

const config = {
  ...{ embedDim: 24, numHeads: 3, headDim: 12, kvLatentDim: 16, qLatentDim: 10, ropeHeadDim: 4 },
  bias: false,
  rope: { style: 'interleaved' },
} as const;

const shapes = {
  'q_a_proj.weight': [10, 24],
  'q_a_layernorm.weight': [10],
  'q_b_proj.weight': [36, 10],
  'kv_a_proj_with_mqa.weight': [20, 24],
  'kv_a_layernorm.weight': [16],
  'kv_b_proj.weight': [3 * (8 + 8), 16],
  'o_proj.weight': [24, 24],
};

const floats = (seed: number, count: number): Float32Array => random(seed).floats(count);

const parameters: StateDict = Object.fromEntries(
  Object.entries(shapes).map(([name, shape], index) => [
    name,
    {
      shape,
      data: floats(
        runSeed + index,
        shape.reduce((a, b) => a * b),
      ),
    },
  ]),
);

describe.each(builds)(`latent module, %s (MULTIHEAD_SEED=${runSeed})`, async (simd) => {
  const mh = await loadBuild(simd);

  const tokens = 7;
  const x = { shape: [2, tokens, 24], data: floats(runSeed + 20, 2 * tokens * 24) };
  const makeModule = () => {
    const module = mh.multiHeadAttention(config);
    module.loadStateDict(parameters);
    return module;
  };

  it('traces its latents, and attention over them gives its output', () => {
    mh.scope(() => {
      const module = makeModule();
      expect(module.config.valueDim).toBe(8);
      const { output, trace } = module.forward(x, { causal: 'topLeft', trace: true });
      expect(trace.kvLatent?.shape).toEqual([2, tokens, 16]);
      expect(trace.qLatent?.shape).toEqual([2, tokens, 10]);
      expect(trace.kRope?.shape).toEqual([2, tokens, 4]);
      const { out } = mh.attention(trace.qHeads, trace.kHeads, trace.vHeads, {
        causal: 'topLeft',
      });
      expect(trace.headsOut.shape).toEqual([2, 3, tokens, 8]);
      trace.headsOut.data.forEach((y, i) => expect(y).toBeCloseTo(out.data[i] ?? NaN, 5));
      expect(output.shape).toEqual([2, tokens, 24]);
    });
  });

  it('step() over a cache of latents gives the results of forward()', () => {
    mh.scope(() => {
      const module = makeModule();
      const { output } = module.forward(x, { causal: 'topLeft' });
      const cache = module.createCache({ batch: 2, capacity: tokens });
      const whole = mh.multiHeadAttention({ embedDim: 24, numHeads: 3, headDim: 12 });
      expect(cache.bytes).toBeLessThan(whole.createCache({ batch: 2, capacity: tokens }).bytes);
      for (let token = 0; token < tokens; token += 1) {
        const row = new Float32Array(2 * 24);
        for (let b = 0; b < 2; b += 1) {
          const at = (b * tokens + token) * 24;
          row.set(x.data.subarray(at, at + 24), b * 24);
        }
        const step = module.step({ shape: [2, 1, 24], data: row }, cache).output.data;
        step.forEach((y, i) => {
          const at = (Math.floor(i / 24) * tokens + token) * 24 + (i % 24);
          expect(y).toBeCloseTo(output.data[at] ?? NaN, 4);
        });
      }
      expect(cache.length()).toBe(tokens);
    });
  });

  it('refuses options that exclude latents, and options that need them', () => {
    for (const [argument, more] of [
      ['kdim', { kdim: 8 }],
      ['addBiasKv', { addBiasKv: true }],
      ['qkNorm', { qkNorm: true }],
    ] as const) {
      expectRefused(mh, () => mh.multiHeadAttention({ ...config, ...more }), 'E_OPTION', argument);
    }
    for (const name of ['qLatentDim', 'ropeHeadDim', 'latentNormEps'] as const) {
      expectRefused(mh, () => mh.multiHeadAttention({ embedDim: 8, numHeads: 2, [name]: 2 }), 'E_OPTION', name);
    }
    mh.scope(() => {
      const { 'o_proj.weight': _, ...rest } = parameters;
      const error = errorOf(() => mh.multiHeadAttention(config).loadStateDict(rest));
      expect(error.message).toContain('o_proj.weight');
    });
  });
});
