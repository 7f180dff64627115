import * as core from 'multihead/core';
import * as all from 'multihead';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { chooseSimd, preferredBuild, relaxedProbe, simd128Probe } from '../src/load/features.ts';
import { expectWorks, freshLoad } from './builds.ts';

const { load } = all;
const validate = WebAssembly.validate;

/** Simulates an engine that rejects the modules for which `lacks` is true. */
function engineWithout(lacks: (bytes: Uint8Array) => boolean): void {
  vi.spyOn(WebAssembly, 'validate').mockImplementation((bytes) => {
    const array = bytes as Uint8Array<ArrayBuffer>;
    return !lacks(array) && validate(array);
  });
}

const isRelaxedProbe = (bytes: Uint8Array): boolean => bytes.length === relaxedProbe.length;

/** The process with other versions. Vitest's messages may come while it is in place, and they need the rest. */
const processWith = (versions: object | undefined): object => Object.create(process, { versions: { value: versions } }) as object;

describe('feature detection', () => {
  afterEach(() => {
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
  });

  it('has probes that this engine accepts, and rejects once an opcode is changed', () => {
    for (const probe of [simd128Probe, relaxedProbe]) {
      expect(validate(probe)).toBe(true);
      const broken = probe.slice();
      broken[broken.length - 2] = 0x7f;
      expect(validate(broken)).toBe(false);
    }
  });

  it('chooses the relaxed build if the engine supports it', async () => {
    vi.stubGlobal('process', processWith({ ...process.versions, v8: '13.6.233.17-node.53' }));
    const mh = await (await freshLoad('with-relaxed'))();
    expect(mh.backend.simd).toBe('relaxed');
    expect(mh.backend.why).toMatch('relaxed_madd');
    expectWorks(mh);
  });

  it.each([
    ['V8 12.4.254.21', { v8: '12.4.254.21-node.57' }, 'Chrome/140.0'],
    ['V8 9.9', { v8: '9.9' }, ''],
    ['Chromium 129', undefined, 'Mozilla/5.0 (X11; Linux) AppleWebKit/537 (KHTML, like Gecko) Chrome/129.0.0.0 Safari/537'],
    ['Chromium 119', {}, 'Chromium/119.0.6045 Chrome/119'],
  ])('chooses simd128 for %s, which runs relaxed SIMD slower', (engine, versions, userAgent) => {
    vi.stubGlobal('process', processWith(versions));
    vi.stubGlobal('navigator', { userAgent });
    expect(chooseSimd('auto')).toEqual({
      simd: 'simd128',
      why: `${engine} runs this code faster without relaxed SIMD`,
    });
    expect(chooseSimd('relaxed').simd).toBe('relaxed');
  });

  it.each([
    [{ v8: '13.0.245.12-node.1' }, undefined],
    [undefined, { userAgent: 'Mozilla/5.0 Chrome/130.0.0.0 Safari/537.36' }],
    [undefined, { userAgent: 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0' }],
    [{ bun: '1.2' }, {}],
    [undefined, undefined],
  ])('chooses relaxed for other engines: %o, %o', (versions, navigator) => {
    vi.stubGlobal('process', processWith(versions));
    vi.stubGlobal('navigator', navigator);
    expect(chooseSimd('auto').simd).toBe('relaxed');
  });

  it('is what preferredBuild() says, which both entry points have', async () => {
    for (const { preferredBuild: preferred, load: loadThis } of [all, core]) {
      const { simd, why } = (await loadThis()).backend;
      expect(preferred()).toEqual({ simd, why });
    }
    engineWithout(() => true);
    expect(() => preferredBuild()).toThrow(/WebAssembly SIMD is missing/);
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
