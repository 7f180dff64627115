// Tests the training as the page sees it, with the real module behind ports instead of workers.

import { load } from 'multihead';
import { afterAll, describe, expect, it, vi } from 'vitest';
import type { Run } from '../../src/training/run.js';
import { createTraining, type TrainingSession } from '../../src/training/session.js';
import { defaultSeed } from '../../src/training/settings.js';
import type { TrainingView } from '../../src/training/view.js';
import { portOf } from './port.js';
import { usualSettings } from './usual_settings.js';

// The tests train for real: on a busy machine a test takes seconds.
vi.setConfig({ testTimeout: 30_000 });

const mh = await load();
const runs: Run[] = [];
afterAll(() => {
  for (const run of runs) run.end();
  expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
});

const startPort = (delay?: number) => portOf(mh, runs, delay);

function setUp(settings = usualSettings('induction'), delay = 0) {
  const ports: ReturnType<typeof startPort>[] = [];
  const session = createTraining(settings, {
    startWorker: () => ports[ports.push(startPort(delay)) - 1]!,
    nextFrame: (run) => setTimeout(run),
  });
  return { session, ports };
}

const until = (session: TrainingSession, holds: (view: TrainingView) => boolean) =>
  vi.waitUntil(() => holds(session.view.get()), { timeout: 10_000, interval: 5 });

describe('a training session', () => {
  it('starts no worker until it is needed', async () => {
    const { session, ports } = setUp();
    await session.reset({ ...usualSettings('induction'), seed: 3 });
    await until(session, ({ curve }) => curve.settings.seed === 3);
    expect(ports.length).toBe(0);
    await session.startWorkers();
    expect(ports.length).toBe(2);
    await until(session, ({ shown }) => shown?.step === 0);
    expect(session.view.get().smallerRun?.settings.layers).toBe(1);
  });

  it('trains, pauses, goes back and on, with the same losses', async () => {
    const { session } = setUp();
    const done = session.train();
    await until(session, ({ step }) => step >= 20);
    session.pause();
    await done;
    await until(session, ({ status, measured }) => status === 'paused' && measured !== undefined);
    const { step, curve, moments, last } = session.view.get();
    expect(last).toBe(step);
    expect(moments).toContain(step);
    const losses = [...curve.losses];
    session.goTo(11);
    await until(session, (view) => view.step === 10);
    expect(session.view.get().last).toBe(step);
    expect(session.view.get().shown?.step).toBe(10);
    await session.step();
    await until(session, (view) => view.step === 11);
    expect(session.view.get().curve.losses).toEqual(losses);
  });

  it('keeps the run before on the chart, if it is of the same kind', async () => {
    const { session } = setUp();
    const settings = usualSettings('induction');
    const train = async (steps: number) => {
      const done = session.train();
      await until(session, ({ step }) => step >= steps);
      session.pause();
      await done;
    };
    await train(20);
    const first = session.view.get().curve;
    await session.reset({ ...settings, seed: 5 });
    await until(session, ({ step, earlier }) => step === 0 && earlier === first);
    await session.reset({ ...settings, seed: 6 });
    await until(session, ({ curve, earlier }) => curve.settings.seed === 6 && earlier === first);
    session.dropEarlier();
    await until(session, ({ earlier }) => earlier === undefined);
    await session.reset(usualSettings('fourJobs'));
    await until(session, ({ curve }) => curve.settings.kind === 'fourJobs');
    expect(session.view.get().earlier).toBeUndefined();
  });

  it('a run that goes on goes on with new settings', async () => {
    const { session } = setUp();
    const done = session.train();
    await until(session, ({ step }) => step >= 5);
    await session.reset({ ...usualSettings('induction'), seed: 9 });
    await done;
    await until(session, ({ status, step, curve }) => curve.settings.seed === 9 && status === 'running' && step > 5);
    session.pause();
    await until(session, ({ status }) => status === 'paused');
  });

  it('drops the reports of a run that was replaced', async () => {
    const { session } = setUp(usualSettings('induction'), 30);
    const wholeCurves: boolean[] = [];
    session.view.watch(({ curve, smallerRun }) => {
      const lists = [curve.losses, smallerRun?.losses ?? []];
      wholeCurves.push(lists.every((losses) => Object.keys(losses).length === losses.length));
    });
    void session.train();
    const trains = (seed: number) =>
      until(session, ({ step, curve, smallerRun }) => curve.settings.seed === seed && Math.min(step, smallerRun?.losses.length ?? 0) >= 5);
    await trains(defaultSeed);
    for (const seed of [21, 22, 23]) {
      await session.reset({ ...usualSettings('induction'), seed });
      await trains(seed);
    }
    expect(wholeCurves).not.toContain(false);
    const mixed = session.view.get().smallerRun!.losses.slice(0, 3);
    session.pause();
    await until(session, ({ status }) => status === 'paused');
    const alone = setUp({ ...usualSettings('induction'), seed: 23 }).session;
    void alone.train();
    await until(alone, ({ smallerRun }) => (smallerRun?.losses.length ?? 0) >= 3);
    alone.pause();
    expect(mixed).toEqual(alone.view.get().smallerRun!.losses.slice(0, 3));
  });

  it('goes on reporting if a part of the page throws', async () => {
    const errors: unknown[] = [];
    const session = createTraining(usualSettings('induction'), {
      startWorker: () => startPort(),
      nextFrame: (run) =>
        setTimeout(() => {
          try {
            run();
          } catch (error) {
            errors.push(error);
          }
        }),
    });
    session.view.watch(({ step }) => {
      if (step >= 3 && errors.length === 0) throw new Error('cannot draw');
    });
    void session.train();
    await until(session, ({ step }) => step >= 10);
    session.pause();
    await until(session, ({ status }) => status === 'paused');
    expect(errors).toEqual([new Error('cannot draw')]);
  });

  it('mutes heads until the model changes', async () => {
    const { session } = setUp();
    await session.step();
    await session.mute([1]);
    await until(session, ({ muting }) => muting !== undefined);
    expect(session.view.get().muting?.before).toEqual(session.view.get().measured);
    await session.mute([]);
    await until(session, ({ muting }) => muting === undefined);
    await session.mute([0]);
    await session.step();
    await until(session, ({ step }) => step === 2);
    expect(session.view.get().muted).toEqual([]);
  });

  it('a refused setting leaves the run as it is', async () => {
    const { session } = setUp();
    await session.step();
    await session.reset({ ...usualSettings('induction'), rate: Number.NaN });
    await until(session, ({ message }) => message.includes('learningRate'));
    expect(session.view.get().step).toBe(1);
    await session.step();
    await until(session, ({ step, message }) => step === 2 && message === '');
  });

  it('says that its worker is lost, and starts another on demand', async () => {
    const { session, ports } = setUp();
    const done = session.train();
    await until(session, ({ step }) => step >= 10);
    ports[0]!.kill();
    await done;
    await until(session, ({ status }) => status === 'lost');
    expect(session.view.get().message).toMatch(/^The training is lost: killed\. Start again/);
    await session.step();
    await until(session, ({ status, step }) => status === 'paused' && step === 1);
    expect(ports.length).toBe(4);
  });
});
