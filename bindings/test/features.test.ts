import { load } from 'multihead';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { relaxedProbe, simd128Probe } from '../src/features.ts';
import { expectWorks, freshLoad } from './builds.ts';

const validate = WebAssembly.validate;

/** Simulates an engine that rejects the modules for which `lacks` is true. */
function engineWithout(lacks: (bytes: Uint8Array) => boolean): void {
  vi.spyOn(WebAssembly, 'validate').mockImplementation((bytes) => {
    const array = bytes as Uint8Array<ArrayBuffer>;
    return !lacks(array) && validate(array);
  });
}

const isRelaxedProbe = (bytes: Uint8Array): boolean => bytes.length === relaxedProbe.length;

describe('feature detection', () => {
  afterEach(() => vi.restoreAllMocks());

  it('has probes that this engine accepts, and rejects once an opcode is changed', () => {
    for (const probe of [simd128Probe, relaxedProbe]) {
      expect(validate(probe)).toBe(true);
      const broken = probe.slice();
      broken[broken.length - 2] = 0x7f;
      expect(validate(broken)).toBe(false);
    }
  });

  it('chooses the relaxed build if the engine supports it', async () => {
    const mh = await load();
    expect(mh.backend.simd).toBe('relaxed');
    expect(mh.backend.why).toMatch('relaxed_madd');
    expectWorks(mh);
  });

  it('chooses simd128 if the engine has no relaxed SIMD', async () => {
    engineWithout(isRelaxedProbe);
    const mh = await (await freshLoad('without-relaxed'))();
    expect(mh.backend.simd).toBe('simd128');
    expect(mh.backend.why).toMatch('not f32x4.relaxed_madd');
    expectWorks(mh);
  });

  it('then refuses simd: "relaxed"', async () => {
    engineWithout(isRelaxedProbe);
    await expect(load({ simd: 'relaxed' })).rejects.toMatchObject({
      code: 'E_LOAD',
      argument: 'simd',
    });
  });

  it('reports that SIMD is missing altogether', async () => {
    engineWithout(() => true);
    for (const simd of ['relaxed', 'simd128'] as const) {
      await expect(load({ simd })).rejects.toMatchObject({
        code: 'E_LOAD',
        message: expect.stringContaining('WebAssembly SIMD is missing') as string,
      });
    }
  });
});
