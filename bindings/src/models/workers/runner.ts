// The worker's side of a model: its loader, the model, and its generations live here.

import { socketOf, type TeamSocket } from '../../load/loader.js';
import { sentError } from '../../pool/shared/errors.js';
import { performInTeam } from '../../pool/shared/in_team.js';
import type { TeamCall } from '../../pool/shared/team.js';
import { CoreAnalyses, type Sweep } from '../core/core_analyses.js';
import type { Core } from '../core/contents.js';
import type { CoreBeams } from '../core/beams.js';
import type { CoreGeneration } from '../core/generation.js';
import { ofCore, together } from '../core/generations.js';
import { CoreLoader } from '../core/loader.js';
import type { CoreModel } from '../core/model.js';
import type { Answer, Task } from './protocol.js';

export class ModelRunner {
  readonly #core: Core;
  readonly #generations = new Map<number, CoreGeneration | CoreBeams>();
  readonly #sweeps = new Map<number, Sweep>();
  #loader: CoreLoader | undefined;
  #model: CoreModel | undefined;

  constructor(core: Core) {
    this.#core = core;
  }

  run(task: Task, team: TeamCall | undefined): { message: Answer; transfer: ArrayBuffer[] } {
    const { runtime } = this.#core;
    try {
      const isFirst = team === undefined || team.rank === 0;
      const perform = () => this.#perform(task, isFirst);
      const value = team === undefined ? perform() : performInTeam(runtime, socketOf.get(this.#core) as TeamSocket, team, perform);
      if (!isFirst) return { message: { kind: 'done', value: undefined }, transfer: [] };
      const results = task.kind === 'run' ? (value as (Float32Array<ArrayBuffer> | undefined)[]) : [];
      return { message: { kind: 'done', value }, transfer: results.flatMap((each) => each?.buffer ?? []) };
    } catch (error) {
      return { message: { kind: 'failed', error: sentError(error), dead: runtime.raw.dead }, transfer: [] };
    }
  }

  #all = (ids: readonly number[]) => ids.flatMap((id) => this.#generations.get(id) ?? []);

  release(id: number): void {
    this.#generations.get(id)?.dispose();
    this.#generations.delete(id);
    this.#sweeps.get(id)?.dispose();
    this.#sweeps.delete(id);
  }

  #perform(task: Task, isFirst: boolean): unknown {
    switch (task.kind) {
      case 'link':
        return void new WebAssembly.Instance(task.module, this.#core.imports);
      case 'plan':
        this.#loader = new CoreLoader(this.#core.runtime, task.input);
        return this.#loader.needed;
      case 'give':
        return this.#loader?.give(task.tensor, task.bytes);
      case 'finish': {
        const loader = this.#loader as CoreLoader;
        this.#loader = undefined;
        try {
          this.#model = loader.finish();
        } finally {
          loader.dispose();
        }
        return this.#model.info;
      }
      case 'run':
        return (this.#model as CoreModel).run(task.call);
      case 'together':
        return together(this.#model as CoreModel, this.#all(task.ids));
      case 'analyze':
        return (new CoreAnalyses(this.#model as CoreModel)[task.name] as (...args: readonly unknown[]) => unknown)(...task.args);
      case 'sweep': {
        const { id, make, metrics } = task;
        const methods = new CoreAnalyses(this.#model as CoreModel) as unknown as Record<string, (...args: readonly unknown[]) => Sweep>;
        if (make) this.#sweeps.set(id, (methods[make.name] as (...args: readonly unknown[]) => Sweep)(...make.args));
        const sweep = this.#sweeps.get(id) as Sweep;
        const found = metrics ? sweep.record(metrics) : sweep.run();
        return { found, results: sweep.results() };
      }
      case 'step': {
        const generation = this.#generation(task, isFirst);
        if (task.what === 'next') return generation.nextAtOnce();
        // What beams have not, generate.ts does not ask of them.
        const stepped = generation as CoreGeneration;
        return typeof task.what === 'string' ? stepped[task.what]() : stepped.choose(task.what);
      }
    }
  }

  #generation({ id, settings }: Extract<Task, { kind: 'step' }>, isFirst: boolean): CoreGeneration | CoreBeams {
    let generation = this.#generations.get(id);
    if (generation === undefined && settings !== undefined) {
      // All members choose the same token, but only the first says which others were likely.
      const { id: ofPrefix, common } = settings.prefix ?? { id: 0, common: 0 };
      const prefix = settings.prefix && { of: this.#generations.get(ofPrefix) as CoreGeneration, common };
      const topTokens = isFirst ? settings.topTokens : 0;
      generation = ofCore(this.#model as CoreModel, { ...settings, prefix, topTokens });
      this.#generations.set(id, generation);
    }
    return generation as CoreGeneration | CoreBeams;
  }
}
