// Analyses of a model in workers: each of them does what the core of one thread would do, with its share of the weights.

import type { PartResults } from '../../generated/wire.js';
import { type AnalysisSweep, type CoreMetric, lastLogitsOf, type PassAnalyses } from '../core/core_analyses.js';
import type { ModelEngine } from '../core/engine.js';
import type { Analysis, SweepStep } from './protocol.js';
import type { WorkerGroup } from './worker_group.js';

/** Functions of the caller stay on this thread. */
const sendable = (metric: CoreMetric): CoreMetric => ({ ...metric, evaluate: undefined });

export function analysesIn(group: WorkerGroup, model: ModelEngine): PassAnalyses {
  const analyze = <R>(name: Analysis['name'], ...args: readonly unknown[]): Promise<R> => group.send({ kind: 'analyze', name, args }) as Promise<R>;
  const sweep = (name: 'patch' | 'ablate', { evaluate }: CoreMetric, args: readonly unknown[]): AnalysisSweep => {
    const id = group.newGeneration();
    let make: SweepStep['make'] = { name, args };
    let results: PartResults | undefined;
    const send = async (metrics?: readonly number[]) => {
      const answer = await group.send({ kind: 'sweep', id, make, ...(metrics && { metrics }) });
      const { found, results: soFar } = answer as { found: number | Float32Array<ArrayBuffer>[]; results: PartResults };
      [make, results] = [undefined, soFar];
      return found;
    };
    return {
      async next() {
        const found = await send();
        return (typeof found === 'number' ? found : await send(found.map((row) => evaluate!(row)))) as number;
      },
      results: () => results as PartResults,
      dispose: () => group.release(id),
    };
  };
  return {
    lens: (...args) => analyze('lens', ...args),
    logProbabilities: (input) => analyze('logProbabilities', input),
    async measure(input, metric) {
      if (metric.evaluate === undefined) return analyze('measure', input, metric);
      return metric.evaluate((await model.run(lastLogitsOf(model.info, input)))[2] as Float32Array<ArrayBuffer>);
    },
    patch: (inputs, metric, ...rest) => sweep('patch', metric, [inputs, sendable(metric), ...rest]),
    ablate: (texts, headScales, metric, ...rest) => sweep('ablate', metric, [texts, headScales, sendable(metric), ...rest]),
  };
}
