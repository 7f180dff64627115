// A training in the worker: an experiment, the moments it can go back to, and its measurements.

import type { Experiment, MemoryInfo, Multihead } from 'multihead';
import { createExperiment } from 'multihead/lab';
import { train } from 'multihead/training';
import type { Implementation } from '../workers/protocol.js';
import { Generation } from './generation.js';
import {
  sequenceLength,
  type Frame,
  type Measured,
  type Muting,
  type Progress,
  type Prompt,
  type Started,
  type Tick,
  type TrainedHeads,
  type TrainingCalls,
} from './messages.js';
import { Moments, usualLimits, type Limits } from './moments.js';
import { Peek, type Peeked } from './peek.js';
import { factsOf, type TrainingSettings } from './settings.js';

/** Steps between two frames, and number of held-out sequences on which each frame is measured. */
const frameEvery = 10;
const frameSequences = 16;
const manySequences = 128;

export type Report = (progress: Progress) => void;

interface Current {
  readonly run: number;
  readonly tokens: Int32Array;
  readonly settings: TrainingSettings;
  readonly small: boolean;
  readonly experiment: Experiment;
  readonly moments: Moments;
}

export class Run implements Implementation<TrainingCalls> {
  readonly #mh: Multihead;
  readonly #report: Report;
  readonly #limits: Limits;
  #runs = 0;
  #current: Current | undefined;
  #generation: Generation | undefined;
  #stop: AbortController | undefined;
  #peek: Peek | undefined;
  #losses: number[] = [];
  #frames: Frame[] = [];
  /** True if the page has confirmed the last report. */
  #mayReport = true;

  constructor(mh: Multihead, report: Report, limits = usualLimits) {
    this.#mh = mh;
    this.#report = report;
    this.#limits = limits;
  }

  start(settings: TrainingSettings, small: boolean): Started {
    const { kind, seed, heads: numHeads, layers: numLayers, rate: learningRate } = settings;
    const experiment = createExperiment(this.#mh, { kind, seed, numHeads, numLayers, learningRate });
    this.end();
    const tokens = sequenceOfMaps(experiment);
    this.#runs += 1;
    this.#current = { run: this.#runs, settings, small, experiment, tokens, moments: new Moments(frameEvery, this.#limits) };
    this.#saveMoment();
    this.#addFrame();
    return { tokens, progress: this.#progress() };
  }

  async run(until: number): Promise<Progress> {
    this.pause();
    const { run, experiment } = this.#live();
    const stop = new AbortController();
    this.#stop = stop;
    this.#dropGeneration();
    try {
      for await (const { loss } of train({ experiment, steps: until, signal: stop.signal })) {
        this.#losses.push(loss);
        if (experiment.steps() % frameEvery === 0) {
          this.#saveMoment({ onlyIfDue: true });
          this.#addFrame();
        }
        this.#offer();
      }
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    }
    // start() or end() has ended this run.
    if (experiment.disposed) return { run, step: 0, losses: [], frames: [], moments: [], memory: this.#mh.memory() };
    this.#saveMoment();
    this.#addFrame();
    return this.#progress();
  }

  pause(): null {
    this.#stop?.abort();
    this.#stop = undefined;
    return null;
  }

  step(): Progress {
    this.pause();
    this.#dropGeneration();
    this.#losses.push(this.#live().experiment.step().loss);
    this.#saveMoment();
    this.#addFrame();
    return this.#progress();
  }

  goTo(step: number): Frame {
    this.pause();
    const { experiment, moments } = this.#live();
    const state = moments.get(step);
    if (!state) throw new Error(`There is no saved moment of step ${step}.`);
    experiment.restore(state);
    this.#dropGeneration();
    return this.#frame();
  }

  measure(): Measured {
    return this.#measured(manySequences);
  }

  mute(heads: readonly number[]): Muting {
    const { experiment } = this.#live();
    const { numHeads, numLayers } = experiment.options;
    const headScales = new Float32Array(numHeads * numLayers).fill(1);
    for (const head of heads) headScales[head] = 0;
    const muted = experiment.evaluate({ sequences: manySequences, attention: false, headScales });
    return { before: this.measure(), after: [...muted.jobAccuracy] };
  }

  heads(text: string, layer: number | null): TrainedHeads {
    const { experiment, settings, tokens: sample } = this.#live();
    const { numHeads, numLayers } = experiment.options;
    const { tokens: names, embedDim } = factsOf(settings.kind);
    const letters = [...text].map((letter) => names.findIndex((name) => name.toLowerCase() === letter.toLowerCase()));
    const known = letters.filter((id) => id >= 0).slice(0, sequenceLength);
    // One letter can only look at itself.
    const ofText = known.length > 1;
    const ids = ofText ? Int32Array.from(known) : sample;
    const at = Math.min(layer ?? Infinity, numLayers - 1);
    const { model, attentionOptions } = experiment;
    const { logits, traces } = model.forward(ids, { ...attentionOptions, trace: ['x'] });
    logits.dispose();
    const dict = model.stateDict();
    const read = (name: string): Float32Array<ArrayBuffer> => Float32Array.from(dict[`layers.${at}.${name}`]!.data as Float32Array);
    const stacked = read('self_attn.in_proj_weight');
    const part = (index: number) => stacked.slice((index * stacked.length) / 3, ((index + 1) * stacked.length) / 3);
    return {
      ...{ tokens: [...ids].map((id) => names[id]!), ofText, layer: at, layers: numLayers },
      ...{ x: Float32Array.from(traces[at]!.x.data), embedDim, headDim: embedDim / numHeads, rope: { style: 'half' } },
      weights: { qProj: part(0), kProj: part(1), vProj: part(2), outProj: read('self_attn.out_proj.weight') },
    };
  }

  prompt(sequence: number): Prompt {
    const { experiment, settings } = this.#live();
    this.#dropGeneration();
    const { embedDim, vocabSize } = factsOf(settings.kind);
    const size = { layers: settings.layers, embedDim, vocabSize };
    this.#generation = new Generation(experiment, size, sequence);
    return this.#generation.prompt;
  }

  tick(): Tick {
    if (!this.#generation) throw new Error('There is no prompt to continue.');
    return this.#generation.tick();
  }

  peek(steps: number, fresh: boolean): Peeked {
    if (fresh || !this.#peek) {
      this.#peek?.dispose();
      this.#peek = new Peek(this.#mh);
    }
    return this.#peek.run(steps);
  }

  end(): MemoryInfo {
    this.pause();
    this.#dropGeneration();
    this.#current?.experiment.dispose();
    this.#current = undefined;
    this.#losses = [];
    this.#frames = [];
    return this.#mh.memory();
  }

  /** Called when the page has shown the last report. */
  seen(): void {
    this.#mayReport = true;
  }

  #live(): Current {
    if (!this.#current) throw new Error('No training has been started.');
    return this.#current;
  }

  #offer(): void {
    if (!this.#mayReport) return;
    this.#mayReport = false;
    this.#report(this.#progress());
  }

  /** Returns the progress that has not been reported yet. */
  #progress(): Progress {
    const [losses, frames] = [this.#losses, this.#frames];
    this.#losses = [];
    this.#frames = [];
    const { run, experiment, moments } = this.#live();
    return { run, step: experiment.steps(), losses, frames, moments: moments.steps, memory: this.#mh.memory() };
  }

  /** Saves the current step. `onlyIfDue`: not if moments between the saved ones are no longer wanted. */
  #saveMoment({ onlyIfDue = false } = {}): void {
    const { experiment, moments, small } = this.#live();
    const step = experiment.steps();
    if (!small && (!onlyIfDue || moments.due(step))) moments.keep(step, experiment.checkpoint());
  }

  #addFrame(): void {
    const { experiment, moments, small } = this.#live();
    if (this.#frames.at(-1)?.step === experiment.steps()) return;
    const kept = new Set(moments.steps);
    // If the page confirms reports slowly, keep only the frames of saved moments.
    this.#frames = this.#frames.filter((frame) => small || kept.has(frame.step));
    this.#frames.push(this.#frame());
  }

  #frame(): Frame {
    const { experiment, tokens } = this.#live();
    return { step: experiment.steps(), maps: this.#mapsOn(tokens), ...this.#measured(frameSequences) };
  }

  #measured(sequences: number): Measured {
    const { experiment, small } = this.#live();
    const { accuracy, jobAccuracy, attention } = experiment.evaluate({ sequences, attention: !small });
    return { accuracy, jobAccuracy: [...jobAccuracy], attention: [...attention] };
  }

  #mapsOn(tokens: Int32Array): Float32Array {
    const { experiment } = this.#live();
    const { numHeads, numLayers } = experiment.options;
    const size = numHeads * sequenceLength * sequenceLength;
    const maps = new Float32Array(numLayers * size);
    const { model, attentionOptions } = experiment;
    const { logits, traces } = model.forward(tokens, { ...attentionOptions, trace: ['weights'] });
    logits.dispose();
    traces.forEach(({ weights }, layer) => maps.set(weights.data, layer * size));
    return maps;
  }

  #dropGeneration(): void {
    this.#generation?.dispose();
    this.#generation = undefined;
  }
}

/**
 * The first of 32 held-out sequences in which every job has an answer at position 10, a third of the length; else the
 * first.
 */
function sequenceOfMaps(experiment: Experiment): Int32Array {
  const jobs = experiment.jobs.length;
  const { tokens, targets } = experiment.heldOut(0, 32);
  const early = Math.floor(sequenceLength / 3);
  const found = Array.from({ length: 32 }, (_, i) => (i * sequenceLength + early) * jobs).findIndex((at) =>
    targets.subarray(at, at + jobs).every((target) => target >= 0),
  );
  const start = Math.max(0, found) * sequenceLength;
  return tokens.slice(start, start + sequenceLength);
}
