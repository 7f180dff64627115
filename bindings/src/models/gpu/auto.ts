// A model for device 'auto'. A GPU and the CPU, which is the core of this thread or of workers, both compute its first passes, and the
// faster one the others. The CPU's weights stay: it computes what a GPU refuses, and goes on when a GPU fails.

import type { PartName } from '../../generated/parts.js';
import type { MultiheadError } from '../../runtime/errors.js';
import type { ModelInfo } from '../../types/models.js';
import type { Count } from '../../types/wire.js';
import type {
  Awaitable,
  Generation,
  GenerationSettings,
  GenerationStep,
  ModelEngine,
  PassCall,
  PassResult,
  SteppedGeneration,
} from '../core/engine.js';
import { generationOf, together } from '../core/generations.js';
import type { PassAnalyses } from '../core/core_analyses.js';
import type { GpuModel } from './model.js';

/** Tokens of the prompt with which generations are measured, and the steps of which the last one counts. */
const [measuredPrompt, measuredSteps] = [8, 3];

interface Times {
  readonly gpu: number;
  readonly cpu: number;
}

async function timed<T>(run: () => Awaitable<T>): Promise<readonly [result: T, milliseconds: number]> {
  const start = performance.now();
  const result = await run();
  return [result, performance.now() - start];
}

export class AutoModel implements ModelEngine {
  readonly info: ModelInfo;
  readonly encoder: ModelEngine | undefined;
  readonly workers: number;
  /** What analyses and trainers use. */
  readonly cpu: ModelEngine;
  #gpu: GpuModel | undefined;
  readonly #name: string;
  /** Why the GPU computes nothing. */
  #reason: string;
  /** What was measured, by what it was. Of passes, those of 4 to 15 tokens, 16 to 63 and so on are measured apart. */
  readonly #times = new Map<string, Times>();
  readonly #begun = new Set<string>();
  /** One measurement at a time. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(cpu: ModelEngine, gpu: GpuModel | undefined, reason = '') {
    [this.info, this.encoder, this.workers] = [cpu.info, cpu.encoder, cpu.workers];
    this.cpu = cpu;
    this.#gpu = gpu;
    this.#name = gpu?.device ?? '';
    this.#reason = reason;
  }

  get device(): string {
    if (this.#gpu === undefined) return `cpu: ${this.#reason}`;
    const times = [...this.#times].map(([what, { gpu, cpu }]) => `${what} take ${gpu.toPrecision(2)} ms, on the CPU ${cpu.toPrecision(2)} ms`);
    const isCpu = times.length > 0 && [...this.#times.keys()].every((what) => !this.#isGpuFaster(what));
    return `${isCpu ? 'cpu: faster than ' : ''}${this.#name}; ${times.join('; ') || 'not measured yet'}`;
  }

  get disposed(): boolean {
    return this.cpu.disposed;
  }

  assertLive(): void {
    this.cpu.assertLive();
  }

  dispose(): void {
    this.#gpu?.dispose();
    this.cpu.dispose();
  }

  /** True if the core can go on after an error of the GPU, which computes no more unless it only refused a call. */
  recovers(error: unknown): boolean {
    const { code, message } = error as MultiheadError;
    if (this.disposed) return false;
    if (code === 'E_OPTION') return true;
    if (!['E_GPU', 'E_GPU_LOST', 'E_MEMORY'].includes(code)) return this.#gpu === undefined && code === 'E_DISPOSED';
    if (this.#gpu !== undefined) this.#reason = message;
    this.#gpu?.dispose();
    this.#gpu = undefined;
    return true;
  }

  /** True also if it was not measured yet. */
  #isGpuFaster(what: string): boolean {
    const { gpu, cpu } = this.#times.get(what) ?? { gpu: 0, cpu: 1 };
    return gpu < cpu;
  }

  /** Of the GPU, if it was faster in all passes so far. */
  async analyses(): Promise<PassAnalyses | undefined> {
    const passes = [...this.#times.keys()].filter((what) => what !== 'tokens');
    const isFaster = passes.length > 0 && passes.every((what) => this.#isGpuFaster(what));
    return isFaster ? this.#gpu?.analyses() : undefined;
  }

  async run(call: PassCall): Promise<PassResult> {
    const { batch, tokens } = call.batch;
    const what = `passes over less than ${4 ** (Math.floor(Math.log2(batch * tokens) / 2) + 1)} tokens`;
    const gpu = this.#gpu;
    try {
      if (gpu === undefined || !this.#isGpuFaster(what)) return this.cpu.run(call);
      return await (this.#times.has(what) ? gpu.run(call) : this.#inTurn(() => this.#measure(what, gpu, call)));
    } catch (error) {
      if (!this.recovers(error)) throw error;
      return this.cpu.run(call);
    }
  }

  /** Both compute the first two passes, of which the second counts: kernels are compiled in the first. */
  async #measure(what: string, gpu: GpuModel, call: PassCall): Promise<PassResult> {
    const [, ofGpu] = await timed(() => gpu.run(call));
    const [result, ofCpu] = await timed(() => this.cpu.run(call));
    if (this.#begun.has(what)) this.#times.set(what, { gpu: ofGpu, cpu: ofCpu });
    this.#begun.add(what);
    return result;
  }

  #inTurn<T>(run: () => Awaitable<T>): Promise<T> {
    const turn = this.#turn.then(run);
    this.#turn = turn.catch(() => {});
    return turn;
  }

  generation(settings: GenerationSettings): Generation {
    const { beams, lookup, prefix, end } = settings;
    // A prefix has no end.
    const isOnCpu = this.#gpu === undefined || beams !== undefined || lookup !== undefined || prefix !== undefined || end === 0;
    return isOnCpu ? generationOf(this.cpu, settings) : new AutoGeneration(this, settings);
  }

  /** A generation on the faster side, which the first ones measure. */
  async begin(settings: GenerationSettings): Promise<SteppedGeneration> {
    const what = 'tokens';
    const gpu = this.#gpu;
    if (gpu !== undefined) await this.#inTurn(() => this.#measureTokens(what, gpu, settings));
    const side = (this.#isGpuFaster(what) && this.#gpu) || this.cpu;
    return generationOf(side, settings) as SteppedGeneration;
  }

  async #measureTokens(what: string, gpu: GpuModel, settings: GenerationSettings): Promise<void> {
    if (this.#times.has(what)) return;
    const prompt = settings.prompt.slice(0, measuredPrompt);
    const short = { ...settings, prompt, capacity: (prompt.length + measuredSteps) as Count, edits: [], rules: [] };
    const measure = async (side: ModelEngine): Promise<number> => {
      const generation = generationOf(side, short);
      try {
        let last = 0;
        for (let step = 0; step < measuredSteps; step += 1) [, last] = await timed(() => generation.next());
        return last;
      } finally {
        generation.dispose();
      }
    };
    this.#times.set(what, { gpu: await measure(gpu), cpu: await measure(this.cpu) });
  }

  /** A generation that may be on the GPU steps by itself; the others step together. */
  together(generations: readonly Generation[]): Awaitable<void> {
    const ofCpu = generations.filter((each) => !(each instanceof AutoGeneration));
    return together(this.cpu, ofCpu);
  }

  /** What the CPU computes, it may need at any time. */
  async load(part: PartName): Promise<void> {
    await Promise.all([this.#gpu?.load(part), this.cpu.load(part)]);
  }
}

/** A generation that goes on with the core if the GPU fails. */
class AutoGeneration implements SteppedGeneration {
  readonly #model: AutoModel;
  readonly #settings: GenerationSettings;
  readonly #tokens: number[] = [];
  #running: SteppedGeneration | undefined;
  #disposed = false;

  constructor(model: AutoModel, settings: GenerationSettings) {
    this.#model = model;
    this.#settings = settings;
  }

  async #with<T>(use: (generation: SteppedGeneration) => Awaitable<T>): Promise<T> {
    try {
      return await use((this.#running ??= await this.#model.begin(this.#settings)));
    } catch (error) {
      if (this.#disposed || !this.#model.recovers(error)) throw error;
      this.#running?.dispose();
      const running = generationOf(this.#model.cpu, this.#settings) as SteppedGeneration;
      this.#running = running;
      for (const token of this.#tokens) {
        const only = new Float32Array(this.#model.info.vocabSize).fill(-Infinity);
        only[token] = 0;
        await running.choose(only);
      }
      return use(running);
    }
  }

  async #chosen(use: (generation: SteppedGeneration) => Awaitable<GenerationStep>): Promise<GenerationStep> {
    const step = await this.#with(use);
    this.#tokens.push(step.token);
    return step;
  }

  next(): Promise<GenerationStep> {
    return this.#chosen((generation) => generation.next());
  }

  logits(): Promise<Float32Array> {
    return this.#with((generation) => generation.logits());
  }

  choose(logits: Float32Array): Promise<GenerationStep> {
    return this.#chosen((generation) => generation.choose(logits));
  }

  fill(): Promise<void> {
    return this.#with((generation) => generation.fill());
  }

  dispose(): void {
    this.#disposed = true;
    this.#running?.dispose();
  }
}
