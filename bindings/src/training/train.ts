// train(): a loop around the steps of a trainer. It runs in pages and in workers.

import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { type MultiheadError, optionError } from '../runtime/errors.js';
import { checkCount, checkOptions, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { Experiment, Trainer, TrainerStepOptions, TrainingStep } from '../types/index.js';
import type { PlatformAbortSignal } from '../types/platform.js';
import type { PoolExperiment, PoolTrainer } from '../types/pool_objects.js';

/** The arguments of {@link Trainer.step}: tokens, targets and its options. */
export interface TrainingBatch extends TrainerStepOptions {
  /** Tokens, as in {@link Trainer.step}. */
  readonly tokens: Int32Array;
  /** Targets, as in {@link Trainer.step}. */
  readonly targets: Int32Array;
}

/**
 * Source of batches: an iterable, or a function of the number of updates so far (0 for the first batch). Only a
 * function continues with the right batch after a restored checkpoint. `undefined` ends the training.
 */
export type TrainingBatches =
  | Iterable<TrainingBatch>
  | AsyncIterable<TrainingBatch>
  | ((step: number) => TrainingBatch | undefined | Promise<TrainingBatch | undefined>);

/** A trainer with its batches, or an experiment, which has its own. */
export type Trained =
  | {
      /** The trainer, on this thread or in the workers of a pool. */
      readonly trainer: Trainer | PoolTrainer;
      /** Source of the training batches. */
      readonly batches: TrainingBatches;
      /** Excluded by `trainer`. */
      readonly experiment?: undefined;
    }
  | {
      /** The experiment, on this thread or in a worker of a pool. */
      readonly experiment: Experiment | PoolExperiment;
      /** Excluded by `experiment`. */
      readonly trainer?: undefined;
      /** Excluded by `experiment`. */
      readonly batches?: undefined;
    };

/** Options of {@link train}. */
export type TrainOptions = Trained & LoopOptions;

/** Options of {@link train} except the trained object and its batches. */
export interface LoopOptions {
  /**
   * Number of updates at which the loop ends, including updates before train(). Default: the `steps` option of the
   * experiment; for a trainer no end.
   */
  readonly steps?: number | undefined;
  /** With n, the loop yields the progress of every n-th step, of the last step, and of single steps. Default 1. */
  readonly every?: number | undefined;
  /**
   * Aborting ends the loop with `E_ABORTED`, between two steps or while it waits for a batch. The trainer stays usable.
   * Default none.
   */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** A training that runs while a `for await` loop reads its progress. */
export interface Training extends AsyncIterable<TrainingStep> {
  /** True while the loop is paused. */
  readonly paused: boolean;
  /** Stops before the next step. Between steps the trainer may be read, restored, or changed. */
  pause(): void;
  /** Continues after pause(). */
  resume(): void;
  /** Makes one step, and pauses. */
  step(): void;
  /**
   * Ends the loop before its next step, also while it is paused or waits for a batch. Leaving the loop does the same. Another
   * loop over this object continues the training.
   */
  stop(): void;
}

/**
 * Trains: `for await (const progress of train({ trainer, batches })) …`. After each step, other tasks of the page or
 * worker can run, such as input, drawing and messages. Leaving the loop ends the training; another loop over the same
 * object, or another train(), continues it.
 *
 * @throws {MultiheadError} `E_OPTION` at once for wrong options. The loop throws the errors of {@link Trainer.step},
 * the errors of `batches`, and `E_ABORTED`; the trainer then has the state after its last step.
 */
export function train(given: TrainOptions): Training {
  const names = { trainer: plain, batches: plain, experiment: plain, steps: plain, every: plain, signal: plain };
  checkOptions(given, names, 'train');
  const options = readOptions(given, names, 'train');
  const { every = 1, signal } = options;
  const { trainer, batches, end } = trainedOf(options);
  sourceOf(batches);
  const { steps = end } = options;
  if (steps !== Infinity) checkCount(steps, 'steps', 0);
  checkCount(every, 'every');
  checkSignal(signal);
  return new TrainingLoop({ trainer, batches, steps, every, signal });
}

/** The members of a trainer that the loop uses. Trainers of a pool return promises. */
interface Stepping {
  steps(): number | Promise<number>;
  step(batch: TrainingBatch): TrainingStep | Promise<TrainingStep>;
}

/** Throws `E_OPTION`. */
function trainedOf(options: Trained): { trainer: Stepping; batches: TrainingBatches; end: number } {
  const { trainer, batches, experiment } = options;
  if (experiment === undefined) {
    if (!hasMethod(trainer, 'step')) {
      throw refused('trainer', 'a trainer made by mh.trainer() or pool.trainer()', trainer);
    }
    const step = ({ tokens, targets, ...others }: TrainingBatch) => trainer.step(tokens, targets, others);
    return { trainer: { steps: () => trainer.steps(), step }, batches, end: Infinity };
  }
  const end = (experiment as Partial<Experiment> | null)?.options?.steps;
  if (end === undefined) throw refused('experiment', 'an experiment', experiment);
  if (trainer !== undefined) throw refused('trainer', 'none with an experiment', trainer);
  if (batches !== undefined) throw refused('batches', 'none with an experiment', batches);
  const none = { tokens: new Int32Array(), targets: new Int32Array() };
  const own = { steps: () => experiment.steps(), step: () => experiment.step() };
  return { trainer: own, batches: () => none, end };
}

const refused = (argument: string, expected: string, got: unknown): MultiheadError => optionError(argument, expected, describe(got));

function hasMethod(value: unknown, ...names: PropertyKey[]): boolean {
  const object = Object(value) as Record<PropertyKey, unknown>;
  return names.some((name) => typeof object[name] === 'function');
}

interface CheckedOptions {
  readonly trainer: Stepping;
  readonly batches: TrainingBatches;
  readonly steps: number;
  readonly every: number;
  readonly signal: PlatformAbortSignal | undefined;
}

class TrainingLoop implements Training {
  readonly #options: CheckedOptions;
  #paused = false;
  /** Number of pending single steps from step(). */
  #single = 0;
  /** The loop that runs. */
  #running: object | undefined;
  /** Ends the wait of a paused loop. */
  #wake = (): void => {};
  /** Ends every wait of the running loop, and the loop. */
  #stop = (): void => {};

  constructor(options: CheckedOptions) {
    this.#options = options;
  }

  get paused(): boolean {
    return this.#paused;
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
    this.#single = 0;
    this.#wake();
  }

  step(): void {
    this.#paused = true;
    this.#single += 1;
    this.#wake();
  }

  stop(): void {
    this.#stop();
    this.#wake();
  }

  [Symbol.asyncIterator](): AsyncGenerator<TrainingStep, void, undefined> {
    const key = {};
    const loop = this.#loop(key);
    const leave = loop.return.bind(loop);
    // A generator that waits would return only after its wait.
    loop.return = (value) => {
      if (this.#running === key) this.stop();
      return leave(value);
    };
    return loop;
  }

  async *#loop(key: object): AsyncGenerator<TrainingStep, void, undefined> {
    if (this.#running !== undefined) throw refused('training', 'one loop at a time', 'another');
    this.#running = key;
    let stopped = false;
    const stop = new Promise<undefined>((resolve) => {
      this.#stop = () => {
        stopped = true;
        resolve(undefined);
      };
    });
    const { trainer, batches, steps, every, signal } = this.#options;
    const source = sourceOf(batches);
    const turns = new Turns();
    try {
      let batch: TrainingBatch | undefined;
      let drawnAt = 0;
      let sinceProgress = 0;
      let progress: TrainingStep | undefined;
      for (;;) {
        const made = await trainer.steps();
        if (made >= steps || stopped) break;
        if (signal?.aborted) throw abortedError(signal, 'train');
        if (this.#paused && this.#single === 0) {
          await this.#resumed(signal);
          continue;
        }
        const restored = source.byStep && drawnAt !== made;
        if (batch === undefined || restored) {
          drawnAt = made;
          batch = await Promise.race([abortable(source.next(drawnAt), signal, 'train'), stop]);
          if (batch === undefined) break;
          // During the wait, the loop may have been aborted, paused or restored.
          continue;
        }
        const next = batch;
        batch = undefined;
        // Read before the step: pause() and resume() may be called while a pool makes the step.
        const single = this.#paused;
        if (single) this.#single -= 1;
        progress = await trainer.step(next);
        sinceProgress += 1;
        if (single || sinceProgress === every || progress.step >= steps) {
          sinceProgress = 0;
          yield progress;
        }
        await turns.next();
      }
      if (progress !== undefined && sinceProgress > 0) yield progress;
    } finally {
      this.#running = undefined;
      turns.close();
      await source.close();
    }
  }

  async #resumed(signal: AbortSignal | undefined): Promise<void> {
    let wake = (): void => {};
    const woken = new Promise<void>((resolve) => (wake = resolve));
    this.#wake = wake;
    signal?.addEventListener('abort', wake, { once: true });
    await woken;
    signal?.removeEventListener('abort', wake);
  }
}

interface Source {
  /** True if next() returns the batch of a given step. */
  readonly byStep: boolean;
  next(step: number): Promise<TrainingBatch | undefined>;
  close(): Promise<void>;
}

/** Wraps the batches without taking one. Throws `E_OPTION`. */
function sourceOf(batches: TrainingBatches): Source {
  if (typeof batches === 'function') {
    return {
      byStep: true,
      next: async (step) => checkBatch(await batches(step)),
      close: async () => {},
    };
  }
  const from = Object(batches) as Partial<Iterable<TrainingBatch> & AsyncIterable<TrainingBatch>>;
  const begins = [Symbol.asyncIterator, Symbol.iterator];
  if (typeof batches === 'string' || !hasMethod(batches, ...begins)) {
    throw refused('batches', 'an iterable, or a function of the step', batches);
  }
  let iterator: Iterator<TrainingBatch> | AsyncIterator<TrainingBatch> | undefined;
  let ended = false;
  let waits = false;
  return {
    byStep: false,
    async next() {
      iterator ??= from[Symbol.asyncIterator]?.() ?? from[Symbol.iterator]?.();
      waits = true;
      try {
        const { done, value } = (await iterator?.next()) ?? { done: true, value: undefined };
        ended = done === true;
        return ended ? undefined : checkBatch(value);
      } finally {
        waits = false;
      }
    },
    async close() {
      if (ended) return;
      const closed = Promise.resolve(iterator?.return?.());
      // A generator that waits for a batch closes only after that batch arrives, perhaps never.
      if (waits) closed.catch(() => {});
      else await closed;
    },
  };
}

function checkBatch(batch: TrainingBatch | undefined): TrainingBatch | undefined {
  if (batch === undefined || (typeof batch === 'object' && batch !== null)) return batch;
  throw refused('batches', '{ tokens, targets }', batch);
}

/**
 * Yields to the event loop. Avoids setTimeout(), which waits 4 ms after a few calls, and scheduler.yield(), whose
 * continuations run before messages to a worker.
 */
class Turns {
  #channel: MessageChannel | undefined;

  next(): Promise<void> {
    const { setImmediate } = globalThis as { setImmediate?: (run: () => void) => void };
    return new Promise((resolve) => {
      if (setImmediate !== undefined) {
        setImmediate(resolve);
        return;
      }
      this.#channel ??= new MessageChannel();
      this.#channel.port1.onmessage = () => resolve();
      this.#channel.port2.postMessage(0);
    });
  }

  close(): void {
    this.#channel?.port1.close();
  }
}
