// Rules of the caller, prefixes, several prompts and tokens that are looked up: multihead/models on one thread and in workers.

import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { type GenerateOptions, type Model, openModel } from 'multihead/models';
import { afterAll, describe, expect, it } from 'vitest';
import type { SteppedGeneration } from '../src/models/core/engine.ts';
import { Group } from '../src/models/together.ts';
import { builds, rejectionOf } from './builds.ts';
import { folderWithTokenizer, goldens } from './tokenizer_files.ts';

const open = (name: string, simd: (typeof builds)[number], workers = 0): Promise<Model> =>
  openModel(join(goldens, name), { simd, ...(workers > 0 && { workers }) });

const withTokenizer = folderWithTokenizer('gpt2', 120);
afterAll(() => rmSync(withTokenizer, { recursive: true }));

const repeated = [3, 14, 15, 92, 65, 35, 3, 14, 15];
const idsOf = async (model: Model, options: GenerateOptions, prompt: number[] = repeated): Promise<readonly number[]> =>
  (await model.complete(prompt, { maxNewTokens: 16, ...options })).ids;

describe.each(builds)('many at once, %s', (simd) => {
  describe.each([0, 1, 2])('%d workers', (workers) => {
    it('lets the caller change the logits', async () => {
      using model = await open('llama3', simd, workers);
      const plain = await idsOf(model, {});
      const seen: number[][] = [];
      const unchanged = (ids: Int32Array, logits: Float32Array): void => {
        expect(logits.length).toBe(model.info.vocabSize);
        seen.push([...ids]);
        ids.fill(0);
      };
      expect(await idsOf(model, { logitsProcessor: unchanged })).toEqual(plain);
      expect(seen).toEqual(plain.map((_, at) => [...repeated, ...plain.slice(0, at)]));
      const odd = (_: Int32Array, logits: Float32Array): void => {
        for (let id = 0; id < logits.length; id += 2) logits[id] = -Infinity;
      };
      for (const more of [{}, { temperature: 1.5, seed: 3, repetitionPenalty: 1.3 }, { promptLookupNumTokens: 4 }]) {
        const ids = await idsOf(model, { logitsProcessor: odd, ...more });
        expect(ids.every((id) => id % 2 === 1)).toBe(true);
      }
      // The probabilities are of the changed logits; a token that occurred is the likeliest until the penalty counts.
      const two = (_: Int32Array, logits: Float32Array): void => {
        logits.fill(-Infinity);
        [logits[3], logits[4]] = [2, 1];
      };
      const options = { maxNewTokens: 1, logitsProcessor: two, topTokens: 2, repetitionPenalty: 4 };
      const { value: step } = await model.generate(repeated, options).next();
      expect(step?.topTokens.map(({ token }) => token)).toEqual([3, 4]);
      expect(step?.topTokens[0]?.probability).toBeCloseTo(1 / (1 + Math.exp(-1)), 6);
      expect(step?.token).toBe(4);
      expect(await idsOf(model, { logitsProcessor: two, stop: [3] })).toEqual([3]);
    });

    it('goes on after a processor that throws or forbids everything', async () => {
      using model = await open('gpt2', simd, workers);
      const plain = await idsOf(model, {});
      const thrown = new Error('no such rule');
      let calls = 0;
      const throws = (): void => {
        calls += 1;
        if (calls === 3) throw thrown;
      };
      await expect(idsOf(model, { logitsProcessor: throws })).rejects.toBe(thrown);
      for (const [value, got] of [
        [-Infinity, '-infinity alone'],
        [Number.NaN, 'NaN for token 0'],
      ] as const) {
        const error = await rejectionOf(idsOf(model, { logitsProcessor: (_, logits) => void logits.fill(value) }));
        expect(error.message).toContain(`logits: expected finite numbers, or -infinity where a token is not wanted, got ${got}`);
      }
      const wrong = await rejectionOf(idsOf(model, { logitsProcessor: (async () => {}) as never }));
      expect(wrong.message).toContain('logitsProcessor: expected a function that changes the logits and returns nothing');
      expect(await idsOf(model, {})).toEqual(plain);
      const disposes = await rejectionOf(idsOf(model, { logitsProcessor: () => model.dispose() }));
      expect(disposes.code).toBe('E_DISPOSED');
    });

    it.each(['gpt2', 'gemma3', 'mistral'])('%s: begins with a prefix', async (name) => {
      using model = await open(name, simd, workers);
      const whole = Array.from({ length: 24 }, (_, at) => (at * 7) % 50);
      const prefix = await model.prefix(whole.slice(0, 20));
      expect(prefix.ids).toEqual(whole.slice(0, 20));
      for (const options of [{}, { temperature: 1, seed: 4 }, { promptLookupNumTokens: 3 }]) {
        // All of it, some of it, or more of it than the prompt needs.
        for (const length of [24, 20, 15]) {
          const prompt = [...whole.slice(0, length - 1), 1];
          expect(await idsOf(model, { ...options, prefix }, prompt)).toEqual(await idsOf(model, options, prompt));
        }
      }
      const running = model.generate(whole, { prefix, maxNewTokens: 8 });
      const ids = [(await running.next()).value?.token];
      prefix.dispose();
      expect(prefix.disposed).toBe(true);
      for await (const { token } of running) ids.push(token);
      expect(ids).toEqual(await idsOf(model, { maxNewTokens: 8 }, whole));
      expect((await rejectionOf(idsOf(model, { prefix }, whole))).code).toBe('E_DISPOSED');
    });

    it('completes several prompts as each alone', async () => {
      for (const name of ['llama3', 'gemma3', 'gpt2', 'phi3_long']) {
        using model = await open(name, simd, workers);
        const prompts = [[1, 2, 3], repeated, Int32Array.of(9), ...Array.from({ length: 8 }, (_, at) => [at + 1, 2 * at])];
        for (const options of [{ maxNewTokens: 5 }, { maxNewTokens: 12, temperature: 1.2, seed: 6 }, { promptLookupNumTokens: 2, maxNewTokens: 9 }]) {
          const stop = (await model.complete(prompts[1] as number[], options)).ids.slice(2, 3);
          const alone = [];
          for (const prompt of prompts) alone.push(await model.complete(prompt, { ...options, stop, seed: (options.seed ?? 0) + alone.length }));
          expect(await model.complete(prompts, { ...options, stop }), name).toEqual(alone);
        }
      }
    });

    it('ends several prompts with the error of one, and goes on', async () => {
      using model = await open('llama3', simd, workers);
      expect((await rejectionOf(model.complete([[1, 2], [-1], [3]]))).argument).toBe('prompts[1]');
      let calls = 0;
      const logitsProcessor = (): void => {
        calls += 1;
        if (calls === 5) throw new Error('the fifth');
      };
      await expect(model.complete([[1, 2], [4], [3]], { logitsProcessor, maxNewTokens: 6 })).rejects.toThrow('the fifth');
      const signal = AbortSignal.abort();
      expect((await rejectionOf(model.complete([[1], [2]], { signal }))).code).toBe('E_ABORTED');
      expect(await model.complete([[1], [2]], { maxNewTokens: 1 })).toHaveLength(2);
      const edits = [{ site: 'z', layer: 0, scale: 0.5 }] as const;
      if (workers > 0) return;
      expect((await model.complete([[1, 5], [2]], { edits, maxNewTokens: 4 }))[0]?.ids).toEqual(
        await idsOf(model, { edits, maxNewTokens: 4 }, [1, 5]),
      );
    });

    it('looks up tokens, and gives those of one at a time', async () => {
      let all = 0;
      for (const name of ['gpt2', 'llama3', 'gemma3', 'phi3_long']) {
        using model = await open(name, simd, workers);
        const plain = await idsOf(model, {});
        for (const promptLookupNumTokens of [1, 3, 8]) {
          const { ids, accepted } = await model.complete(repeated, { promptLookupNumTokens, maxNewTokens: 16 });
          expect(ids, name).toEqual(plain);
          all += accepted;
          const drawn = { temperature: 0.5, seed: 2, repetitionPenalty: 1.1 };
          expect(await idsOf(model, { ...drawn, promptLookupNumTokens, maxMatchingNgramSize: 3 })).toEqual(await idsOf(model, drawn));
        }
      }
      expect(all).toBeGreaterThan(20);
    });
  });

  it('frees a prefix', async () => {
    using model = await open('gpt2', simd);
    const prompt = Array.from({ length: 40 }, (_, at) => at);
    for (let round = 0; round < 50; round += 1) {
      const prefix = await model.prefix(prompt, { cacheType: 'int8' });
      await model.complete(prompt, { prefix, maxNewTokens: 2 });
      prefix.dispose();
      prefix.dispose();
    }
    const left = await model.prefix(prompt);
    model.dispose();
    expect(left.disposed).toBe(true);
    left.dispose();
  });
});

it('waits for all of a group that have not ended', async () => {
  const passes: number[][] = [];
  const engine = { together: (all: readonly { id: number }[]) => void passes.push(all.map(({ id }) => id)) };
  const group = new Group(engine as never);
  const made = [1, 2, 3].map((id) => group.join({ id, next: async () => id, dispose: () => {} } as never));
  const [first, second, third] = made as [SteppedGeneration, SteppedGeneration, SteppedGeneration];
  const early = [first.next(), second.next()];
  await Promise.resolve();
  expect(passes).toEqual([]);
  const last = third.next();
  expect(passes).toEqual([[1, 2, 3]]);
  expect(await Promise.all([...early, last])).toEqual([1, 2, 3]);
  void third.next();
  const again = first.next();
  second.dispose();
  expect(passes[1]).toEqual([3, 1]);
  expect(await again).toBe(1);
});

it('copies what it is given for several prompts, also for those that wait, and names the one that is wrong', async () => {
  using model = await open('llama3', builds[0] as (typeof builds)[number]);
  const prompts = Array.from({ length: 12 }, () => Int32Array.of(3, 14));
  const options: { maxNewTokens: number } = { maxNewTokens: 3 };
  const alone = await model.complete([3, 14], options);
  const all = model.complete(prompts, options);
  for (const prompt of prompts) prompt.fill(1);
  options.maxNewTokens = 1;
  expect(await all).toEqual(prompts.map(() => alone));
  class Options {
    get maxNewTokens(): number {
      return 3;
    }
  }
  expect(await model.complete([[3, 14]], new Options())).toEqual([alone]);
  for (const [wrong, argument] of [
    [['a', 5], 'prompts[1]'],
    [[[1], [2], []], 'prompts[2]'],
    [[[1], [{ role: 1 }]], 'prompts[1][0]'],
  ] as const) {
    expect((await rejectionOf(model.complete(wrong as never))).argument).toBe(argument);
  }
  for (const wrong of [null, 7, 'x', [1]]) expect((await rejectionOf(model.complete([[1]], wrong as never))).argument).toBe('generate');
  for (const seed of ['5', 2 ** 53 - 1]) {
    expect(await rejectionOf(model.complete([[1], [2]], { seed: seed as number }))).toMatchObject({ argument: 'seed', got: JSON.stringify(seed) });
  }
});

it('ends only with tokens that it has', async () => {
  using model = await open('llama3', builds[0] as (typeof builds)[number]);
  const [token = 0] = await idsOf(model, { maxNewTokens: 1, numBeams: 2 });
  // Wraps to the token in 32 bits.
  for (const stop of [2 ** 32 + token, -1, model.info.vocabSize]) {
    expect(await rejectionOf(idsOf(model, { stop: ['a', stop], numBeams: 2 }))).toMatchObject({ argument: 'stop', got: `${stop} at [1]` });
  }
  expect((await rejectionOf(idsOf(model, { stop: Array(1025).fill(1) }))).got).toBe('1025');
});

it.each(['llama_dynamic', 'phi3_long'])('%s: angles that depend on the length', async (name) => {
  using model = await open(name, builds[0] as (typeof builds)[number]);
  const logitsOf = async (prompt: number[], options: GenerateOptions): Promise<Float32Array> => {
    let found = new Float32Array();
    await model.complete(prompt, { ...options, maxNewTokens: 1, logitsProcessor: (_, logits) => void (found = logits.slice()) });
    return found;
  };
  for (let first = 0; first < 48; first += 1) {
    const prompt = Array.from({ length: 2 + (first % 7) }, (_, at) => (first + at * at) % 5);
    const ids = await idsOf(model, { stop: [] }, prompt);
    expect(await idsOf(model, { stop: [], promptLookupNumTokens: 4, maxMatchingNgramSize: 1 }, prompt)).toEqual(ids);
    const longer = [...prompt, ...prompt, ...prompt];
    using prefix = await model.prefix(longer.slice(0, -1 - (first % 3)));
    const [with_, without] = [await logitsOf(longer, { prefix }), await logitsOf(longer, {})];
    expect(Math.max(...with_.map((value, at) => Math.abs(value - (without[at] as number))))).toBeLessThan(1e-4);
  }
});

it('says that it was aborted before, or disposed in the middle of a search', async () => {
  using model = await open('llama3', builds[0] as (typeof builds)[number]);
  expect((await rejectionOf(model.prefix([1, 2], { signal: AbortSignal.abort() }))).code).toBe('E_ABORTED');
  const search = model.complete(repeated, { maxNewTokens: 2000, numBeams: 32, stop: [] });
  setTimeout(() => model.dispose(), 30);
  expect(await rejectionOf(search)).toMatchObject({ code: 'E_DISPOSED', argument: 'model' });
});

it('several texts are completed by the tokenizer of the folder', async () => {
  using text = await openModel(withTokenizer);
  const both = await text.complete(['the cat', 'a dog'], { maxNewTokens: 3 });
  expect(both).toEqual([await text.complete('the cat', { maxNewTokens: 3 }), await text.complete('a dog', { maxNewTokens: 3 })]);
});

it('refuses what does not go together, and says so', async () => {
  const simd = builds[0] as (typeof builds)[number];
  using model = await open('gpt2', simd);
  using other = await open('gpt2', simd);
  const prefix = await model.prefix([1, 2, 3, 4, 5, 6]);
  const argumentOf = async (call: () => unknown): Promise<string | undefined> => (await rejectionOf((async () => call())())).argument;
  expect(await argumentOf(() => other.generate([1, 2], { prefix }))).toBe('prefix');
  expect(await argumentOf(() => model.generate([1, 2], { prefix: {} as never }))).toBe('prefix');
  expect(await argumentOf(() => model.generate([1, 2], { prefix, cacheType: 'f16' }))).toBe('cacheType');
  expect((await rejectionOf(model.complete([7, 8, 9], { prefix }))).message).toContain(
    'prompt: expected the whole prompt, which begins as its prefix does, got one with 0 of its 6 tokens',
  );
  expect(await argumentOf(() => model.generate([1], { logitsProcessor: 3 as never }))).toBe('logitsProcessor');
  expect(await argumentOf(() => model.generate([1], { promptLookupNumTokens: 65 }))).toBe('promptLookupNumTokens');
  expect(await argumentOf(() => model.generate([1], { maxMatchingNgramSize: 0 }))).toBe('maxMatchingNgramSize');
  for (const option of [{ logitsProcessor: () => {} }, { promptLookupNumTokens: 2 }, { prefix }])
    expect(await argumentOf(() => model.generate([1], { numBeams: 2, ...option }))).toBe(Object.keys(option)[0]);
  using classes = await open('bert', simd);
  expect(await argumentOf(() => classes.prefix([1]))).toBe('model');
  expect(await argumentOf(() => model.prefix([]))).toBe('prompt');
  expect(await argumentOf(() => model.prefix([1], { edits: [] } as never))).toBe('edits');
});
