// `multihead/core`: the operations without modules and training, with a separate WebAssembly module.

import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync } from 'node:zlib';
import { load as loadEverything, type Multihead } from 'multihead';
import { load, type MultiheadCore } from 'multihead/core';
import { rolldown } from 'rolldown';
import { afterAll, describe, expect, it } from 'vitest';
import { builds, errorOf, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled, randomCase } from './random_case.ts';

const wasm = (name: string): URL => new URL(`../dist/multihead-${name}.wasm`, import.meta.url);

/** The numbers of all tensors in a result. */
const numbersOf = (result: object): string =>
  JSON.stringify(result, (_, value: unknown) => (ArrayBuffer.isView(value) ? [...(value as Float32Array)].map(String) : value));

describe.each(builds)('multihead/core, %s', async (simd) => {
  const core = await load({ simd });
  const everything = await loadBuild(simd);
  const both = (run: (mh: MultiheadCore) => object, label: string): void => {
    const [actual, expected] = [core, everything].map((mh) => mh.scope(() => numbersOf(run(mh))));
    expect(actual, label).toBe(expected);
    expect(core.memory()).toMatchObject({ live: 0, bytes: 0 });
  };
  afterAll(() => expect(core.memory().live).toBe(0));

  it('has operations of multihead, and no other', () => {
    expect(Object.keys(core).sort()).toEqual([
      ...['alibiSlopes', 'attention', 'attentionVarlen', 'backend', 'createCache', 'dispose', 'linear', 'memory'],
      ...['mergeAttention', 'prepare', 'rotate', 'scope', 'scores', 'tensor', 'zeros'],
    ]);
    const all: (keyof Multihead)[] = Object.keys(everything) as (keyof Multihead)[];
    expect(all).toEqual(expect.arrayContaining(Object.keys(core)));
    expect(Object.isFrozen(core)).toBe(true);
    expect(core.backend).toMatchObject({ simd, target: everything.backend.target });
    expect(core.backend.wasmBytes).toBeLessThan(everything.backend.wasmBytes);
  });

  it(`gives the bits of multihead (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(60); round += 1) {
      const { q, k, v, options, label } = randomCase(runSeed + round);
      both((mh) => {
        const { out, lse, weights } = mh.attention(q.given, k.given, v.given, options);
        return [out.toFloat32(), lse?.data, weights?.data];
      }, label);
    }
  });

  it('gives the bits of multihead: every other operation', () => {
    const r = random(1);
    const [q, k, v] = [filled(r, 1, 4, 3, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8)];
    both((mh) => [mh.alibiSlopes(4)], 'alibiSlopes');
    both((mh) => {
      using op = mh.prepare({ q: q.shape, numKvHeads: 2, keys: 5 });
      const out = mh.zeros(q.shape);
      op.run(mh.tensor(q.data, q.shape), mh.tensor(k.data, k.shape), mh.tensor(v.data, v.shape), out);
      return [out.data];
    }, 'prepare');
    both((mh) => [...mh.scores(q, k, { head: 1, stage: 'weights', chunk: 2 })].map(({ data }) => data), 'scores');
    both((mh) => {
      const packed = filled(random(2), 5, 2, 8);
      const cu = Int32Array.of(0, 2, 5);
      return [mh.attentionVarlen(packed, packed, packed, { cuQ: cu, cuK: cu }).out.data];
    }, 'attentionVarlen');
    both((mh) => {
      const half = () => {
        const { out, lse } = mh.attention(q, k, v, { return: ['lse'] });
        return { out, lse };
      };
      const merged = mh.mergeAttention(half(), half());
      return [merged.out.data, merged.lse.data];
    }, 'mergeAttention');
    both((mh) => [mh.rotate(q, Int32Array.of(4, 5, 6), { style: 'half', base: 100 }).data], 'rotate');
    both((mh) => [mh.linear(filled(random(3), 3, 8), filled(random(4), 5, 8)).data], 'linear');
    for (const dtype of ['f32', 'f16', 'bf16', 'int8'] as const) {
      both((mh) => {
        using cache = mh.createCache({ batch: 1, numKvHeads: 2, headDim: 8, capacity: 8, dtype });
        cache.append(k, v);
        return [cache.attend(q).out.data];
      }, `createCache ${dtype}`);
    }
  });

  it('reports errors as multihead does', () => {
    const x = { shape: [1, 1, 2, 4], data: new Float32Array(8) };
    const narrow = { shape: [1, 1, 2, 3], data: new Float32Array(6) };
    const packed = { shape: [2, 1, 4], data: new Float32Array(8) };
    const config = { batch: 1, numKvHeads: 1, headDim: 4, capacity: 2 };
    const wrong: Record<string, (mh: MultiheadCore) => unknown> = {
      shape: (mh) => mh.attention(x, narrow, x),
      bias: (mh) => mh.attention(x, x, x, { bias: { shape: [3, 1, 2, 2], data: new Float32Array(12) } }),
      sinks: (mh) => mh.attention(x, x, x, { sinks: Float32Array.of(1, 2) }),
      alibi: (mh) => mh.attention(x, x, x, { alibi: Float32Array.of(1, 2) }),
      softcap: (mh) => mh.attention(x, x, x, { softcap: -1 }),
      kvLengths: (mh) => mh.attention(x, x, x, { kvLengths: Int32Array.of(5) }),
      dropout: (mh) => mh.attention(x, x, x, { dropout: { probability: 2, seed: 1 } }),
      rope: (mh) => mh.rotate(x, Int32Array.of(1), { style: 'half' }),
      cuQ: (mh) => mh.attentionVarlen(packed, packed, packed, { cuQ: Int32Array.of(0, 3), cuK: Int32Array.of(0, 2) }),
      linear: (mh) => mh.linear(x, { shape: [2, 3], data: new Float32Array(6) }),
      pageSize: (mh) => mh.createCache({ ...config, pageSize: 4 }),
      append: (mh) => {
        const cache = mh.createCache(config);
        cache.append(x, x);
        return cache.append(x, x);
      },
    };
    for (const [name, call] of Object.entries(wrong)) {
      const [actual, expected] = [core, everything].map((mh) => errorOf(() => mh.scope(() => void call(mh))));
      expect(actual?.message, name).toMatch(/^\S+: \S/);
      expect(actual, name).toMatchObject({ code: expected?.code, message: expected?.message });
    }
  });

  it('refuses the module of multihead, and multihead refuses that of core', async () => {
    const message = /not multihead .*'s module for this build \(it is ".* wire /;
    await expect(load({ simd, wasm: wasm(simd) })).rejects.toMatchObject({ code: 'E_LOAD', message: expect.stringMatching(message) });
    await expect(loadEverything({ simd, wasm: wasm(`core-${simd}`) })).rejects.toMatchObject({
      code: 'E_LOAD',
      message: expect.stringMatching(message),
    });
    await expect(load({ simd, wasm: wasm(`core-${simd}`) })).resolves.toBeDefined();
  });

  it('is below 89 kB in Brotli as a bundle with its module, and contains no modules or training', async () => {
    const input = fileURLToPath(new URL('../dist/core.js', import.meta.url));
    const bundle = await rolldown({ input, logLevel: 'silent' });
    const { output } = await bundle.generate({ format: 'esm', minify: true });
    await bundle.close();
    const [{ code, moduleIds }] = output;
    const names = moduleIds.map((path) => path.slice(path.lastIndexOf('/') + 1));
    expect(names.sort()).toEqual(['core.js', 'core_glue.js', 'features.js', 'shared.js']);
    // The bundler names each source in a comment.
    const texts = await Promise.all(names.map((name) => readFile(new URL(`../dist/${name}`, import.meta.url), 'utf8')));
    const sources = [...texts.join('\n').matchAll(/^\/\/ src\/(.*\.ts)$/gm)].map(([, path]) => path ?? '');
    expect(sources).toContain('cache/kv_cache.ts');
    expect(sources.filter((path) => /^(modules|training|safetensors|pool)\//.test(path))).toEqual([]);
    const size = (bytes: string | Uint8Array) => brotliCompressSync(bytes).length;
    expect(size(code) + size(await readFile(wasm(`core-${simd}`)))).toBeLessThan(89_000); // 88 kB with Emscripten 3.1.69
  });
});
