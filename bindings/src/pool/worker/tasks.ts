// The worker's side of a pool: runs tasks on its instance, and holds the objects that live in the worker.

import { runtimeOf } from '../../api/multihead.js';
import { attentionBackward } from '../../attention/backward.js';
import { socketOf, type TeamSocket } from '../../load/loader.js';
import { isCoreObject } from '../../runtime/core_object.js';
import type { Heap } from '../../runtime/memory.js';
import type { Runtime } from '../../runtime/operands.js';
import { coreOf, nouns, WasmTensor } from '../../runtime/tensor.js';
import { isArrayBuffer } from '../../runtime/typed_arrays.js';
import { WasmExperiment } from '../../training/experiment.js';
import { statisticsOf } from '../../training/head_statistics.js';
import type { AttentionBackwardInputs, AttentionBackwardOptions, ExperimentOptions, FloatTensorLike, Multihead } from '../../types/index.js';
import type { ScoreRows, ScoresOptions, Tensor } from '../../types/index.js';
import { disposedObject, sentError } from '../shared/errors.js';
import { performInTeam } from '../shared/in_team.js';
import type { Answer, Argument, Maker, SentValue, Task } from '../shared/protocol.js';
import type { Runner } from '../shared/scope.js';
import type { TeamCall } from '../shared/team.js';
import { runPart } from './part.js';

interface Disposable {
  dispose(): void;
}

type Method = (...args: unknown[]) => unknown;
/** The parameters of a function after the first. */
type TailOf<F extends (...args: never[]) => unknown> = Parameters<F> extends [unknown, ...infer Tail] ? Tail : never;

export class TaskRunner implements Runner<Task, Answer> {
  readonly #mh: Multihead;
  readonly #runtime: Runtime;
  readonly #objects = new Map<number, Disposable>();

  constructor(mh: Multihead) {
    this.#mh = mh;
    this.#runtime = runtimeOf.get(mh) as Runtime;
  }

  run(task: Task, team: TeamCall | undefined): ReturnType<Runner<Task, Answer>['run']> {
    const taskBuffer = task.kind === 'part' ? task.taskBuffer : undefined;
    const transferred = 'transferred' in task ? (task.transferred ?? []) : [];
    const back = { taskBuffer, transferred };
    const buffers = [...(isArrayBuffer(taskBuffer) ? [taskBuffer] : []), ...transferred];
    try {
      const result = team === undefined ? this.#perform(task) : this.#performInTeam(task, team);
      const { value, transfer } = packed(result);
      return { message: { kind: 'done', value, back }, transfer: [...buffers, ...transfer] };
    } catch (error) {
      const dead = this.#runtime.raw.dead;
      return { message: { kind: 'failed', error: sentError(error), dead, back }, transfer: buffers };
    }
  }

  release(id: number): void {
    this.#objects.get(id)?.dispose();
    this.#objects.delete(id);
  }

  /** Disposes every object. */
  end(): void {
    for (const object of this.#objects.values()) object.dispose();
    this.#objects.clear();
  }

  #performInTeam(task: Task, team: TeamCall): unknown {
    const socket = socketOf.get(this.#mh) as TeamSocket;
    const result = performInTeam(this.#runtime, socket, team, () => this.#perform(task));
    if (team.rank === 0) return result;
    discard(result);
    return undefined;
  }

  #perform(task: Task): unknown {
    switch (task.kind) {
      case 'part':
        return runPart(this.#runtime, task.part, task.taskBuffer);
      case 'run': {
        const { verb } = task;
        const args = this.#read(task.args);
        if (verb === 'headStatistics') return statisticsOf(this.#runtime, ...(args as TailOf<typeof statisticsOf>));
        return (this.#mh[verb] as Method)(...args);
      }
      case 'backwardPart': {
        const [inputs, options] = this.#read(task.args) as [AttentionBackwardInputs, AttentionBackwardOptions];
        return attentionBackward(this.#runtime, inputs, options, task.part);
      }
      case 'make':
        return this.#keep(task.id, this.#make(task.maker, this.#read(task.args)));
      case 'makeCache': {
        const maker = this.#object(task.object) as unknown as { createCache: Method };
        return this.#keep(task.id, maker.createCache(...this.#read(task.args)) as Disposable);
      }
      case 'call': {
        const object = this.#object(task.object) as unknown as Record<string, Method>;
        return object[task.method]?.(...this.#read(task.args));
      }
    }
  }

  #make(maker: Maker, args: unknown[]): Disposable {
    if (maker === 'scores') return new HeldScores(this.#mh, args as ConstructorParameters<typeof HeldScores>[1]);
    if (maker === 'experiment') return new WasmExperiment(this.#runtime, ...(args as [ExperimentOptions?]));
    return (this.#mh[maker] as Method)(...args) as Disposable;
  }

  /** Stores the object, and returns its constant properties. */
  #keep(id: number, object: Disposable): Record<string, unknown> {
    this.#objects.set(id, object);
    const properties: Record<string, unknown> = {};
    for (const name of factNames) {
      const value = (object as unknown as Record<string, unknown>)[name];
      if (value !== undefined && typeof value !== 'function') properties[name] = value;
    }
    return properties;
  }

  #read(args: readonly Argument[]): unknown[] {
    return args.map((each) => ('object' in each ? this.#object(each.object) : restored(this.#runtime.heap, each)));
  }

  #object(id: number): Disposable {
    const object = this.#objects.get(id);
    if (object !== undefined) return object;
    throw disposedObject();
  }
}

/** Constant properties that the proxy also has. */
const factNames = [
  ...['config', 'batch', 'capacity', 'layout', 'dtype', 'bytes', 'numKvHeads', 'headDim', 'valueDim'],
  ...['jobs', 'patterns', 'options'],
];

/** The inputs of a scores() call, kept in the worker while ranges of rows are requested. */
class HeldScores {
  readonly #mh: Multihead;
  readonly #options: ScoresOptions;
  readonly #held: Tensor[] = [];
  readonly #inputs: [FloatTensorLike, FloatTensorLike];

  constructor(mh: Multihead, [q, k, options]: [FloatTensorLike, FloatTensorLike, ScoresOptions]) {
    this.#mh = mh;
    this.#options = options;
    this.#inputs = [this.#hold(q), this.#hold(k)];
  }

  /** Copies the input once for all ranges. An invalid input is kept as given, and scores() reports the error. */
  #hold(input: FloatTensorLike): FloatTensorLike {
    try {
      const { data, shape, dtype } = input as { data: Float32Array; shape: number[]; dtype: 'f32' };
      const tensor = this.#mh.tensor(data, shape, { dtype });
      this.#held.push(tensor);
      return tensor;
    } catch {
      return input;
    }
  }

  /** Returns the first chunk of the whole call, which checks all arguments, or `count` rows from `first` on. */
  rows(first?: number, count?: number): ScoreRows | undefined {
    const range: ScoresOptions =
      first === undefined || count === undefined ? this.#options : { ...this.#options, rows: [first, count], chunk: count };
    const stream = this.#mh.scores(...this.#inputs, range);
    try {
      return stream.next().value ?? undefined;
    } finally {
      stream.return();
    }
  }

  dispose(): void {
    for (const tensor of this.#held) tensor.dispose();
  }
}

/**
 * Converts a value for a message: tensors become { data, shape, dtype } and are disposed, and all buffers are
 * transferred. The value must belong to the package, never to the caller.
 */
function packed(value: unknown): { value: unknown; transfer: ArrayBuffer[] } {
  const transfer = new Set<ArrayBuffer>();
  const pack = (each: unknown): unknown => {
    if (typeof each !== 'object' || each === null) return each;
    const core = coreOf(each);
    if (core !== undefined) {
      const data = core.view().slice();
      transfer.add(data.buffer as ArrayBuffer);
      const plain = { data, shape: [...core.shape], dtype: core.dtype };
      (each as Tensor).dispose();
      return plain;
    }
    if (ArrayBuffer.isView(each)) {
      const array = each as Uint8Array;
      const buffer = array.buffer;
      if (!isArrayBuffer(buffer) || buffer.byteLength !== array.byteLength) {
        const copy = array.length === 0 ? array : array.slice();
        if (copy !== array) transfer.add(copy.buffer as ArrayBuffer);
        return copy;
      }
      transfer.add(buffer);
      return array;
    }
    if (isCoreObject(each)) return undefined;
    if (Array.isArray(each)) return each.map(pack);
    return Object.fromEntries(Object.entries(each).map(([name, inner]) => [name, pack(inner)]));
  };
  return { value: pack(value), transfer: [...transfer] };
}

/** Frees the tensors of a result that is not sent. */
function discard(value: unknown): void {
  if (typeof value !== 'object' || value === null || ArrayBuffer.isView(value)) return;
  if (coreOf(value) !== undefined) (value as Tensor).dispose();
  else if (!isCoreObject(value)) Object.values(value).forEach(discard);
}

/**
 * Returns the argument with placeholders for the values that a message cannot carry, so that invalid arguments cause the
 * same errors as on one thread.
 */
export function restored(heap: Heap, { value, placeholders }: SentValue): unknown {
  const root: Record<string, unknown> = { value };
  for (const placeholder of placeholders) {
    const path = ['value', ...placeholder.path];
    const last = path.pop() as string;
    const holder = path.reduce((of, name) => of[name] as Record<string, unknown>, root);
    if (placeholder.kind === 'class') nouns.set(holder[last] as object, placeholder.noun);
    else if (placeholder.kind === 'function') holder[last] = () => {};
    else if (placeholder.kind === 'symbol') holder[last] = Symbol(placeholder.text);
    else holder[last] = WasmTensor.disposed(heap, placeholder.dtype, placeholder.shape);
  }
  return root['value'];
}
