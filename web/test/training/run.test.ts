// Tests the worker's side of a training with the real module.

import { load } from 'multihead';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { unbent } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import { colorOf } from '../../src/attention/patterns.js';
import type { Progress } from '../../src/training/messages.js';
import type { Limits } from '../../src/training/moments.js';
import { Run } from '../../src/training/run.js';
import { usualSettings } from './usual_settings.js';

// The tests train for real: on a busy machine a test takes seconds.
vi.setConfig({ testTimeout: 30_000 });

const mh = await load();
const empty = mh.memory();
let open: Run[] = [];
afterEach(() => {
  for (const run of open) run.end();
  open = [];
  // Tests of other files use the same module, and the garbage collector may free what they left.
  const { live, bytes } = mh.memory();
  expect(live).toBeLessThanOrEqual(empty.live);
  expect(bytes).toBeLessThanOrEqual(empty.bytes);
});

function setUp(report: (progress: Progress, run: Run) => void = () => {}, limits?: Limits): Run {
  const run: Run = new Run(mh, (progress) => report(progress, run), limits);
  open.push(run);
  return run;
}

const fourJobs = usualSettings('fourJobs');
const induction = usualSettings('induction');

describe('a run', () => {
  it('reports every loss once, and a frame every ten steps', async () => {
    const reports: Progress[] = [];
    const run = setUp((progress, self) => {
      reports.push(progress);
      self.seen();
    });
    const { tokens, progress } = run.start(induction, false);
    expect(tokens.length).toBe(32);
    expect(progress.frames.map(({ step }) => step)).toEqual([0]);
    reports.push(await run.run(25));
    const losses = reports.flatMap(({ losses: some }) => some);
    expect(losses.length).toBe(25);
    expect(reports.flatMap(({ frames }) => frames.map(({ step }) => step))).toEqual([10, 20, 25]);
    expect(reports.at(-1)?.moments).toEqual([0, 10, 20, 25]);
    const { maps, attention, jobAccuracy } = reports.at(-1)!.frames.at(-1)!;
    expect([maps.length, attention.length, jobAccuracy.length]).toEqual([4 * 32 * 32, 4 * 2, 1]);
    for (let row = 0; row < 4 * 32; row += 1) {
      expect(maps.subarray(row * 32, (row + 1) * 32).reduce((sum, weight) => sum + weight)).toBeCloseTo(1, 4);
    }
  });

  it('keeps moments of its whole length, and one of each step at which it stopped', async () => {
    const run = setUp(undefined, { count: 12, bytes: 1e9 });
    run.start({ ...induction, layers: 1, heads: 1 }, false);
    for (const until of [125, 300]) {
      const { moments } = await run.run(until);
      const distances = moments.slice(1).map((step, i) => step - moments[i]!);
      expect(moments.at(-1)).toBe(until);
      expect(Math.max(...distances), moments.join()).toBeLessThanOrEqual(until / 4);
    }
  });

  it('gives the same numbers for the same seed, also after it has gone back', async () => {
    let losses: number[] = [];
    const run = setUp((progress) => losses.push(...progress.losses));
    const trainTo = async (until: number) => {
      losses = [];
      const progress = await run.run(until);
      return { frame: progress.frames.at(-1), losses: [...losses, ...progress.losses] };
    };
    run.start(fourJobs, false);
    const whole = await trainTo(30);
    run.goTo(10);
    const again = await trainTo(30);
    expect(again.losses).toEqual(whole.losses.slice(10));
    expect(again.frame).toEqual(whole.frame);
    run.start(fourJobs, false);
    expect((await trainTo(30)).losses).toEqual(whole.losses);
    run.start({ ...fourJobs, seed: 13 }, false);
    expect((await trainTo(5)).losses).not.toEqual(whole.losses.slice(0, 5));
  });

  it('waits with its next report until the last one was seen', async () => {
    const reports: Progress[] = [];
    const run = setUp((progress) => reports.push(progress));
    run.start(induction, false);
    const rest = await run.run(12);
    expect(reports.length).toBe(1);
    expect(reports[0]!.losses.length + rest.losses.length).toBe(12);
  });

  it('pauses between two steps', async () => {
    let pausedAt = 0;
    const run = setUp((progress, self) => {
      self.seen();
      if (progress.step < 3) return;
      pausedAt = progress.step;
      self.pause();
    });
    run.start(fourJobs, false);
    expect((await run.run(1000)).step).toBe(pausedAt);
    expect(run.step().step).toBe(pausedAt + 1);
  });

  it('a small run has a map on the same sequence, and no moments', async () => {
    const run = setUp();
    const { tokens } = run.start({ ...fourJobs, heads: 1 }, true);
    expect(tokens).toEqual(setUp().start(fourJobs, false).tokens);
    const { moments, frames } = await run.run(10);
    expect(moments).toEqual([]);
    expect(frames.map(({ maps }) => maps.length)).toEqual([32 * 32]);
    expect(() => run.goTo(0)).toThrow('no saved moment of step 0');
  });

  it('a start that fails leaves the run before', async () => {
    const run = setUp();
    expect(() => run.step()).toThrow('No training');
    run.start(fourJobs, false);
    await run.run(3);
    expect(() => run.start({ ...fourJobs, rate: 0 }, false)).toThrow('learningRate');
    expect(() => run.start({ ...fourJobs, heads: 10_000 }, false)).toThrow('numHeads');
    expect(run.step().step).toBe(4);
  });

  it('a new start ends a run that goes on', async () => {
    const run = setUp();
    run.start(fourJobs, false);
    const ended = run.run(1000);
    run.start(induction, false);
    expect(await ended).toMatchObject({ losses: [], frames: [] });
    expect((await run.run(2)).step).toBe(2);
  });

  it('measures what is lost with a muted head', async () => {
    const run = setUp();
    run.start(induction, false);
    await run.run(20);
    const { before, after } = run.mute([0, 1, 2, 3]);
    expect(before).toEqual(run.measure());
    expect(after).not.toEqual(before.jobAccuracy);
    expect(run.mute([]).after).toEqual(before.jobAccuracy);
  });

  it('rounds of training and starting anew leave nothing', () => {
    const run = setUp();
    run.start(fourJobs, false);
    const { live, bytes } = run.step().memory;
    for (let round = 0; round < 6; round += 1) {
      run.start(round % 2 ? fourJobs : induction, false);
      run.step();
      run.prompt(0);
      run.tick();
    }
    run.start(fourJobs, false);
    expect(run.step().memory).toMatchObject({ live, bytes });
  });
});

describe('generation', () => {
  it('gives the same tokens with a cache as without', async () => {
    const run = setUp();
    run.start(induction, false);
    await run.run(5);
    const { tokens, period } = run.prompt(1);
    expect(tokens.length).toBe(period + 1);
    let length = tokens.length;
    const ticks = Array.from({ length: 48 - length }, () => run.tick());
    ticks.forEach((tick, i) => {
      expect(tick.cached.token).toBe(tick.plain.token);
      expect(tick.plain.rows).toBe(length);
      expect(tick.cached.rows).toBe(i === 0 ? length : 1);
      length += 1;
      expect(tick.length).toBe(length);
    });
    expect(() => run.tick()).toThrow('48 tokens');
  });

  it('ends when the model changes', () => {
    const run = setUp();
    expect(() => run.prompt(0)).toThrow('No training');
    run.start(induction, false);
    expect(() => run.tick()).toThrow('no prompt');
    run.prompt(0);
    run.tick();
    run.step();
    expect(() => run.tick()).toThrow('no prompt');
  });
});

describe('the heads of a layer', () => {
  it('read the letters of a text that the model knows, and have the weights of the model', async () => {
    const run = setUp();
    run.start(fourJobs, false);
    const { maps } = (await run.run(20)).frames.at(-1)!;
    const { ofText, tokens, x, embedDim, headDim, weights, ...rest } = run.heads('Bad, ★ zoo!', null);
    expect([tokens.join(''), ofText, embedDim, headDim]).toEqual(['bad★oo', true, 64, 16]);
    expect(rest).toEqual({ layer: 0, layers: 1, rope: { style: 'half' } });
    expect(Object.values(weights).map(({ length }) => length)).toEqual([4096, 4096, 4096, 4096]);
    expect(x.length).toBe(6 * 64);
    // The maps of the training are on its own sequence, which is read if the text has no letters.
    const sample = run.heads('…', null);
    expect(sample.ofText).toBe(false);
    const heads = [0, 1, 2, 3].map(colorOf);
    const given = { ...sample, key: '', names: heads, line: '' };
    const input = { given, heads, tokens: sample.tokens, causal: true, bend: unbent };
    const { trace } = mh.scope(() => createForward(mh)(input));
    const furthest = maps.reduce((most, value, i) => Math.max(most, Math.abs(value - trace.weights.data[i]!)), 0);
    expect(furthest).toBeLessThan(1e-6);
  });

  it('are of the layer that was asked for, else of the last', async () => {
    const run = setUp();
    run.start(induction, false);
    expect([null, 0, 1, 7].map((layer) => run.heads('abc 7', layer).layer)).toEqual([1, 0, 1, 1]);
    expect(run.heads('abc 7', 0).tokens.join('')).toBe('ABC7');
    expect(run.heads('abc', 0).weights.qProj).not.toEqual(run.heads('abc', 1).weights.qProj);
  });
});
