// Options, errors, aborting, and workers that end: no call of a pool hangs.

import { createRequire } from 'node:module';
import type { Worker } from 'node:worker_threads';
import { load, type Multihead, type MultiheadError } from 'multihead';
import { createPool, type Pool, type PoolOptions } from 'multihead/pool';
import { afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { rejectionOf } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';
import { onlyThread, running, sabotage, until } from './pool_threads.ts';

const pools: Pool[] = [];
async function open(options: PoolOptions = {}): Promise<Pool> {
  const pool = await createPool({ workers: 2, ...options });
  pools.push(pool);
  return pool;
}
afterEach(() => {
  for (const pool of pools.splice(0)) pool.dispose();
  sabotage.script = sabotage.refuse = undefined;
  sabotage.unreadable = false;
});

const r = random(1);
const small = { q: filled(r, 1, 2, 20, 8), k: filled(r, 1, 2, 30, 8), v: filled(r, 1, 2, 30, 8) };
const large = { q: filled(r, 1, 4, 2000, 64), k: filled(r, 1, 4, 2000, 64), v: filled(r, 1, 4, 2000, 64) };

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});

const attention = (pool: Pool, of = small, options: object = {}) => pool.attention(of.q, of.k, of.v, options);

describe('options', () => {
  test.each([0, -1, 1.5, NaN, 65, 10_000, '2', null])('workers: %s is refused', async (workers) => {
    const error = await rejectionOf(createPool({ workers: workers as number }));
    expect([error.code, error.argument]).toEqual(['E_OPTION', 'workers']);
    expect(error.expected).toContain('64');
  });

  test('others are checked too, and unknown ones are refused', async () => {
    for (const [options, argument] of [
      [{ queue: 0 }, 'queue'],
      [{ leastWork: 0 }, 'leastWork'],
      [{ leastWork: NaN }, 'leastWork'],
      [{ leastWork: '9' }, 'leastWork'],
      [{ leastWork: null }, 'leastWork'],
      [{ exchange: null }, 'exchange'],
      [{ exchange: 'telepathy' }, 'exchange'],
      [{ signal: {} }, 'signal'],
      [{ abortGrace: -1 }, 'abortGrace'],
      [{ abortGrace: NaN }, 'abortGrace'],
      [{ abortGrace: '9' }, 'abortGrace'],
      [{ worker: 2 }, 'worker'],
    ] as const) {
      const error = await rejectionOf(createPool(options as PoolOptions));
      expect([error.code, error.argument]).toEqual(['E_OPTION', argument]);
    }
  });

  test('the backend says how the pool runs', async () => {
    const shared = await open();
    expect(shared.backend).toMatchObject({ workers: 2, exchange: 'shared memory', simd: mh.backend.simd });
    expect(shared.backend.why).toBe('2 workers, shared memory: this is no browser page');
    const messages = await open({ workers: 1, exchange: 'messages' });
    expect(messages.backend.why).toBe('1 worker, messages: requested with { exchange: "messages" }');
    const all = await open({ workers: 'all' });
    expect(all.backend.workers).toBeGreaterThanOrEqual(1);
  });

  test('without hardwareConcurrency and availableParallelism there is one worker', async () => {
    const os = process.getBuiltinModule('node:os');
    const { availableParallelism } = os;
    const navigator = Object.getOwnPropertyDescriptor(globalThis, 'navigator');
    Object.defineProperty(globalThis, 'navigator', { value: {}, configurable: true });
    os.availableParallelism = (() => undefined) as never;
    try {
      expect((await open({ workers: 'all' })).backend.workers).toBe(1);
    } finally {
      os.availableParallelism = availableParallelism;
      if (navigator === undefined) delete (globalThis as { navigator?: unknown }).navigator;
      else Object.defineProperty(globalThis, 'navigator', navigator);
    }
  });

  test('more workers than heads', async () => {
    const pool = await open({ workers: 5, leastWork: 1 });
    const expected = mh.attention(small.q, small.k, small.v);
    expect((await attention(pool)).out.data).toEqual(expected.out.toFloat32());
    expected.out.dispose();
  });
});

describe('errors of calls', () => {
  test('are those of one thread, word for word', async () => {
    const pool = await open({ leastWork: 1 });
    const { q, k, v } = small;
    const detached = { shape: q.shape, data: q.data.slice() };
    structuredClone(detached.data, { transfer: [detached.data.buffer] });
    const tensor = mh.zeros([1, 2, 30, 8]);
    tensor.dispose();
    const calls: [unknown, unknown, unknown, object?][] = [
      [detached, k, v],
      [q, k, tensor],
      [q, k, { shape: [1, 2, 30], data: v.data }],
      [q, { shape: [1, 3, 20, 8], data: k.data }, v],
      [q, k, [1, 2]],
      [{ shape: [0, 2 ** 31, 1, 1], data: new Float32Array(0) }, k, v],
      [q, k, v, { causal: true }],
      [q, k, v, { cuasal: 'topLeft' }],
      [q, k, v, { mask: { shape: [20, 31], data: new Uint8Array(620) } }],
      [q, k, v, { sinks: new Float32Array(3) }],
      [q, k, v, { kvLengths: Int32Array.of(31) }],
      [q, k, v, { capture: [{ stage: 'raw', heads: [2] }] }],
      [q, k, v, { return: ['wieghts'] }],
      [q, k, v, { outDtype: 'f64' }],
    ];
    for (const [one, two, three, options] of calls) {
      let expected: unknown;
      try {
        mh.attention(one as never, two as never, three as never, options as never);
      } catch (error) {
        expected = error;
      }
      const actual = await rejectionOf(pool.attention(one as never, two as never, three as never, options as never));
      const parts = (error: MultiheadError) => [error.code, error.argument, error.expected, error.got, error.message];
      expect(parts(actual)).toEqual(parts(expected as MultiheadError));
    }
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
  });

  test('in workers have code, argument and both sides', async () => {
    const pool = await open();
    const error = await rejectionOf(pool.linear(small.q, { shape: [3, 7], data: new Float32Array(21) }));
    expect(() => mh.linear(small.q, { shape: [3, 7], data: new Float32Array(21) })).toThrow(error.message);
    expect([error.code, error.argument]).toEqual(['E_SHAPE', 'weight']);
    const packed = { ...{ cuQ: Int32Array.of(0, 5, 9), cuK: Int32Array.of(0, 4, 9) }, sinks: new Float32Array(5) };
    const tokens = filled(r, 9, 2, 8);
    expect((await rejectionOf(pool.attentionVarlen(tokens, tokens, tokens, packed))).argument).toBe('sinks');
    const rows = pool.scores(small.q, small.k, { stage: 'raw', rows: [0, 99] });
    expect((await rejectionOf(rows.next())).argument).toBe('rows');
  });

  test('a message that a worker cannot read rejects its call, and the next call works', async () => {
    const pool = await open();
    const model = await pool.transformer({ embedDim: 160, numHeads: 2, numLayers: 1, vocabSize: 4 }, { workers: 'all' });
    await model.initialize();
    sabotage.unreadable = true;
    const calls = [rejectionOf(attention(pool)), rejectionOf(pool.linear(small.q, small.k)), rejectionOf(model.forward(Int32Array.of(1)))];
    for (const { code } of await Promise.all(calls)) expect(['E_WORKER', 'E_OPTION']).toContain(code);
    sabotage.unreadable = false;
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
    expect((await model.forward(Int32Array.of(1))).logits.shape).toEqual([1, 1, 4]);
  });

  test('out must be arrays of the right shape', async () => {
    const pool = await open();
    const out = mh.zeros([1, 2, 20, 8]);
    expect((await rejectionOf(attention(pool, small, { out }))).argument).toBe('out');
    out.dispose();
    const wrong = { shape: [1, 2, 8, 20], data: new Float32Array(320) };
    expect((await rejectionOf(attention(pool, small, { out: wrong }))).code).toBe('E_SHAPE');
    const right = { shape: [1, 2, 20, 8], data: new Float32Array(320) };
    expect((await attention(pool, small, { out: right })).out.data).toBe(right.data);
  });

  test('out of every other call is refused, and its arrays are not written', async () => {
    const pool = await open({ leastWork: 1 });
    const model = await pool.transformer({ embedDim: 160, numHeads: 4, numLayers: 1, vocabSize: 8 }, { workers: 'all' });
    await model.initialize();
    const cache = await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 20 });
    await cache.append(small.q, small.q);
    const own = { shape: [1, 2, 20, 8], data: new Float32Array(new SharedArrayBuffer(4 * 320)).fill(7) };
    const as = (...shape: number[]) => ({
      shape,
      data: own.data.subarray(
        0,
        shape.reduce((all, each) => all * each, 1),
      ),
    });
    const { q } = small;
    const [tokens, rows] = [as(20, 2, 8), { shape: [40, 8], data: q.data }];
    const inputs = { q, k: q, v: q, out: q, lse: filled(r, 1, 2, 20), dOut: q };
    const ofTokens = { q: tokens, k: tokens, v: tokens, out: tokens, lse: filled(r, 2, 20), dOut: tokens };
    const packed = { cuQ: Int32Array.of(0, 20), cuK: Int32Array.of(0, 20) };
    const calls: [string, (out: never) => Promise<unknown>, object?][] = [
      ['linear', (out) => pool.linear(rows, filled(r, 8, 8), { out } as object), as(40, 8)],
      ['attentionVarlen', (out) => pool.attentionVarlen(tokens, tokens, tokens, { ...packed, out } as never), tokens],
      ['attentionBackward', (out) => pool.attentionBackward(inputs, { out } as object), { dQ: own }],
      ['attentionVarlenBackward', (out) => pool.attentionVarlenBackward(ofTokens, { ...packed, out } as never), { dQ: tokens }],
      ['cache.attend', (out) => cache.attend(q, { out } as object)],
      [
        'model.forward',
        (out) =>
          model.forward(
            Int32Array.from({ length: 20 }, () => 1),
            { out } as object,
          ),
        as(1, 20, 8),
      ],
    ];
    for (const [name, run, out = own] of calls) {
      const error = await rejectionOf(run(out as never));
      expect([error.code, error.argument.split('.')[0]], `${name}: ${error.message}`).toEqual(['E_OPTION', 'out']);
    }
    expect(own.data.every((each) => each === 7)).toBe(true);
  });
});

describe('aborting, the queue, and the end', () => {
  test('an aborted signal refuses, an abort rejects at once, and the pool goes on', async () => {
    const pool = await open();
    expect((await rejectionOf(attention(pool, small, { signal: AbortSignal.abort() }))).code).toBe('E_ABORTED');
    const controller = new AbortController();
    const calls = Array.from({ length: 6 }, () => attention(pool, large, { signal: controller.signal }));
    const codes: string[] = [];
    const errors = Promise.all(calls.map(async (call) => codes.push((await rejectionOf(call)).code)));
    await new Promise((resolve) => setTimeout(resolve, 5));
    expect(codes).toEqual([]);
    controller.abort();
    await new Promise(setImmediate); // one turn of the event loop: the calls wait for no worker
    expect(codes).toEqual(Array(6).fill('E_ABORTED'));
    await errors;
    expect((await attention(pool)).out.data).toHaveLength(320);
    expect((await rejectionOf(attention(pool, small, { signal: {} }))).argument).toBe('signal');
  });

  test('creating a pool can be aborted', async () => {
    const before = running.size;
    expect((await rejectionOf(createPool({ workers: 2, signal: AbortSignal.abort() }))).code).toBe('E_ABORTED');
    const controller = new AbortController();
    const opening = rejectionOf(createPool({ workers: 2, signal: controller.signal }));
    setTimeout(() => controller.abort(), 1);
    expect((await opening).code).toBe('E_ABORTED');
    await until(() => running.size <= before);
  });

  test('a full queue refuses one more call', async () => {
    const pool = await open({ queue: 3 });
    const calls = [1, 2, 3].map(() => attention(pool));
    expect((await rejectionOf(attention(pool))).code).toBe('E_BUSY');
    await Promise.all(calls);
    await attention(pool);
  });

  test('progress counts the parts of a call', async () => {
    const pool = await open({ leastWork: 1 });
    const seen: number[][] = [];
    await attention(pool, large, { progress: (done: number, total: number) => seen.push([done, total]) });
    expect(seen.at(-1)?.[0]).toBe(seen.length);
    expect(seen.length).toBeGreaterThanOrEqual(2);
    expect(seen.every(([, total]) => total === seen.length)).toBe(true);
  });

  test('dispose() rejects what is waiting, and every later call', async () => {
    const pool = await open();
    const layer = await pool.multiHeadAttention({ embedDim: 8, numHeads: 2 });
    const calls = [attention(pool, large), attention(pool), layer.forward({ shape: [1, 2, 8], data: new Float32Array(16) })];
    const errors = Promise.all(calls.map(rejectionOf));
    pool.dispose();
    pool.dispose();
    for (const { code } of await errors) expect(code).toBe('E_DISPOSED');
    expect(pool.disposed).toBe(true);
    expect((await rejectionOf(attention(pool))).code).toBe('E_DISPOSED');
    expect((await rejectionOf(layer.stateDict())).code).toBe('E_DISPOSED');
    expect((await rejectionOf(pool.scores(small.q, small.k, { stage: 'raw' }).next())).code).toBe('E_DISPOSED');
    expect((await rejectionOf(pool.transformer({ embedDim: 8, numHeads: 2, numLayers: 1, vocabSize: 4 }))).code).toBe('E_DISPOSED');
    layer.dispose();
  });
});

describe('workers that the caller makes', () => {
  const threads = createRequire(import.meta.url)('node:worker_threads') as { Worker: typeof Worker };
  const script = new URL(import.meta.resolve('multihead/pool_worker.js'));
  const make = () => new threads.Worker(script);
  /** A browser-like worker whose class accepts only an address made by a policy. */
  class BrowserWorker {
    onmessage: ((event: { data: unknown }) => void) | null = null;
    onerror: ((event: { message?: string }) => void) | null = null;
    onmessageerror: (() => void) | null = null;
    readonly #thread: Worker;
    constructor(address: unknown) {
      if (!(address as { trusted?: boolean }).trusted) throw new TypeError("this document requires 'TrustedScriptURL' assignment");
      this.#thread = make();
      this.#thread.on('message', (data) => this.onmessage?.({ data }));
      this.#thread.on('error', ({ message }) => this.onerror?.({ message }));
    }
    postMessage(message: unknown, transfer: ArrayBuffer[]): void {
      this.#thread.postMessage(message, transfer);
    }
    terminate(): void {
      void this.#thread.terminate();
    }
  }

  test('run its calls, and are made again when they end', async () => {
    let made = 0;
    const pool = await open({ workers: 1, worker: () => ((made += 1), make()) });
    expect([pool.backend.workers, made]).toEqual([1, 1]);
    const thread = await onlyThread();
    const call = rejectionOf(attention(pool, large));
    await thread?.terminate();
    expect((await call).code).toBe('E_WORKER');
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
    expect(made).toBe(2);
  });

  test('are those of a browser too, where a policy of Trusted Types refuses the address of the package', async () => {
    vi.stubGlobal('Worker', BrowserWorker);
    const { createPool: inBrowser } = (await import(new URL('./pool.js', script).href)) as { createPool: typeof createPool };
    try {
      const without = await inBrowser({ workers: 2 });
      pools.push(without);
      expect(without.backend.workers).toBe(0);
      expect(without.backend.why).toMatch(/^no worker could be started, .*TrustedScriptURL/);
      const pool = await inBrowser({ workers: 2, leastWork: 1, worker: () => new BrowserWorker({ trusted: true }) });
      pools.push(pool);
      expect(pool.backend.workers).toBe(2);
      const expected = mh.attention(small.q, small.k, small.v);
      expect((await attention(pool)).out.data).toEqual(expected.out.toFloat32());
      expected.out.dispose();
    } finally {
      vi.unstubAllGlobals();
    }
  });

  test('must be new ones; a function that throws leaves the calling thread', async () => {
    const [own, before] = [make(), running.size];
    const wrong: [unknown, string][] = [
      [own, 'a '],
      [null, 'null'],
      [() => undefined, 'undefined'],
      [() => ({ postMessage() {} }), 'a Object'],
      [async () => own, 'a Promise'],
      [() => own, 'the same'],
    ];
    for (const [worker, got] of wrong) {
      const error = await rejectionOf(createPool({ workers: 2, worker: worker as never }));
      expect([error.code, error.argument], error.message).toEqual(['E_OPTION', 'worker']);
      expect(error.got).toContain(got);
    }
    await until(() => running.size < before);
    const refused = () => {
      throw new Error('no more threads');
    };
    const pool = await open({ worker: refused });
    expect(pool.backend.why).toMatch(/^no worker could be started, .*no more threads/);
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
  });
});

describe('workers that cannot be had', () => {
  test('where starting one throws, calls run on the calling thread', async () => {
    sabotage.refuse = new Error('refused by policy');
    const pool = await open({ leastWork: 1 });
    expect(pool.backend).toMatchObject({ workers: 0, exchange: 'messages' });
    expect(pool.backend.why).toContain('refused by policy');
    const expected = mh.attention(small.q, small.k, small.v);
    expect((await attention(pool)).out.data).toEqual(expected.out.toFloat32());
    expected.out.dispose();
    const cache = await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 4 });
    expect([cache.capacity, await cache.length()]).toEqual([4, 0]);
  });

  test('the same where their script is missing', async () => {
    sabotage.script = './no_such_file.js';
    const pool = await open();
    expect(pool.backend.workers).toBe(0);
    expect(pool.backend.why).toContain('no_such_file');
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
  });

  test('and where the script goes missing later', async () => {
    const pool = await open({ workers: 1 });
    const thread = await onlyThread();
    sabotage.script = './no_such_file.js';
    const call = rejectionOf(attention(pool, large));
    await thread?.terminate();
    expect((await call).code).toBe('E_WORKER');
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
    expect(pool.backend.workers).toBe(0);
  });
});
