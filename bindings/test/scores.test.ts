import type { ScoresOptions } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, expectWorks, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { capturedPart, caseCount, filled, randomCase, stageTolerance, tolerance } from './random_case.ts';
import * as reference from './reference.ts';

describe.each(builds)('scores, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const r = random(21);
  const q = filled(r, 2, 4, 20, 8);
  const k = filled(r, 2, 2, 11, 8);

  it(`streams the scores that attention() captures (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(40); round += 1) {
      const c = randomCase(runSeed + round);
      const { return: _, capture, outDtype, dropout, ...masking } = c.options as Record<string, unknown>;
      const { options, extents, label } = c;
      const expected = reference.attention(c.q.plain, c.k.plain, c.v.plain, options);
      const pick = random(runSeed + round);
      for (const stage of ['raw', 'capped', 'masked', 'weights'] as const) {
        const chosen = pick.next() < 0.5 ? { heads: [extents[1] - 1] } : {};
        const rows = [pick.int(0, extents[2] - 1), 1] as const;
        const limits = { ...chosen, ...(pick.next() < 0.5 ? { rows } : {}) };
        const part = capturedPart(expected[stage], extents, limits);
        const chunk = pick.int(1, 50);
        const whole = new Float32Array(part.data.length);
        let next = limits.rows?.[0] ?? 0;
        const count = part.shape[2] as number;
        const keys = extents[3];
        for (const piece of mh.scores(c.q.given, c.k.given, {
          ...masking,
          ...limits,
          stage,
          chunk,
        })) {
          expect(piece.firstRow, label).toBe(next);
          expect(piece.rows, label).toBeLessThanOrEqual(chunk);
          expect(piece.shape, label).toEqual([part.shape[0], part.shape[1], piece.rows, keys]);
          for (let bh = 0; bh < (piece.shape[0] as number) * (piece.shape[1] as number); bh += 1) {
            const rowsOfHead = piece.data.subarray(bh * piece.rows * keys, (bh + 1) * piece.rows * keys);
            whole.set(rowsOfHead, (bh * count + next - (limits.rows?.[0] ?? 0)) * keys);
          }
          next += piece.rows;
        }
        expect(next - (limits.rows?.[0] ?? 0), label).toBe(count);
        const allowed = stageTolerance(stage, tolerance(c.width, options, expected));
        expect(reference.maxDifference(whole, part.data), `${stage}, chunk ${chunk}, ${label}`).toBeLessThan(allowed);
      }
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('gives chunks of 64 rows by default, each a separate copy', () => {
    const long = filled(random(3), 1, 1, 150, 4);
    const pieces = [...mh.scores(long, long, { stage: 'weights', head: 0 })];
    expect(pieces.map(({ firstRow, rows }) => [firstRow, rows])).toEqual([
      [0, 64],
      [64, 64],
      [128, 22],
    ]);
    for (const { data } of pieces) expect(data.byteLength).toBe(data.buffer.byteLength);
  });

  it('never stores the whole matrix', async () => {
    const own = await loadBuild(simd);
    const n = 8192;
    const x = { shape: [1, 2, n, 4], data: new Float32Array(2 * n * 4).fill(0.1) };
    let rows = 0;
    for (const piece of own.scores(x, x, {
      stage: 'masked',
      causal: 'topLeft',
      head: 1,
      chunk: 16,
    })) {
      rows += piece.rows;
    }
    expect(rows).toBe(n);
    const { peak, bytes, heap } = own.memory();
    expect(bytes).toBe(0);
    // Memory for two inputs and one chunk; the whole matrix would be 256 MiB.
    expect(peak).toBeLessThan(2 * 2 * n * 4 * 4 + 16 * n * 4 + 1000);
    expect(heap).toBeLessThan(32 * 2 ** 20);
  });

  it('frees its memory when the loop ends early or throws', () => {
    const before = mh.memory();
    for (const piece of mh.scores(q, k, { stage: 'raw', chunk: 3 })) {
      expect(mh.memory().bytes).toBe(before.bytes + 4 * (q.data.length + k.data.length));
      if (piece.firstRow > 0) break;
    }
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    expect(() => {
      for (const _ of mh.scores(q, k, { stage: 'raw', chunk: 3 })) throw new Error('enough');
    }).toThrow('enough');
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    const unread = mh.scores(q, k, { stage: 'raw' });
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    unread.return();
  });

  it('works while other calls are made, and throws if a tensor is disposed meanwhile', () => {
    const tensor = mh.tensor(q.data, q.shape);
    const rows = mh.scores(tensor, k, { stage: 'raw', chunk: 5 });
    rows.next();
    expectWorks(mh);
    mh.scope(() => void mh.attention(q, k, k, { capture: [{ stage: 'weights' }] }));
    expect(rows.next().done).toBe(false);
    tensor.dispose();
    expect(errorOf(() => rows.next())).toMatchObject({ code: 'E_DISPOSED', argument: 'q' });
    expect(rows.next().done).toBe(true);
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('may be empty', () => {
    const none = filled(random(4), 1, 4, 0, 8);
    expect([...mh.scores(none, filled(random(4), 1, 2, 3, 8), { stage: 'raw' })]).toEqual([]);
    expect([...mh.scores(q, k, { stage: 'raw', rows: [20, 0] })]).toEqual([]);
    const [piece] = mh.scores(q, filled(random(4), 2, 2, 0, 8), { stage: 'raw' });
    expect(piece).toMatchObject({ rows: 20, shape: [2, 4, 20, 0] });
  });

  describe('refuses', () => {
    it.each<[object, 'E_OPTION' | 'E_SHAPE', string, ...string[]]>([
      [{}, 'E_OPTION', 'stage', 'weights', 'undefined'],
      [{ stage: 'logits' }, 'E_OPTION', 'stage', 'logits'],
      [{ stage: 'raw', chunk: 0 }, 'E_OPTION', 'chunk'],
      [{ stage: 'raw', chunk: 1.5 }, 'E_OPTION', 'chunk'],
      [{ stage: 'raw', head: 1, heads: [2] }, 'E_OPTION', 'head', 'both'],
      [{ stage: 'raw', head: 4 }, 'E_OPTION', 'head', '3', '4'],
      [{ stage: 'raw', head: -1 }, 'E_OPTION', 'head'],
      [{ stage: 'raw', heads: [0, 4] }, 'E_OPTION', 'heads', '4'],
      [{ stage: 'raw', heads: [0, 0] }, 'E_OPTION', 'heads', 'once'],
      [{ stage: 'raw', heads: [] }, 'E_OPTION', 'heads'],
      [{ stage: 'raw', rows: [0, 21] }, 'E_OPTION', 'rows', '20'],
      [{ stage: 'raw', dropout: { probability: 0.5 } }, 'E_OPTION', 'dropout', 'before dropout'],
      [{ stage: 'raw', return: ['lse'] }, 'E_OPTION', 'return', 'chunk'],
      [{ stage: 'raw', scale: NaN }, 'E_OPTION', 'scale'],
      [{ stage: 'raw', sinks: new Float32Array(1) }, 'E_SHAPE', 'sinks'],
      [{ stage: 'raw', bias: { shape: [3, 3], data: new Float32Array(9) } }, 'E_SHAPE', 'bias'],
    ])('%j', (options, code, argument, ...words) => {
      const call = () => [...mh.scores(q, k, options as ScoresOptions)];
      expectRefused(mh, call, code, argument, ...words);
    });

    it('unknown options before the first row is requested', () => {
      const call = () => mh.scores(q, k, { stage: 'raw', rowss: 1 } as never);
      expectRefused(mh, call, 'E_OPTION', 'rowss');
    });

    it('shapes that do not fit, even if no rows are requested', () => {
      const call = (key: typeof k) => () => [...mh.scores(q, key, { stage: 'raw', rows: [0, 0] })];
      expectRefused(mh, call(filled(r, 2, 2, 11, 7)), 'E_SHAPE', 'k');
      expectRefused(mh, call(filled(r, 2, 11, 8)), 'E_SHAPE', 'k', '(B, H_kv, N_k, d_k)');
      const flat = () => [...mh.scores(filled(r, 20, 8), k, { stage: 'raw', rows: [0, 1] })];
      expectRefused(mh, flat, 'E_SHAPE', 'q', '(B, H_q, N_q, d_k)');
    });
  });
});
