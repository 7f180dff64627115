// Tensors and other objects behind a proxy, as state libraries create them: every use works or throws a MultiheadError.

import { MultiheadError, writeSafetensors, type Multihead, type Tensor } from 'multihead';
import { createExperiment, headStatistics } from 'multihead/lab';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, loadBuild } from './builds.ts';
import { random } from './random.ts';

/** A proxy without traps: getters and methods run with the proxy as `this`. */
const proxied = <T extends object>(target: T): T => new Proxy(target, {});

/** The names of all members of an object and its classes, including those that are private in TypeScript. */
function membersOf(object: object): string[] {
  const names = new Set<string>();
  for (let at: object = object; at !== Object.prototype; at = Object.getPrototypeOf(at) as object) {
    for (const name of Object.getOwnPropertyNames(at)) names.add(name);
  }
  names.delete('constructor');
  return [...names];
}

/** One object of every kind that the package makes. */
function makeAll(mh: Multihead): Record<string, object> {
  const config = { embedDim: 4, numHeads: 2, bias: false };
  const module = mh.multiHeadAttention(config);
  const model = mh.transformer({ ...config, numLayers: 1, vocabSize: 5 });
  model.initialize();
  return {
    tensor: mh.zeros([1, 1, 2, 2]),
    prepared: mh.prepare({ q: [1, 1, 2, 2], kvLengths: Int32Array.of(1) }),
    preparedBackward: mh.prepareBackward({ q: [1, 1, 2, 2] }),
    cache: mh.createCache({ numKvHeads: 1, headDim: 2, capacity: 4 }),
    module,
    moduleCache: module.createCache({ capacity: 4 }),
    block: mh.transformerBlock(config),
    model,
    trainer: mh.trainer(model),
    experiment: createExperiment(mh, { batch: 1 }),
    modelCache: model.createCache({ capacity: 4 }),
  };
}

describe.each(builds)('behind a proxy, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it('every member of every object works, or throws an E_OPTION that says why', () => {
    mh.scope(() => {
      for (const [kind, object] of Object.entries(makeAll(mh))) {
        const proxy = proxied(object) as Record<string, unknown>;
        let refused = 0;
        for (const name of membersOf(object)) {
          try {
            const value = proxy[name];
            if (typeof value === 'function') (value as () => unknown).call(proxy);
          } catch (error) {
            const text = `${kind}.${name}: ${String(error)}`;
            expect(error instanceof MultiheadError, text).toBe(true);
            refused += 1;
            if (name !== 'reshape') expect(text).toMatch(/proxy|of a tensor/);
          }
        }
        expect(refused, kind).toBeGreaterThan(1);
        // The object itself is unchanged.
        expect((object as { disposed: boolean }).disposed, kind).toBe(false);
      }
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('a tensor is refused by every operation, as any argument', () => {
    mh.scope(() => {
      const tensor = (...shape: number[]) => mh.tensor(random(1).floats(shape.reduce((a, b) => a * b, 1)), shape);
      const x = tensor(1, 2, 3, 4);
      const mask = mh.tensor(new Uint8Array(9).fill(1), [3, 3]);
      const p = proxied(x);
      const cu = Int32Array.of(0, 2);
      const packed = tensor(2, 3, 4);
      const op = mh.prepare({ q: x.shape, return: ['lse'] });
      const cache = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 9 });
      const module = mh.multiHeadAttention({ embedDim: 4, numHeads: 2, bias: false });
      const dict = { in_proj_weight: tensor(12, 4), 'out_proj.weight': tensor(4, 4) };
      module.loadStateDict(dict);
      const [tokens, matrix] = [tensor(1, 3, 4), tensor(3, 4)];
      const lse = mh.attention(x, x, x, { return: ['lse'] }).lse;
      const positions = Int32Array.of(0, 1, 2);
      const calls: (() => unknown)[] = [
        () => mh.attention(p, x, x),
        () => mh.attention(x, p, x),
        () => mh.attention(x, x, p),
        () => mh.attention(x, x, x, { out: p }),
        () => mh.attention(x, x, x, { bias: proxied(tensor(3, 3)) }),
        () => mh.attention(x, x, x, { mask: proxied(mask) }),
        () => mh.attentionBackward({ q: p, k: x, v: x, out: x, lse, dOut: x }),
        () => mh.attentionBackward({ q: x, k: x, v: x, out: x, lse, dOut: p }),
        () => mh.attentionBackward({ q: x, k: x, v: x, out: x, lse: proxied(lse), dOut: x }),
        () => mh.attentionBackward({ q: x, k: x, v: x, out: x, lse, dOut: x }, { out: { dQ: p } }),
        () => mh.attentionBackward({ q: x, k: x, v: x, out: x, lse, dOut: x }, { out: p as never }),
        () => op.run(p, x, x, tensor(1, 2, 3, 4), lse),
        () => op.run(x, p, x, tensor(1, 2, 3, 4), lse),
        () => op.run(x, x, x, p, lse),
        () => op.run(x, x, x, tensor(1, 2, 3, 4), proxied(lse)),
        () => mh.scores(p, x, { stage: 'raw' }).next(),
        () => mh.attentionVarlen(proxied(packed), packed, packed, { cuQ: cu, cuK: cu }),
        () => mh.mergeAttention({ out: p, lse }, { out: x, lse }),
        () => mh.mergeAttention({ out: x, lse }, { out: x, lse: proxied(lse) }),
        () => mh.rotate(p, positions, { style: 'half' }),
        () => mh.linear(proxied(matrix), matrix),
        () => mh.linear(matrix, proxied(matrix)),
        () => headStatistics(mh, p),
        () => cache.append(p, x),
        () => cache.attend(p),
        () => module.forward(proxied(tokens)),
        () => module.forward({ query: tokens, key: proxied(tokens) }),
        () => module.backward(proxied(tokens), tokens),
        () => module.backward(tokens, proxied(tokens)),
        () => module.loadStateDict({ ...dict, in_proj_weight: proxied(dict.in_proj_weight) }),
        () => module.step(proxied(tokens), module.createCache({ capacity: 3 })),
        () => writeSafetensors({ x: p }),
        () => mh.scope(() => p),
        () => mh.scope(() => ({ kept: [p] })),
      ];
      for (const call of calls) {
        const error = errorOf(call);
        expect(error.code, `${call.toString()}: ${error.message}`).toBe('E_OPTION');
        expect(error.message, call.toString()).toMatch(/proxy of a tensor.*toRaw/);
      }
      expect(x.disposed).toBe(false);
      expect(mh.attention(x, x, x).out.size).toBe(24);
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('a scope that returns a proxy disposes its tensor, and throws', () => {
    let tensor: Tensor | undefined;
    const error = errorOf(() => mh.scope(() => proxied((tensor = mh.zeros([1])))));
    expect(error.message).toMatch(/proxy of a tensor/);
    expect(tensor?.disposed).toBe(true);
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('Vue makes no proxies of them: they have the flag of markRaw()', () => {
    mh.scope(() => {
      for (const [kind, object] of Object.entries(makeAll(mh))) {
        expect((object as { __v_skip?: unknown }).__v_skip, kind).toBe(true);
        expect(Object.keys(object)).not.toContain('__v_skip');
      }
    });
  });
});
