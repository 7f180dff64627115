// Tests that a run survives a look at the other kind of training, with the real module behind ports instead of workers.

import { load } from 'multihead';
import { afterAll, describe, expect, it, vi } from 'vitest';
import { createTrainings } from '../../src/training/kinds.js';
import type { Run } from '../../src/training/run.js';
import type { TrainingView } from '../../src/training/view.js';
import { portOf } from './port.js';
import { usualSettings } from './usual_settings.js';

vi.setConfig({ testTimeout: 30_000 });
const mh = await load();
const runs: Run[] = [];
afterAll(() => runs.forEach((run) => run.end()));

function setUp() {
  const session = createTrainings(usualSettings('fourJobs'), { startWorker: () => portOf(mh, runs), nextFrame: (run) => setTimeout(run) });
  const until = (holds: (view: TrainingView) => boolean) => vi.waitUntil(() => holds(session.view.get()), { timeout: 10_000, interval: 5 });
  return { session, until };
}

describe('trainings of both kinds', () => {
  it('a run survives a look at the other kind, and going back starts none', async () => {
    const { session, until } = setUp();
    void session.train();
    await until(({ step }) => step >= 10);
    await session.reset(usualSettings('induction'));
    await until(({ curve, shown }) => curve.settings.kind === 'induction' && shown?.step === 0);
    expect(session.view.get().status).toBe('paused');
    await session.step();
    await until(({ step }) => step === 1);
    const induction = session.view.get().model;
    await session.reset(usualSettings('fourJobs'), false);
    await until(
      ({ curve, step, measured, status }) => curve.settings.kind === 'fourJobs' && step >= 10 && measured !== undefined && status === 'paused',
    );
    const { model, curve, step } = session.view.get();
    expect([model === induction, curve.losses.length]).toEqual([false, step]);
    await session.step();
    await until((view) => view.step === step + 1);
    await session.reset(usualSettings('induction'));
    expect(session.view.get()).toMatchObject({ step: 1, curve: { settings: { kind: 'induction' } } });
  });

  it('a kind with other settings than its run begins anew, and does not train', async () => {
    const { session, until } = setUp();
    await session.step();
    await until(({ step }) => step === 1);
    await session.reset(usualSettings('induction'));
    await session.reset({ ...usualSettings('fourJobs'), seed: 3 });
    await until(({ curve, step, status }) => curve.settings.seed === 3 && step === 0 && status === 'paused');
  });

  it('the same kind trains on with another seed, but not after Back', async () => {
    const { session, until } = setUp();
    void session.train();
    await until(({ step }) => step >= 5);
    await session.reset({ ...usualSettings('fourJobs'), seed: 4 });
    await until(({ curve, step, status }) => curve.settings.seed === 4 && status === 'running' && step > 2);
    await session.reset({ ...usualSettings('fourJobs'), seed: 5 }, false);
    await until(({ curve, step, status }) => curve.settings.seed === 5 && status === 'paused' && step === 0);
  });
});
