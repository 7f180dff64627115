// Plays plans on a device. Calls return before their pipelines are compiled: what must wait for one stands in a queue, in the order of
// the calls, so that the GPU sees everything in that order.

import { disposedError, MultiheadError } from '../runtime/errors.js';
import { bufferLength, BufferPool, kept, ofTensors, type Storage, usages } from './buffers.js';
import { gpuError, lostError } from './errors.js';
import { type KernelSource, type Pipeline, Pipelines } from './pipelines.js';
import type { Plan } from './plan.js';

/** Where the numbers of an operand are. */
export interface Place {
  readonly storage: Storage;
  /** In bytes; a multiple of 256. */
  readonly offset: number;
}

interface Step {
  readonly needs: readonly Promise<unknown>[];
  run(): void;
}

type Outcome = Promise<MultiheadError | undefined>;

/** Bytes of one upload: a browser copies each to memory of its own first. */
const pieceBytes = 16 * 2 ** 20;
const mapRead = 1;
const nothing: Outcome = /* @__PURE__ */ Promise.resolve(undefined);
const mostGroups = 4096;
const roundUp = (bytes: number, step: number): number => Math.ceil(bytes / step) * step;

export class Player {
  readonly device: GPUDevice;
  readonly pipelines: Pipelines;
  readonly #pool: BufferPool;
  /** The error of a lost device, or of one that hangs. */
  lost: MultiheadError | undefined;
  readonly #lostSeen: Promise<MultiheadError>;
  readonly #steps: Step[] = [];
  #running = false;
  readonly #groups = new Map<string, GPUBindGroup>();
  readonly #numbers = new WeakMap<GPUBuffer, number>();
  #buffers = 0;
  #uniforms: GPUBuffer | undefined;
  #nextUniform = 0;
  /** Submissions so far, for tests. */
  submissions = 0;
  /** Kernels that were compiled and waits that ended: a device that hangs has no more of them. */
  #ends = 0;
  #hangs = false;

  constructor(device: GPUDevice, kernels: readonly KernelSource[]) {
    this.device = device;
    this.pipelines = new Pipelines(device, kernels);
    this.#pool = new BufferPool(device);
    this.#lostSeen = device.lost.then(({ message, reason }) => (this.lost ??= lostError(message || reason)));
  }

  /**
   * Waits for the device. One that ends nothing for four looks is given up. This thread may have been busy for all the time between two
   * of them, so that one is not enough.
   */
  async wait<T>(promise: Promise<T>): Promise<T> {
    let [ends, since] = [this.#ends, 0];
    const result = await awake(promise, longest / mostLooks, (looks) => {
      if (this.#ends !== ends) [ends, since] = [this.#ends, looks];
      if (!this.#hangs && looks - since < mostLooks) return undefined;
      this.#hangs = true;
      return (this.lost ??= lateError('a device that ends what it does', longest));
    });
    this.#ends += 1;
    return result;
  }

  /** New memory with any contents. Throws `E_MEMORY` if no buffer can be so long. */
  allocate(bytes: number, argument: string): Storage {
    const { buffer, outcome } = this.#take(bytes, argument, ofTensors);
    return { buffer, bytes: buffer.size, users: 0, made: outcome, outcome };
  }

  /** Copies numbers to a buffer, in pieces, and zeros up to a multiple of 4 bytes. */
  write(buffer: GPUBuffer, { buffer: memory, byteOffset, byteLength }: ArrayBufferView): void {
    const whole = byteLength - (byteLength % 4);
    for (let at = 0; at < whole; at += pieceBytes) {
      const bytes = new Uint8Array(memory as ArrayBuffer, byteOffset + at, Math.min(pieceBytes, whole - at));
      this.device.queue.writeBuffer(buffer, at, bytes);
    }
    if (whole === byteLength) return;
    const last = new Uint8Array(4);
    last.set(new Uint8Array(memory, byteOffset + whole, byteLength - whole));
    this.device.queue.writeBuffer(buffer, whole, last);
  }

  /** Gives memory back, after all that was called before. */
  release({ buffer }: Storage): void {
    this.#after([], () => this.#pool.give(buffer));
  }

  /** Runs a plan after all that was called before, and once its pipelines are compiled. What is `written` fails if what is `read` has. */
  play(plan: Plan, operands: readonly Place[], read: readonly Storage[], written: readonly Storage[]): void {
    if (plan.dispatches.length === 0) return;
    const compiling = plan.dispatches.map(({ kernel, constants }) => this.pipelines.get(kernel, constants));
    const needs = compiling.flatMap(({ ready, done }) => (ready === undefined ? [done.then(() => (this.#ends += 1))] : []));
    const submitted: Outcome = new Promise((resolve) => {
      this.#after(needs, () => {
        const pipelines = compiling.map(({ ready }) => ready as Pipeline);
        resolve(pipelines.find(({ failure }) => failure)?.failure ?? this.#guarded(() => this.#submit(plan, pipelines, operands)));
      });
    });
    const all = Promise.all([...written.map(({ made }) => made), ...read.map((each) => each.outcome), submitted]);
    const outcome = all.then((errors) => errors.find((error) => error !== undefined));
    for (const storage of written) storage.outcome = outcome;
  }

  /** A copy of bytes, after all that was called before. Rejects with what has failed until then. */
  async read({ storage, offset }: Place, bytes: number): Promise<ArrayBuffer> {
    const first = offset - (offset % 4);
    const length = roundUp(offset + bytes - first, 4);
    if (bytes === 0) return new ArrayBuffer(0);
    const { outcome } = storage;
    const staging = this.#take(length, 'read', usages.mapRead | usages.copyDst);
    const copy = (): void => {
      const encoder = this.device.createCommandEncoder();
      encoder.copyBufferToBuffer(storage.buffer, first, staging.buffer, 0, length);
      this.device.queue.submit([encoder.finish()]);
    };
    const copied: Outcome = new Promise((resolve) => this.#after([], () => resolve(this.#guarded(copy))));
    try {
      const failure = (await this.wait(Promise.all([outcome, staging.outcome, copied]))).find((error) => error !== undefined);
      if (failure !== undefined) throw failure;
      await this.wait(staging.buffer.mapAsync(mapRead, 0, length));
    } catch (cause) {
      staging.buffer.destroy();
      throw await this.#why(cause);
    }
    const result = staging.buffer.getMappedRange(0, length).slice(offset - first, offset - first + bytes);
    staging.buffer.unmap();
    this.#pool.give(staging.buffer);
    return result;
  }

  /** Resolves when everything called so far is submitted, so that the caller's own commands come after it. */
  submitted(): Promise<void> {
    return this.wait(new Promise((resolve) => this.#after([], resolve)));
  }

  /** Frees the buffers that wait for use, and calls `end`, after all that was called before. Reads that still wait reject. */
  close(end: () => void): void {
    this.lost ??= disposedError('gpu', 'a GPU');
    this.#after([], () => {
      this.#pool.empty();
      this.#uniforms?.destroy();
      this.#groups.clear();
      end();
    });
  }

  #after(needs: readonly Promise<unknown>[], run: () => void): void {
    if (this.#hangs || (needs.length === 0 && this.#steps.length === 0)) {
      run();
      return;
    }
    this.#steps.push({ needs, run });
    if (!this.#running) void this.#runSteps();
  }

  async #runSteps(): Promise<void> {
    this.#running = true;
    for (let step = this.#steps[0]; step !== undefined; step = this.#steps[0]) {
      await Promise.all(step.needs);
      step.run();
      this.#steps.shift();
    }
    this.#running = false;
  }

  #take(bytes: number, argument: string, usage: number): { buffer: GPUBuffer; outcome: Outcome } {
    let buffer = this.#pool.find(bytes, argument, usage);
    if (buffer !== undefined) return { buffer, outcome: nothing };
    const outcome = this.#guarded(() => (buffer = this.#create(bytes, usage)));
    return { buffer: buffer as unknown as GPUBuffer, outcome };
  }

  #create(bytes: number, usage: number): GPUBuffer {
    return this.device.createBuffer({ size: bufferLength(bytes, this.device), usage });
  }

  /** Runs commands, and says what of them failed. */
  #guarded(run: () => unknown): Outcome {
    const { device } = this;
    const filters = ['validation', 'internal', 'out-of-memory'] as const;
    let thrown: unknown;
    for (const filter of filters) device.pushErrorScope(filter);
    try {
      run();
    } catch (error) {
      thrown = error;
    }
    const popped = filters.map(() => device.popErrorScope().catch(() => null));
    return Promise.all(popped).then(([memory, ...others]) => {
      if (this.lost !== undefined) return this.lost;
      const error = others.find((each) => each !== null);
      if (memory != null) {
        return new MultiheadError('E_MEMORY', { argument: 'gpu', expected: 'enough memory of the GPU', got: memory.message, cause: memory });
      }
      if (thrown instanceof MultiheadError) return thrown;
      if (error == null && thrown === undefined) return undefined;
      return gpuError('gpu', 'a device that accepts the commands of a call', String(error?.message ?? thrown), error ?? thrown);
    });
  }

  /** The reason of a rejected promise of the device, which hears that it is lost a moment later. */
  async #why(cause: unknown): Promise<MultiheadError> {
    if (cause instanceof MultiheadError) return cause;
    const moment = new Promise<undefined>((resolve) => setTimeout(resolve, 500));
    const lost = await Promise.race([this.#lostSeen, moment]);
    return lost ?? gpuError('gpu', 'memory of the GPU that can be read', String((cause as Error)?.message ?? cause), cause);
  }

  #submit({ data, scratch, dispatches }: Plan, pipelines: readonly Pipeline[], operands: readonly Place[]): void {
    const { device } = this;
    const own = [...(data.length > 0 ? [data.length] : []), ...scratch].map(
      (words) => this.#pool.find(4 * words, 'gpu', ofTensors) ?? this.#create(4 * words, ofTensors),
    );
    if (data.length > 0) this.write(own[0] as GPUBuffer, data);
    const places = [...operands.map(({ storage, offset }) => ({ buffer: storage.buffer, offset })), ...own.map((buffer) => ({ buffer, offset: 0 }))];
    const { uniforms, offsets } = this.#writeParameters(dispatches.map(({ parameters }) => parameters));

    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    dispatches.forEach(({ bindings, groups, parameters }, at) => {
      const pipeline = pipelines[at] as Pipeline;
      const parts = bindings.map(({ buffer, firstWord, words }) => {
        const place = places[buffer] as (typeof places)[number];
        const offset = place.offset + 4 * firstWord;
        return { buffer: place.buffer, offset, size: Math.min(Math.max(16, 4 * words), place.buffer.size - offset) };
      });
      pass.setPipeline(pipeline.compute as GPUComputePipeline);
      pass.setBindGroup(0, this.#group(pipeline, [{ buffer: uniforms, offset: 0, size: blockBytes(parameters) }, ...parts]), [offsets[at] as number]);
      pass.dispatchWorkgroups(...groups);
    });
    pass.end();
    device.queue.submit([encoder.finish()]);
    this.submissions += 1;
    for (const buffer of own) this.#pool.give(buffer);
  }

  /** Writes the uniform blocks of a call into a ring. The GPU reads them before a later call can write to the same place. */
  #writeParameters(blocks: readonly Uint32Array[]): { uniforms: GPUBuffer; offsets: number[] } {
    const step = this.device.limits.minUniformBufferOffsetAlignment;
    const offsets: number[] = [];
    let end = 0;
    for (const block of blocks) {
      offsets.push(end);
      end = roundUp(end + blockBytes(block), step);
    }
    if (this.#uniforms === undefined || end > this.#uniforms.size) {
      this.#uniforms?.destroy();
      this.#uniforms = this.#create(Math.max(2 ** 16, 2 * end), usages.uniform | usages.copyDst);
      this.#groups.clear();
      this.#nextUniform = 0;
    }
    if (this.#nextUniform + end > this.#uniforms.size) this.#nextUniform = 0;
    const first = this.#nextUniform;
    const words = new Uint32Array(end / 4);
    blocks.forEach((block, at) => words.set(block, (offsets[at] as number) / 4));
    this.device.queue.writeBuffer(this.#uniforms, first, words);
    this.#nextUniform = first + end;
    return { uniforms: this.#uniforms, offsets: offsets.map((offset) => first + offset) };
  }

  #group({ access, layout }: Pipeline, resources: readonly Required<GPUBufferBinding>[]): GPUBindGroup {
    const key = [access, ...resources.map(({ buffer, offset, size }) => `${this.#numberOf(buffer)}:${offset}:${size}`)].join(' ');
    return kept(this.#groups, key, () => {
      if (this.#groups.size >= mostGroups) this.#groups.clear();
      return this.device.createBindGroup({ layout, entries: resources.map((resource, binding) => ({ binding, resource })) });
    });
  }

  #numberOf(buffer: GPUBuffer): number {
    return kept(this.#numbers, buffer, () => ++this.#buffers);
  }
}

const blockBytes = (block: Uint32Array): number => Math.max(16, roundUp(4 * block.length, 16));

/** How often a promise is looked at until it is given up, and the seconds that this takes at least. */
const mostLooks = 4;
const longest = 120;
const lateError = (what: string, seconds: number): MultiheadError => gpuError('gpu', `${what} within ${seconds} s`, 'none: it hangs');

/**
 * Waits for a promise of a device, for which `late` is called every `look` seconds: an error of it ends the wait. The timer also keeps
 * Node from its end, which promises of npm's webgpu do not.
 */
async function awake<T>(promise: Promise<T>, look: number, late: (looks: number) => MultiheadError | undefined): Promise<T> {
  let timer: ReturnType<typeof setInterval> | undefined;
  const ended = new Promise<never>((_, reject) => {
    let looks = 0;
    timer = setInterval(() => {
      const error = late((looks += 1));
      if (error !== undefined) reject(error);
    }, 1000 * look);
  });
  try {
    return await Promise.race([promise, ended]);
  } finally {
    clearInterval(timer);
  }
}

/** Waits for what opens a device. */
export const inTime = <T>(promise: Promise<T>, what: string, seconds = longest): Promise<T> =>
  awake(promise, seconds / mostLooks, (looks) => (looks < mostLooks ? undefined : lateError(what, seconds)));
