// The training on the page: a run, a smaller model that trains for comparison, and the curve of the previous run. Its
// two workers start on first use.

import { messageOf } from '../base/format.js';
import { createStore, type Store } from '../base/store.js';
import { lacksFile } from '../workers/missing_file.js';
import { ignore, type Failure } from '../workers/protocol.js';
import type { Port } from '../workers/remote.js';
import { connect, type Client } from './client.js';
import { Curve } from './curve.js';
import type { Frame, Progress } from './messages.js';
import { factsOf, smaller, type TrainingSettings } from './settings.js';
import { blank, changed, earlierOf, type TrainingView } from './view.js';

/** Maximum number of steps. More steps teach nothing new. */
export const mostSteps = 3000;
/** Milliseconds after the last move of the scrubber before the worker goes to the moment. */
const settleAfter = 120;

export interface TrainingSession {
  readonly view: Store<TrainingView>;
  /** Starts a new run at step 0. It trains at once if the previous run was training, unless `goesOn` is false. */
  reset(settings: TrainingSettings, goesOn?: boolean): Promise<void>;
  startWorkers(): Promise<void>;
  train(): Promise<void>;
  pause(): void;
  step(): Promise<void>;
  /** Shows the nearest saved moment; `train` and `step` continue from there. */
  goTo(step: number): void;
  /** Mutes exactly these heads, given as layer · heads + head, and measures the accuracy without them. */
  mute(heads: readonly number[]): Promise<void>;
  dropEarlier(): void;
  /** Makes any other call of the main worker, with the model of the step that is shown. */
  readonly call: Client['call'];
}

/** Functions of the browser, which tests replace. */
export interface Browser {
  startWorker(): Port;
  nextFrame(run: () => void): void;
}
/** Animation frames per update during training: every second frame is left to the rest of the page. */
const framesOfTraining = 2;

export function createTraining(first: TrainingSettings, { startWorker, nextFrame }: Browser): TrainingSession {
  const view = createStore(blank(first));
  const frames = new Map<number, Frame>();
  let smallerFrames: Frame[] = [];
  let now = view.get();
  let main: Client | undefined;
  let smallerClient: Client | undefined;
  /** The numbers of the runs on the screen. Reports of other runs are dropped. */
  let mainRun: number | undefined;
  let smallerRun: number | undefined;
  let unconfirmed: (() => void)[] = [];
  let planned = false;
  let starting = Promise.resolve();
  /** The moment that the worker has yet to go to. */
  let stepToLoad: number | undefined;
  let settling: ReturnType<typeof setTimeout> | undefined;

  /** Shows all changes of one animation frame together; then the workers may report again. */
  function change(part: Partial<TrainingView>): void {
    now = { ...now, ...part };
    if (planned) return;
    planned = true;
    afterFrames(now.status === 'running' ? framesOfTraining : 1, () => {
      planned = false;
      const confirmed = unconfirmed;
      unconfirmed = [];
      try {
        view.set(now);
      } finally {
        // The workers go on reporting even if a part of the page fails to show this view.
        for (const confirm of confirmed) confirm();
      }
    });
  }

  function afterFrames(count: number, run: () => void): void {
    nextFrame(() => (count > 1 ? afterFrames(count - 1, run) : run()));
  }

  function open(take: (progress: Progress) => void, onLost: (why: Failure) => void): Client {
    return connect(startWorker(), {
      onReport(progress, confirm) {
        unconfirmed.push(confirm);
        take(progress);
        change({});
      },
      onLost,
    });
  }

  function take(progress: Progress): void {
    if (progress.run !== mainRun) return;
    const { step, moments } = progress;
    const memory = { ...now.memory, main: progress.memory };
    now.curve.add(progress);
    for (const frame of progress.frames) frames.set(frame.step, frame);
    const shown = progress.frames.at(-1) ?? now.shown;
    const kept = new Set([...moments, shown?.step]);
    for (const each of frames.keys()) if (!kept.has(each)) frames.delete(each);
    // If the visitor has gone back in the meantime, keep the step that is shown.
    const place = stepToLoad === undefined ? { step, shown } : {};
    change({ ...changed(), ...place, moments, memory, last: Math.max(now.last, step) });
  }

  function takeSmaller(progress: Progress): void {
    if (progress.run !== smallerRun) return;
    now.smallerRun?.add(progress);
    for (const frame of progress.frames) {
      smallerFrames = [...smallerFrames.filter(({ step }) => step < frame.step), frame];
    }
    change({ smallerShown: smallerAt(now.step), memory: { ...now.memory, smallerRun: progress.memory } });
  }

  /** While it trains, the smaller model may be ahead or behind: then its last frame counts. */
  function smallerAt(step: number): Frame | undefined {
    return now.step < now.last ? smallerFrames.findLast((frame) => frame.step <= step) : smallerFrames.at(-1);
  }

  function lose(why: Failure): void {
    smallerClient?.close();
    main = smallerClient = undefined;
    const message = lacksFile(why) ? why.message : `The training is lost: ${why.message.replace(/\.$/, '')}. Start again to train anew.`;
    change({ ...changed(), status: 'lost', message, moments: [] });
  }

  function fail(error: unknown): void {
    if (now.status === 'lost') return;
    change({ status: now.tokens.length > 0 ? 'paused' : 'notStarted', message: messageOf(error) });
  }

  async function reset(settings: TrainingSettings, goesOn = true): Promise<void> {
    if (main) return start(settings, goesOn);
    now = { ...blank(settings), earlier: earlierOf(now, settings) };
    change({});
  }

  /** Starts runs one after another, so that the last request wins. */
  function start(settings: TrainingSettings, goesOn = true): Promise<void> {
    starting = starting.then(() => startNow(settings, goesOn));
    return starting;
  }

  async function startNow(settings: TrainingSettings, goesOn: boolean): Promise<void> {
    const wasRunning = goesOn && now.status === 'running';
    if (!main) return;
    try {
      const { tokens, progress } = await main.call('start', settings, false);
      clearTimeout(settling);
      stepToLoad = undefined;
      frames.clear();
      mainRun = progress.run;
      now = { ...blank(settings), status: 'paused', earlier: earlierOf(now, settings), tokens, model: now.model };
      take(progress);
      startSmaller(smaller(settings));
      if (wasRunning) void train();
    } catch (error) {
      fail(error);
    }
  }

  /** Starts a run of the smaller model. Its failure is not reported, because the main run continues. */
  function startSmaller(settings: TrainingSettings | undefined): void {
    if (!settings) {
      smallerClient?.close();
      smallerClient = undefined;
      return;
    }
    const curve = new Curve(settings);
    now = { ...now, smallerRun: curve };
    smallerRun = undefined;
    smallerFrames = [];
    smallerClient ??= open(takeSmaller, () => (smallerClient = undefined));
    smallerClient.call('start', settings, true).then(({ progress }) => {
      if (now.smallerRun !== curve) return;
      smallerRun = progress.run;
      takeSmaller(progress);
    }, ignore);
  }

  async function startWorkers(): Promise<void> {
    if (!main) {
      main = open(take, lose);
      change({ status: 'starting', message: '' });
      void start(now.curve.settings);
    }
    await starting;
  }

  /** Returns the worker, once it has the model of the step that is shown. */
  async function ready(): Promise<Client> {
    await startWorkers();
    if (!main) throw new Error(now.message);
    clearTimeout(settling);
    const step = stepToLoad;
    stepToLoad = undefined;
    if (step !== undefined) await main.call('goTo', step);
    return main;
  }

  async function measure(): Promise<void> {
    const client = await ready();
    const { model } = now;
    const measured = await client.call('measure');
    if (now.model === model) change({ measured });
  }

  async function train(): Promise<void> {
    try {
      const client = await ready();
      if (now.status === 'running') return;
      const { steps } = factsOf(now.curve.settings.kind);
      const until = Math.min(mostSteps, now.step < steps ? steps : now.step + steps);
      change({ ...changed(), status: 'running', message: '' });
      smallerClient?.call('run', until).then(takeSmaller, ignore);
      const begun = performance.now() - now.milliseconds;
      const progress = await client.call('run', until);
      if (progress.run !== mainRun) return;
      take(progress);
      change({ status: 'paused', milliseconds: performance.now() - begun });
      await measure();
    } catch (error) {
      fail(error);
    }
  }

  function pause(): void {
    for (const client of [main, smallerClient]) client?.call('pause').catch(ignore);
  }

  async function step(): Promise<void> {
    try {
      const client = await ready();
      smallerClient?.call('step').then(takeSmaller, ignore);
      take(await client.call('step'));
      change({ message: '' });
      await measure();
    } catch (error) {
      fail(error);
    }
  }

  function goTo(wanted: number): void {
    const step = nearest(now.moments, wanted);
    const frame = step === undefined ? undefined : frames.get(step);
    if (step === undefined || !frame || step === now.step) return;
    if (now.status === 'running') pause();
    stepToLoad = step;
    now = { ...now, step };
    change({ ...changed(), shown: frame, smallerShown: smallerAt(step) });
    clearTimeout(settling);
    settling = setTimeout(() => void measure().catch(fail), settleAfter);
  }

  async function mute(muted: readonly number[]): Promise<void> {
    change({ muted, muting: undefined });
    if (muted.length === 0) return;
    try {
      const muting = await (await ready()).call('mute', muted);
      if (now.muted === muted) change({ muting, measured: muting.before });
    } catch (error) {
      fail(error);
    }
  }

  const call: TrainingSession['call'] = async (name, ...values) => (await ready()).call(name, ...values);

  return {
    ...{ view, reset, startWorkers, train, pause, step, goTo, mute, call },
    dropEarlier: () => change({ earlier: undefined }),
  };
}

function nearest(moments: readonly number[], wanted: number): number | undefined {
  const distance = (step: number): number => Math.abs(step - wanted);
  return [...moments].sort((a, b) => distance(a) - distance(b))[0];
}
