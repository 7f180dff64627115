// Analyses of a model on a GPU, by its passes. The core checks the questions; what follows from the logits is computed here.

import { type Ablation, ablations, type By, editActions, metricKinds, parts, type Site, sites } from '../../generated/tables.js';
import { optionError } from '../../runtime/errors.js';
import { elements } from '../../runtime/shape.js';
import type { Count, Extents, Int32, Int64 } from '../../types/wire.js';
import { type AnalysisSweep, type CoreMetric, type Input, type Pair, type PassAnalyses, Sweep, type Texts } from '../core/core_analyses.js';
import type { PlacedEdit } from '../core/engine.js';
import { shapeOf } from '../core/sites.js';
import type { GpuModel } from './model.js';

type Floats = Float32Array<ArrayBuffer>;

/** Rows of a pass over several variants, and numbers of logits that are read at once. */
const [mostRows, mostLogits] = [512, 2 ** 24];

/** Any metric, for a question without one. */
const noMetric: CoreMetric = { kind: metricKinds.logProbability, position: -1 as Int64, token: 0 as Int32, against: 0 as Int32 };

function checkFinite(numbers: readonly number[] | Floats, argument: string): void {
  if (!numbers.every((number: number) => Number.isFinite(number))) throw optionError(argument, 'finite numbers', 'NaN or an infinity');
}

function logSumExp(logits: Floats): number {
  const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  return most + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - most), 0));
}

const rankOf = (logits: Floats, token: number): number => logits.reduce((count, logit) => count + (logit > logits[token]! ? 1 : 0), 0);

/** The ids of the largest logits; of equal ones the lower id first. */
function largest(logits: Floats, count: number): number[] {
  const ids: number[] = [];
  for (let id = 0; id < logits.length && count > 0; id += 1) {
    if (ids.length === count && logits[id]! <= logits[ids.at(-1)!]!) continue;
    const at = ids.findIndex((each) => logits[each]! < logits[id]!);
    ids.splice(at < 0 ? ids.length : at, 0, id);
    ids.length = Math.min(ids.length, count);
  }
  return ids;
}

const rowsOf = (numbers: Floats, width: number): Floats[] =>
  Array.from({ length: numbers.length / width }, (_, row) => numbers.subarray(row * width, (row + 1) * width));

function repeated<T extends Float32Array | Int32Array>(numbers: T, count: number): T {
  const all = new (numbers.constructor as new (length: number) => T)(numbers.length * count);
  for (let at = 0; at < count; at += 1) all.set(numbers, at * numbers.length);
  return all;
}

export class GpuAnalyses implements PassAnalyses {
  readonly #model: GpuModel;

  constructor(model: GpuModel) {
    this.#model = model;
  }

  /** Throws the core's errors of a question about one input, without its edits, which passes check. */
  #check({ batch, headScales }: Input, metric: CoreMetric): void {
    const input = { batch: { ...batch, edits: undefined }, headScales };
    Sweep.patch(this.#model.core, [input, input], metric, sites.residPre, parts.layer).dispose();
  }

  /** Calls `each` with the logits of each token by the residual stream before each of these layers, or after the last one. */
  async #logits({ batch, headScales }: Input, layers: readonly number[], each: (logits: Floats, row: number) => void): Promise<void> {
    this.#check({ batch, headScales }, noMetric);
    const { numLayers, embedDim, vocabSize } = this.#model.info;
    const { ids, tokens } = batch;
    const states = await this.#model.pass(batch, headScales, {
      places: layers.map((layer) => (layer < numLayers ? { site: sites.residPre, layer } : { site: sites.residPost, layer: layer - 1 })),
      shapes: layers.map(() => [tokens, embedDim as Count]),
    });
    const most = Math.max(1, Math.floor(Math.min(mostRows, mostLogits / vocabSize)));
    for (const [at, state] of states.entries()) {
      for (let first = 0; first < tokens; first += most) {
        const some = ids.subarray(first, first + most);
        const from = state.subarray(first * embedDim, (first + some.length) * embedDim);
        const part = { ids: some, batch: 1 as Count, tokens: some.length as Count };
        const [logits] = (await this.#model.pass(part, undefined, { from, firstLayer: numLayers, logits: true })) as [Floats];
        checkFinite(logits, 'logits');
        for (const [row, own] of rowsOf(logits, vocabSize).entries()) each(own, at * tokens + first + row);
      }
    }
  }

  async lens(input: Input, layers: readonly number[], top: Int64, tokens: readonly number[], wanted: Extents | undefined) {
    const logits = wanted && new Float32Array(elements(wanted));
    const [ids, ranks, shares, sharesOfTokens]: [number[], number[], number[], number[]] = [[], [], [], []];
    await this.#logits(input, layers, (own, row) => {
      logits?.set(own, row * own.length);
      const sum = logSumExp(own);
      const likeliest = largest(own, Number(top));
      ids.push(...likeliest);
      shares.push(...likeliest.map((id) => Math.exp(own[id]! - sum)));
      ranks.push(...tokens.map((token) => rankOf(own, token)));
      sharesOfTokens.push(...tokens.map((token) => Math.exp(own[token]! - sum)));
    });
    const probabilities = { probabilities: Float32Array.from(shares), tokenProbabilities: Float32Array.from(sharesOfTokens) };
    return { ids: Int32Array.from(ids), ranks: Int32Array.from(ranks), ...probabilities, logits };
  }

  async logProbabilities(input: Input) {
    const [values, ranks]: [number[], number[]] = [[], []];
    await this.#logits(input, [this.#model.info.numLayers], (own, row) => {
      const token = input.batch.ids[row + 1];
      if (token === undefined) return;
      values.push(own[token]! - logSumExp(own));
      ranks.push(rankOf(own, token));
    });
    return { probabilities: Float32Array.from(values), ranks: Int32Array.from(ranks) };
  }

  async measure(input: Input, metric: CoreMetric): Promise<number> {
    this.#check(input, metric);
    return (await this.#metrics(input, metric)).metrics[0]!;
  }

  /** The metric of each sequence, and the values of a site of all layers. `start`: of a pass that begins with a layer. */
  async #metrics(
    { batch, headScales }: Input,
    { kind, position, token, against, evaluate }: CoreMetric,
    site?: Site,
    start?: { readonly firstLayer: number; readonly from: Floats },
  ): Promise<{ metrics: number[]; captures: Floats[] }> {
    const { info } = this.#model;
    const { ids, tokens } = batch;
    const isMean = kind === metricKinds.meanLogProbability;
    const places = site === undefined ? [] : Array.from({ length: info.numLayers }, (_, layer) => ({ site, layer }));
    const shapes = places.map((place) => shapeOf(place, info, { tokens }) as readonly number[] as Extents);
    const onlyToken = isMean ? -1 : (Number(position) + tokens) % tokens;
    const [logits, ...captures] = await this.#model.pass(batch, headScales, { places, shapes, logits: true, onlyToken, ...start });
    const rows = rowsOf(logits!, info.vocabSize);
    const ofRow = (row: Floats, id: number): number => row[id]! - (kind === metricKinds.logitDifference ? row[against]! : logSumExp(row));
    const metrics = isMean
      ? Array.from({ length: batch.batch }, (_, sequence) => {
          const first = sequence * tokens;
          const own = rows.slice(first, first + tokens - 1).map((row, at) => ofRow(row, ids[first + at + 1]!));
          return own.reduce((sum, value) => sum + value, 0) / own.length;
        })
      : rows.map((row) => evaluate?.(row.slice()) ?? ofRow(row, token));
    checkFinite(metrics, 'metric');
    return { metrics, captures };
  }

  patch([clean, corrupt]: Pair, metric: CoreMetric, site: Site, by: By): AnalysisSweep {
    const checked = Sweep.patch(this.#model.core, [clean, corrupt], metric, site, by);
    return this.#sweep(checked, [clean], metric, site, by, async (results) => {
      const { metrics, captures } = await this.#metrics(corrupt, metric, site);
      results.corrupt = metrics[0]!;
      const shape = shapeOf({ site, layer: 0 }, this.#model.info, { tokens: corrupt.batch.tokens });
      return (layer) => ({ action: editActions.replace, factor: 1, value: { data: captures[layer]!, shape } });
    });
  }

  ablate({ texts }: Texts, headScales: Float32Array | undefined, metric: CoreMetric, ablation: Ablation, site: Site): AnalysisSweep {
    const checked = Sweep.ablate(this.#model.core, { texts }, headScales, metric, ablations.zero, site);
    const inputs = texts.map((ids) => ({ batch: { ids, batch: 1 as Count, tokens: ids.length as Count }, headScales }));
    return this.#sweep(checked, inputs, metric, site, parts.head, async () => {
      if (ablation === ablations.zero) return () => ({ action: editActions.scale, factor: 0 });
      const { numLayers, numHeads, headDim } = this.#model.info;
      const [width, count] = [numHeads * headDim, texts.reduce((sum, { length }) => sum + length, 0)];
      const means = Array.from({ length: numLayers }, () => new Float64Array(width));
      for (const input of inputs) {
        const { captures } = await this.#metrics(input, metric, site);
        captures.forEach((z, layer) => z.forEach((value, at) => (means[layer]![at % width]! += value / count)));
      }
      const heads = means.map((mean) => rowsOf(Float32Array.from(mean), headDim));
      return (layer, head) => ({ action: editActions.set, factor: 1, value: { data: heads[layer]![head]!, shape: [headDim] } });
    });
  }

  /** `checked`: a sweep of the core, which says the number of parts. `begin` gives the change of a part. */
  #sweep(
    checked: Sweep,
    texts: readonly Input[],
    metric: CoreMetric,
    site: Site,
    by: By,
    begin: (results: { corrupt: number }) => Promise<(layer: number, part: number) => Pick<PlacedEdit, 'action' | 'factor' | 'value'>>,
  ): AnalysisSweep {
    const count = checked.results().parts;
    checked.dispose();
    const { numLayers, vocabSize } = this.#model.info;
    const results = { clean: 0, corrupt: 0, parts: count, values: new Float32Array(numLayers * count) };
    const placeOf = (part: number) => (by === parts.head ? { heads: [part] } : by === parts.position ? { tokens: [part] } : {});
    async function* run(this: GpuAnalyses): AsyncGenerator<number, void> {
      const changeOf = await begin(results);
      for (const [at, text] of texts.entries()) {
        const { batch, headScales } = text;
        const { metrics, captures: states } = await this.#metrics(text, metric, sites.residPre);
        results.clean += metrics[0]! / texts.length;
        yield at / texts.length;
        const rows = metric.kind === metricKinds.meanLogProbability ? batch.tokens : 1;
        const most = Math.max(1, Math.floor(Math.min(mostRows / batch.tokens, mostLogits / rows / vocabSize)));
        for (let layer = 0; layer < numLayers; layer += 1) {
          for (let first = 0; first < count; first += most) {
            const variants = Array.from({ length: Math.min(most, count - first) }, (_, i) => first + i);
            const edits = variants.map((part, i) => ({ site, layer, sequences: [i], ...placeOf(part), ...changeOf(layer, part) }));
            const [ids, tokenTypes] = [batch.ids, batch.tokenTypes].map((list) => list && repeated(list, edits.length)) as [Int32Array, Int32Array];
            const several = { batch: { ...batch, ids, tokenTypes, batch: edits.length as Count, edits }, headScales };
            const start = { firstLayer: layer, from: repeated(states[layer]!, edits.length) };
            const found = await this.#metrics(several, metric, undefined, start);
            for (const [i, part] of variants.entries()) results.values[layer * count + part]! += found.metrics[i]! / texts.length;
            yield (at + (layer + (first + edits.length) / count) / numLayers) / texts.length;
          }
        }
      }
    }
    const steps = run.call(this);
    return {
      next: async () => (await steps.next()).value ?? 1,
      results: () => ({ ...results, values: results.values.slice() }),
      dispose: () => void steps.return(),
    };
  }
}
