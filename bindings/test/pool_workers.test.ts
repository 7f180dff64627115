// Workers that end: each is replaced, and the error is reported by the call that it ran; no call hangs, and nothing is
// left behind.

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { load, type Multihead, type MultiheadError, type TransformerConfig } from 'multihead';
import { createPool, type Pool, type PoolOptions } from 'multihead/pool';
import { afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { onlyThread, running, until } from './pool_threads.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});
afterEach(() => until(() => running.size === 0));

const r = random(1);
const small = { q: filled(r, 1, 2, 20, 8), k: filled(r, 1, 2, 30, 8), v: filled(r, 1, 2, 30, 8) };
const large = { q: filled(r, 1, 4, 2000, 64), k: filled(r, 1, 4, 2000, 64), v: filled(r, 1, 4, 2000, 64) };
/** Takes longer than a busy machine pauses a test: 4 seconds on a fast core. */
const long = filled(r, 1, 1, 40_000, 64);
const slow = { q: long, k: long, v: long };
const attention = (pool: Pool, of = small, options: object = {}) => pool.attention(of.q, of.k, of.v, options);
const pause = (milliseconds = 20) => new Promise((resolve) => setTimeout(resolve, milliseconds));

test('a worker that ends is reported with its call and replaced', async () => {
  using pool = await createPool({ workers: 1 });
  const cache = await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 4 });
  const thread = await onlyThread();
  const busy = rejectionOf(attention(pool, large));
  await new Promise((resolve) => setTimeout(resolve, 20));
  const errors = Promise.all([busy, rejectionOf(cache.length())]);
  await thread?.terminate();
  const [first, second] = await errors;
  expect(first?.code).toBe('E_WORKER');
  expect(first?.message).toContain('another takes its place');
  expect(second?.code).toBe('E_WORKER');
  expect((await rejectionOf(cache.length())).message).toContain('lost');
  expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
  expect(pool.backend.workers).toBe(1);
});

describe.each(['auto', 'messages'] as const)('a worker that goes on with an aborted call, exchange: %s', (exchange) => {
  const open = (workers: number, options: PoolOptions = {}) => createPool({ workers, exchange, abortGrace: 30, ...options });

  test('is ended and replaced, and calls that wait run in the new one', async () => {
    using pool = await open(1);
    const thread = await onlyThread();
    const controller = new AbortController();
    const aborted = rejectionOf(attention(pool, slow, { signal: controller.signal }));
    const waiting = attention(pool);
    await pause();
    controller.abort();
    expect((await aborted).code).toBe('E_ABORTED');
    expect((await waiting).out.shape).toEqual([1, 2, 20, 8]);
    expect(running.has(thread as never)).toBe(false);
    expect(pool.backend.workers).toBe(1);
  });

  test('takes along what lived in it, and says so', async () => {
    using pool = await open(1);
    const config = { numKvHeads: 2, headDim: 8, capacity: 4 };
    const cache = await pool.createCache(config);
    const controller = new AbortController();
    const aborted = rejectionOf(attention(pool, slow, { signal: controller.signal }));
    const waiting = rejectionOf(cache.length());
    await pause();
    controller.abort();
    expect((await aborted).code).toBe('E_ABORTED');
    const message = 'the worker in which this object lived has ended (an aborted call still ran in it after 30 ms), and the object is lost';
    for (const error of [await waiting, await rejectionOf(cache.length())]) {
      expect([error.code, error.argument]).toEqual(['E_WORKER', 'this']);
      expect(error.message).toContain(message);
    }
    cache.dispose();
    const another = await pool.createCache(config);
    expect(await another.length()).toBe(0);
    expect((await attention(pool)).out.shape).toEqual([1, 2, 20, 8]);
  });

  test('stays if the call ends in time, with what lives in it', async () => {
    using pool = await open(1, { abortGrace: Infinity });
    const cache = await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 4 });
    const thread = await onlyThread();
    const controller = new AbortController();
    const aborted = rejectionOf(attention(pool, large, { signal: controller.signal }));
    await pause();
    controller.abort();
    expect((await aborted).code).toBe('E_ABORTED');
    expect(await cache.length()).toBe(0);
    expect(await onlyThread()).toBe(thread);
  });

  test('has a second, and ten if objects live in it', async () => {
    using pool = await createPool({ workers: 1, exchange });
    for (const [objects, milliseconds] of [
      [false, 1000],
      [true, 10_000],
    ] as const) {
      const thread = await onlyThread();
      // Held until the end: the garbage collector would free an object that nothing refers to.
      using _cache = objects ? await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 4 }) : undefined;
      const ended = new Promise((resolve) => thread?.once('exit', resolve));
      const terminate = vi.spyOn(thread as never, 'terminate' as never);
      const controller = new AbortController();
      const aborted = rejectionOf(attention(pool, slow, { signal: controller.signal }));
      await pause();
      vi.useFakeTimers({ toFake: ['setTimeout'] });
      try {
        controller.abort();
        vi.advanceTimersByTime(milliseconds - 1);
        expect(terminate).not.toHaveBeenCalled();
        vi.advanceTimersByTime(1);
        expect(terminate).toHaveBeenCalled();
      } finally {
        vi.useRealTimers();
      }
      expect((await aborted).code).toBe('E_ABORTED');
      await ended;
    }
  });

  test('under load: every promise settles, and nothing is left behind', async () => {
    using pool = await open(2, { abortGrace: 0, leastWork: 1 });
    const expected = mh.scope(() => copied(mh.attention(large.q, large.k, large.v)));
    const choose = random(8);
    for (let round = 0; round < 10; round += 1) {
      const controllers = Array.from({ length: 4 }, () => new AbortController());
      const calls = controllers.map(({ signal }) => attention(pool, large, { signal }));
      const settled = Promise.allSettled(calls);
      await pause(choose.int(0, 300));
      controllers.forEach((each, index) => index > 0 && each.abort());
      const [first, ...others] = await settled;
      expect(first?.status).toBe('fulfilled');
      for (const each of [first, ...others]) {
        if (each?.status === 'rejected') expect((each.reason as MultiheadError).code).toBe('E_ABORTED');
        else sameResults(each?.value, expected, `round ${round}`);
      }
    }
    await until(() => running.size === 2 && pool.backend.workers === 2);
    for (const { live } of await Promise.all([pool.memory(), pool.memory()])) expect(live).toBe(0);
  });
});

describe('workers that share an object', () => {
  const config: TransformerConfig = { embedDim: 160, numHeads: 4, numLayers: 2, vocabSize: 300, mlpDim: 160, rope: { style: 'half' } };
  const shared = async (pool: Pool) => {
    const model = await pool.transformer(config, { workers: 'all' });
    await model.initialize({ seed: 1 });
    return model;
  };
  const ids = (count: number) => Int32Array.from({ length: count }, (_, at) => at % 300);

  test('end together if they go on with an aborted call of it', async () => {
    using pool = await createPool({ workers: 2, abortGrace: 30 });
    const model = await shared(pool);
    await until(() => running.size === 2);
    const threads = [...running];
    const controller = new AbortController();
    const aborted = rejectionOf(model.forward(ids(4000), { signal: controller.signal }));
    await pause();
    controller.abort();
    expect((await aborted).code).toBe('E_ABORTED');
    const waiting = await rejectionOf(model.forward(ids(2)));
    for (const error of [waiting, await rejectionOf(model.forward(ids(2)))]) {
      expect([error.code, error.argument]).toEqual(['E_WORKER', 'this']);
      expect(error.message).toContain('an aborted call still ran in it after 30 ms');
    }
    await until(() => running.size === 2 && pool.backend.workers === 2);
    expect(threads.some((each) => running.has(each))).toBe(false);
    const another = await shared(pool);
    expect((await another.forward(ids(2))).logits.shape).toEqual([1, 2, 300]);
  });

  test('stay if the aborted call waits for one of them, which is busy with another call', async () => {
    using pool = await createPool({ workers: 2, leastWork: 1e15 });
    const model = await shared(pool);
    await until(() => running.size === 2);
    const threads = [...running];
    const terminated = threads.map((each) => vi.spyOn(each, 'terminate'));
    const busy = attention(pool, large);
    const controller = new AbortController();
    const aborted = rejectionOf(model.forward(ids(4), { signal: controller.signal }));
    await pause();
    vi.useFakeTimers({ toFake: ['setTimeout'] });
    controller.abort();
    vi.advanceTimersByTime(100_000);
    vi.useRealTimers();
    for (const each of terminated) expect(each).not.toHaveBeenCalled();
    expect((await aborted).code).toBe('E_ABORTED');
    await busy;
    expect((await model.forward(ids(4))).logits.shape).toEqual([1, 4, 300]);
    expect([...running]).toEqual(threads);
  });

  test('do not wait for one that has ended, also if their call was aborted before', async () => {
    using pool = await createPool({ workers: 2, abortGrace: Infinity, leastWork: 1e15 });
    await until(() => running.size === 2);
    const model = await shared(pool);
    const busy = rejectionOf(attention(pool, slow));
    await pause();
    const controller = new AbortController();
    const aborted = rejectionOf(model.forward(ids(4), { signal: controller.signal }));
    await pause();
    controller.abort();
    expect((await aborted).code).toBe('E_ABORTED');
    const [first] = [...running];
    await first?.terminate();
    expect((await busy).code).toBe('E_WORKER');
    await until(() => pool.backend.workers === 2);
    const cache = await pool.createCache({ numKvHeads: 2, headDim: 8, capacity: 4 }, { workers: 'all' });
    expect(await cache.length()).toBe(0);
  });
});

/** Measures the memory of this process after a garbage collection. Ended threads free their memory a little later. */
async function memory(): Promise<{ heap: number; buffers: number; rss: number }> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  for (let times = 0; times < 5; times += 1) {
    collect();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const { heapUsed, arrayBuffers, rss } = process.memoryUsage();
  return { heap: heapUsed, buffers: arrayBuffers, rss };
}

type Arrays = { readonly data: Float32Array; readonly shape: readonly number[] };
const plain = ({ data, shape }: Arrays) => ({ data: data.slice(), shape });

/** Calls of all kinds (divided, with transferred buffers, of objects), each with the expected result of one thread. */
const kindsOf = (pool: Pool) =>
  mh.scope((): [run: () => Promise<object>, expected: object][] => {
    const all = { workers: 'all' } as const;
    const { q, k, v } = small;
    const lse = { return: ['lse'] } as const;
    const tokens = filled(r, 40, 2, 8);
    const cu = { cuQ: Int32Array.of(0, 30, 40), cuK: Int32Array.of(0, 30, 40) };
    const [whole, packed] = [mh.attention(q, k, v, lse), mh.attentionVarlen(tokens, tokens, tokens, { ...cu, ...lse })];
    const inputs = { q, k, v, out: plain(whole.out), lse: plain(whole.lse), dOut: filled(r, 1, 2, 20, 8) };
    const ofTokens = { q: tokens, k: tokens, v: tokens, out: plain(packed.out), lse: plain(packed.lse), dOut: filled(r, 40, 2, 8) };
    const ofCache = { numKvHeads: 2, headDim: 8, capacity: 40 };
    const stage = { stage: 'weights', chunk: 6 } as const;
    const config: TransformerConfig = { embedDim: 160, numHeads: 4, numLayers: 2, vocabSize: 300, mlpDim: 160, rope: { style: 'half' } };
    const ids = Int32Array.from({ length: 12 }, (_, at) => (at * 37) % 300);

    const calls = {
      attention: () => pool.attention(q, k, v, lse),
      async transfer() {
        const { operands: _, ...results } = await pool.attention(plain(q), plain(k), plain(v), { ...lse, transfer: true });
        return results;
      },
      varlen: () => pool.attentionVarlen(tokens, tokens, tokens, { ...cu, ...lse }),
      backward: () => pool.attentionBackward(inputs),
      varlenBackward: () => pool.attentionVarlenBackward(ofTokens, cu),
      async scores() {
        const chunks = [];
        for await (const chunk of pool.scores(q, k, stage)) chunks.push(chunk);
        return chunks;
      },
      async cache() {
        using cache = await pool.createCache(ofCache, all);
        await cache.append(k, v);
        return await cache.attend(q, lse);
      },
      async transformer() {
        using model = await pool.transformer(config, all);
        await model.initialize({ seed: 1 });
        using cache = await model.createCache({ capacity: 20 });
        const { logits } = await model.step(ids, cache);
        return [logits, (await model.step(ids.subarray(3, 4), cache)).logits];
      },
      async trainer() {
        using model = await pool.transformer(config, all);
        await model.initialize({ seed: 1 });
        using trainer = await pool.trainer(model);
        return [await trainer.step(ids, ids), await trainer.step(ids, ids)];
      },
    };

    const cache = mh.createCache(ofCache);
    cache.append(k, v);
    const model = mh.transformer(config);
    model.initialize({ seed: 1 });
    const kept = model.createCache({ capacity: 20 });
    const logits = [ids, ids.subarray(3, 4)].map((each) => model.step(each, kept).logits);
    const trainer = mh.trainer(model);
    const expected: Record<keyof typeof calls, object> = {
      ...{ attention: whole, transfer: whole, varlen: packed },
      ...{ backward: mh.attentionBackward(inputs), varlenBackward: mh.attentionVarlenBackward(ofTokens, cu) },
      ...{ scores: [...mh.scores(q, k, stage)], cache: cache.attend(q, lse), transformer: logits },
      trainer: [trainer.step(ids, ids), trainer.step(ids, ids)],
    };
    // Tensors do not outlive the scope.
    return Object.entries(calls).map(([name, run]) => [run, copied(expected[name as keyof typeof calls])]);
  });

/** Replaces tensors in results by copies. */
function copied<T>(value: T): T {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return value;
  if ('dispose' in value) return plain(value as unknown as Arrays) as T;
  if (Array.isArray(value)) return value.map(copied) as T;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, copied(each)])) as T;
}

// A thousand rounds of each kind take some minutes.
const rounds = Number(process.env['MULTIHEAD_KILL_ROUNDS'] ?? 60);

describe.each(['auto', 'messages'] as const)('a random worker ends under load, exchange: %s', (exchange) => {
  test(`${rounds} times: every promise settles, and memory does not grow`, { timeout: 60_000 + 2000 * rounds }, async () => {
    using pool = await createPool({ workers: 2, leastWork: 1, exchange });
    const kinds = kindsOf(pool);
    await until(() => running.size === 2);
    let [ok, lost] = [0, 0];
    let before: Awaited<ReturnType<typeof memory>> | undefined;
    let ended: Promise<number> | undefined;
    const choose = random(5);
    for (let round = 0; round < rounds; round += 1) {
      const chosen = Array.from({ length: 6 }, () => choose.pick(kinds));
      const settled = Promise.allSettled(chosen.map(([run]) => run()));
      const threads = [...running];
      if (choose.next() < 0.5) await new Promise((resolve) => setTimeout(resolve, choose.int(0, 4)));
      ended = threads[choose.int(0, threads.length - 1)]?.terminate();
      (await settled).forEach((result, index) => {
        if (result.status === 'rejected') {
          expect((result.reason as MultiheadError).code, String(result.reason)).toBe('E_WORKER');
          lost += 1;
        } else {
          sameResults(result.value, chosen[index]?.[1], `round ${round}`);
          ok += 1;
        }
      });
      if (round === Math.floor(rounds / 3)) before = await memory();
    }
    expect([ok > rounds, lost > 0]).toEqual([true, true]);
    // Wait for the last worker to end, because its end could still reject a later call.
    await ended;
    await until(() => running.size === 2 && pool.backend.workers === 2);
    await attention(pool);
    for (const { live } of await Promise.all([pool.memory(), pool.memory()])) expect(live).toBe(0);
    let after = await memory();
    const grown = (what: keyof typeof after): number => (after[what] - (before?.[what] ?? 0)) / 2 ** 20;
    // On a busy machine, threads end late, and each holds 4 MiB for every shared object.
    for (let again = 0; again < 100 && grown('buffers') > 10; again += 1) after = await memory();
    expect(grown('heap')).toBeLessThan(10);
    expect(grown('buffers')).toBeLessThan(10);
    expect(grown('rss')).toBeLessThan(150);
  });
});
