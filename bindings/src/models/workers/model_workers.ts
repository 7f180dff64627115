// A model that lives in workers.

import type { PartName } from '../../generated/parts.js';
import { exchangeOf } from '../../pool/shared/exchange.js';
import { type BrowserWorker, browserPort, madeBy, type StartWorker, workerCount, type WorkerScript, workersOf } from '../../pool/shared/port.js';
import { abortable } from '../../runtime/abort.js';
import type { ModelInfo } from '../../types/models.js';
import { abandoned } from '../core/abandoned.js';
import type { PassAnalyses } from '../core/core_analyses.js';
import type { Generation, GenerationSettings, GenerationStep, LoaderInput, ModelEngine, PassCall, PassResult } from '../core/engine.js';
import type { SteppedGeneration, WeightLoader } from '../core/engine.js';
import type { Step } from './protocol.js';
import { pieceBytes } from '../core/loader.js';
import { type CompiledModule, WorkerGroup } from './worker_group.js';

/** An entry point starts workers by a function or with a script. */
export type WorkersPlatform = { readonly make: () => BrowserWorker | undefined } | { readonly findScript: () => Promise<WorkerScript> };

/** The options of openModel() that concern workers. */
export interface WorkerOptions {
  readonly workers: unknown;
  readonly worker: unknown;
  readonly signal: AbortSignal | undefined;
}

const missing = 'its script did not load: it is missing (see "Where it runs" in the README), or the Content-Security-Policy forbids workers';

async function starterOf(platform: WorkersPlatform): Promise<StartWorker> {
  if ('findScript' in platform) return workersOf(await platform.findScript());
  return (events) => {
    const worker = platform.make();
    return worker && browserPort(worker, missing, events);
  };
}

/**
 * Starts workers; undefined if none can be started here. One worker without shared memory, because a team needs it.
 * Throws `E_OPTION`, `E_ABORTED`, and the errors of `compile`.
 */
export async function startWorkers(
  platform: WorkersPlatform,
  { workers, worker, signal }: WorkerOptions,
  compile: () => Promise<CompiledModule>,
): Promise<WorkerGroup | undefined> {
  const wanted = workerCount(workers);
  const startWorker = worker === undefined ? await starterOf(platform) : madeBy(worker);
  const compiled = await compile();
  const count = exchangeOf('auto').exchange === 'shared memory' ? wanted : 1;
  const group = new WorkerGroup();
  try {
    return (await abortable(group.start(startWorker, compiled, count), signal, 'openModel')) ? group : undefined;
  } catch (error) {
    group.dispose();
    throw error;
  }
}

/** Gives all weights to every worker. */
export async function openLoaderIn(group: WorkerGroup, input: LoaderInput): Promise<WeightLoader> {
  return new WorkerLoader(group, (await group.send({ kind: 'plan', input })) as Int32Array);
}

class WorkerLoader implements WeightLoader {
  readonly needed: Int32Array;
  readonly #group: WorkerGroup;
  /** Two pieces in turn: the workers convert one while the next one is read. Shared memory, if there are several workers. */
  readonly #pieces: [Uint8Array<SharedArrayBuffer>?, Uint8Array<SharedArrayBuffer>?] = [];
  readonly #sent: [Promise<unknown>?, Promise<unknown>?] = [];
  #turn: 0 | 1 = 0;

  constructor(group: WorkerGroup, needed: Int32Array) {
    this.#group = group;
    this.needed = needed;
  }

  async give(tensor: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    const turn = this.#turn;
    this.#turn = turn === 0 ? 1 : 0;
    await this.#sent[turn];
    const task = { kind: 'give', tensor, bytes: this.#group.count > 1 ? this.#shared(turn, bytes) : bytes } as const;
    const sent = this.#group.send(task, { apart: true, transfer: task.bytes === bytes ? [bytes.buffer] : [] });
    // The error is thrown when the place of the piece is needed again.
    sent.catch(() => {});
    this.#sent[turn] = sent;
  }

  #shared(turn: 0 | 1, bytes: Uint8Array): Uint8Array {
    const piece = (this.#pieces[turn] ??= new Uint8Array(new SharedArrayBuffer(pieceBytes)));
    piece.set(bytes);
    return piece.subarray(0, bytes.length);
  }

  async finish(): Promise<ModelEngine> {
    await Promise.all(this.#sent);
    return new WorkerModel(this.#group, (await this.#group.send({ kind: 'finish' }, { apart: true })) as ModelInfo);
  }

  dispose(): void {}
}

class WorkerModel implements ModelEngine {
  readonly device = 'cpu';
  readonly info: ModelInfo;
  readonly encoder: ModelEngine | undefined;
  readonly #group: WorkerGroup;
  #disposed = false;

  constructor(group: WorkerGroup, info: ModelInfo) {
    this.#group = group;
    this.info = info;
    this.encoder = info.encoder && encoderOf(this, info.encoder);
    abandoned?.register(this, group, this);
  }

  get workers(): number {
    return this.#group.count;
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  assertLive(): void {
    this.#group.assertLive();
  }

  load(part: PartName): Promise<void> {
    return this.#group.load(part);
  }

  run(call: PassCall): Promise<PassResult> {
    return this.#group.send({ kind: 'run', call }) as Promise<PassResult>;
  }

  async analyses(): Promise<PassAnalyses> {
    const { analysesIn } = await import('./worker_analyses.js');
    return analysesIn(this.#group, this);
  }

  generation(settings: GenerationSettings): Generation {
    return new WorkerGeneration(this.#group, settings);
  }

  together(generations: readonly Generation[]): Promise<void> {
    const ids = generations.map((each) => (each as WorkerGeneration).id);
    return this.#group.send({ kind: 'together', ids }) as Promise<void>;
  }

  dispose(): void {
    this.#disposed = true;
    abandoned?.unregister(this);
    this.#group.dispose();
  }
}

/** The encoder of a model in workers. It lives as long as the model. */
const encoderOf = (model: WorkerModel, info: ModelInfo): ModelEngine => ({
  device: 'cpu',
  info,
  encoder: undefined,
  get workers() {
    return model.workers;
  },
  get disposed() {
    return model.disposed;
  },
  assertLive: () => model.assertLive(),
  load: (part) => model.load(part),
  run: (call) => model.run({ ...call, inEncoder: true }),
  dispose() {},
});

/** Ends a generation in the workers. */
const endOf = (group: WorkerGroup, id: number) => ({ dispose: () => group.release(id) });

class WorkerGeneration implements SteppedGeneration {
  readonly #group: WorkerGroup;
  readonly id: number;
  /** Sent with the first step. */
  #settings: GenerationSettings | undefined;

  constructor(group: WorkerGroup, settings: GenerationSettings) {
    this.#group = group;
    this.id = group.newGeneration();
    this.#settings = settings;
    abandoned?.register(this, endOf(group, this.id), this);
  }

  #send(what: Step): Promise<unknown> {
    const { prefix, ...rest } = this.#settings ?? {};
    const sent = prefix && { id: (prefix.of as WorkerGeneration).id, common: prefix.common };
    const settings = this.#settings && { ...(rest as GenerationSettings), prefix: sent };
    this.#settings = undefined;
    return this.#group.send({ kind: 'step', id: this.id, settings, what });
  }

  next(): Promise<GenerationStep> {
    return this.#send('next') as Promise<GenerationStep>;
  }

  logits(): Promise<Float32Array> {
    return this.#send('logits') as Promise<Float32Array>;
  }

  choose(logits: Float32Array): Promise<GenerationStep> {
    return this.#send(logits) as Promise<GenerationStep>;
  }

  fill(): Promise<void> {
    return this.#send('fill') as Promise<void>;
  }

  dispose(): void {
    abandoned?.unregister(this);
    if (this.#settings === undefined) this.#group.release(this.id);
  }
}
