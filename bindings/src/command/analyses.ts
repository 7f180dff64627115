// multihead lens, patch, ablate and attribute: what the parts of a language model do, in numbers and as a chart.

import { printable } from '../runtime/text.js';
import type { Metric, Model, ModelInfo, ModelInput, PairResults, PartResults, Site, Token } from '../types/models.js';
import { chart as chartOption, choice, count, flag, lists, number, numbers, type Option, parse, text, UsageError, type Values } from './arguments.js';
import { type Grid, gridSvg } from './grid_chart.js';
import { rowOf, showLine, writeChart } from './output.js';
import { type Opened, readInputs, refuseOthers, type Session, sharedOptions, steering, steeringOptions, withModel } from './session.js';

// Gradients are for models on this thread.
const { workers: _, ...alone } = sharedOptions;
const chart = chartOption('writes an SVG with a color for each part of each layer');
const isGiven = (value: string): boolean => value !== '';

const metricOptions = {
  token: text('TOKEN', 'the token whose log-probability counts: its id, or a text that is one token', 'a token', isGiven),
  against: text('TOKEN', 'the difference of the two logits counts', 'a token', isGiven),
  position: number('after which token of the text, from 0, negative from the end; default -1', 'a whole number', Number.isInteger),
} satisfies Record<string, Option<unknown>>;

export const analysisHelp = `The metric is the difference of the logits of --token and --against, or the log-probability of --token, after one token; without
--token the mean log-probability of all tokens. The table has its change for each part of each layer.
`;

const sites = ['z', 'q', 'k', 'v', 'resid_pre', 'attn_out', 'resid_mid', 'mlp_hidden', 'mlp_out', 'resid_post'] as const satisfies readonly Site[];
const partOptions = {
  by: choice('parts that are replaced', ['head', 'position', 'layer'], 'head'),
  site: choice('the value; auto is z by heads, else resid_pre', ['auto', ...sites], 'auto'),
} satisfies Record<string, Option<unknown>>;

export const lensOptions = {
  layers: numbers('only the inputs of these layers, such as 0,1; the number of layers is the output of the last one'),
  top: count('number of likeliest tokens; default 5'),
  position: metricOptions.position,
  ...steeringOptions,
  chart,
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;
export const patchOptions = { ...metricOptions, ...partOptions, chart, ...sharedOptions } satisfies Record<string, Option<unknown>>;
export const ablateOptions = {
  ...metricOptions,
  ablation: choice("what takes the place of a head's output", ['zero', 'mean'], 'zero'),
  cross: flag('the heads of cross-attention of a model with an encoder'),
  decoderIds: lists("the decoder's token ids for each text, such as 0,15,7, of a model with an encoder"),
  chart,
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;
export const attributeOptions = { ...metricOptions, ...partOptions, chart, ...alone } satisfies Record<string, Option<unknown>>;

const tokenOf = (given: string): Token => (/^\d+$/.test(given) ? Number(given) : given);

function metricOf({ token, against, position }: Values<typeof metricOptions>): Metric {
  if (token === undefined) {
    if (against !== undefined) throw new UsageError('--token', 'a token beside --against', 'none');
    return { meanLogProb: true };
  }
  const own = { token: tokenOf(token), position };
  return against === undefined ? own : { ...own, against: tokenOf(against) };
}

const placesOf = ({ by, site }: Values<typeof partOptions>) => ({ by, site: site === 'auto' ? undefined : site });

const refuse = (info: ModelInfo): string | undefined => refuseOthers(info) ?? (info.encoder && 'a causal language model without an encoder');

const writeGrid = (file: string | undefined, grid: Grid): Promise<void> => writeChart(file, () => gridSvg(grid));
const wordsOf = (input: ModelInput): string => printable(typeof input === 'string' ? input : input.join(' '));
const numbersTo = (end: number): string[] => Array.from({ length: end }, (__, at) => String(at));

/** Runs a sweep that shows its progress, and that Ctrl-C ends. */
function sweeping<T>(
  { messages, interrupt }: Session,
  run: (options: { signal: AbortSignal; onProgress: (done: number) => void }) => Promise<T>,
): Promise<T> {
  const onProgress = (done: number): void => showLine(messages, `${Math.floor(100 * done)} %`);
  return interrupt.during(() => run({ signal: interrupt.signal, onProgress })).finally(() => showLine(messages, ''));
}

/** `changes`: true if values are changes of the metric already. */
type Found = PartResults & Partial<PairResults> & { readonly changes: boolean };

async function show(
  { model, description }: Opened,
  inputs: readonly ModelInput[],
  found: Found,
  column: string,
  values: { readonly json: boolean; readonly chart: string | undefined },
  { output }: Session,
): Promise<void> {
  const { clean, corrupt, changes } = found;
  const [layers = 0, parts = 0] = found.values.shape;
  const changed = Array.from(found.values.data, (value) => (changes ? value : value - clean));
  const at = (layer: number, part: number): number => changed[layer * parts + part] as number;
  if (values.json) {
    const rows = numbersTo(layers).map((__, layer) => [...found.values.data.subarray(layer * parts, (layer + 1) * parts)]);
    await output.json({ ...description, clean, ...(corrupt !== undefined && { corrupt }), [changes ? 'changes' : 'metrics']: rows });
  } else {
    await output.write(`metric ${clean.toFixed(4)}${corrupt === undefined ? '' : `, corrupt ${corrupt.toFixed(4)}`}; its change by ${column}:\n`);
    await output.write(rowOf(['layer', ...numbersTo(parts)], 1, 9));
    for (let layer = 0; layer < layers; layer += 1)
      await output.write(rowOf([String(layer), ...numbersTo(parts).map((__, part) => at(layer, part).toFixed(3))], 1, 9));
  }
  await writeGrid(values.chart, {
    title: `Change of the metric by ${column}: ${model.info.modelType}`,
    text: inputs.map(wordsOf).join(' → '),
    ...{ column, rows: numbersTo(layers).map((layer) => `layer ${layer}`), columns: numbersTo(parts), values: changed },
    noteOf: (layer, part) => `layer ${layer}, ${column} ${part}: ${at(layer, part).toFixed(4)}`,
    legend: `change of the metric, which is ${clean.toFixed(4)}`,
  });
}

export async function patch(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, patchOptions);
  const { folder, inputs } = readInputs(positionals, values, 2, 2);
  const [clean, corrupt] = inputs as [ModelInput, ModelInput];
  const metric = metricOf(values);
  const work = async (opened: Opened): Promise<void> => {
    const results = await sweeping(session, (options) => opened.model.patch(clean, corrupt, metric, { ...placesOf(values), ...options }));
    await show(opened, inputs, { ...results, changes: false }, values.by, values, session);
  };
  await withModel(session, folder, values, work, refuse);
}

export async function ablate(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, ablateOptions);
  const { folder, inputs } = readInputs(positionals, values, Infinity);
  const metric = metricOf(values);
  const work = async (opened: Opened): Promise<void> => {
    const { ablation, cross, decoderIds } = values;
    const places = { site: cross ? 'cross_z' : 'z', ...(decoderIds.length > 0 && { decoderInputs: decoderIds }) } as const;
    const results = await sweeping(session, (options) => opened.model.ablate(inputs, metric, { ablation, ...places, ...options }));
    await show(opened, inputs, { ...results, changes: false }, 'head', values, session);
  };
  await withModel(session, folder, values, work, refuseOthers);
}

/** Two texts: attribution patching. One text: what heads and MLPs add to the logits. */
export async function attribute(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, attributeOptions);
  const { folder, inputs } = readInputs(positionals, values, 2);
  const [clean, corrupt] = inputs as [ModelInput, ModelInput?];
  const metric = metricOf(values);
  const work = async (opened: Opened): Promise<void> => {
    if (corrupt !== undefined) {
      const results = await opened.model.attributionPatch(clean, corrupt, metric, placesOf(values));
      await show(opened, inputs, { ...results, changes: true }, values.by, values, session);
      return;
    }
    if (typeof metric === 'function' || !('token' in metric) || metric.against === undefined) {
      throw new UsageError('--against', 'a token, and another one for --token, with one text', 'none');
    }
    await showDirect(opened, clean, await opened.model.logitAttribution(clean, metric), values, session);
  };
  await withModel(session, folder, { ...values, workers: undefined }, work, refuse);
}

async function showDirect(
  { model, description }: Opened,
  input: ModelInput,
  { heads, mlp, embedding, rest, metric }: Awaited<ReturnType<Model['logitAttribution']>>,
  values: { readonly json: boolean; readonly chart: string | undefined },
  { output }: Session,
): Promise<void> {
  const [layers = 0, count = 0] = heads.shape;
  const columns = [...numbersTo(count), 'MLP'];
  const all = numbersTo(layers).map((__, layer) => [...heads.data.subarray(layer * count, (layer + 1) * count), mlp[layer] as number]);
  if (values.json) await output.json({ ...description, metric, embedding, rest, heads: all.map((row) => row.slice(0, count)), mlp: [...mlp] });
  else {
    await output.write(
      `difference of logits ${metric.toFixed(4)}: embedding ${embedding.toFixed(4)}, biases ${rest.toFixed(4)}, and by head and MLP:\n`,
    );
    await output.write(rowOf(['layer', ...columns], 1, 9));
    for (const [layer, cells] of all.entries()) await output.write(rowOf([String(layer), ...cells.map((cell) => cell.toFixed(3))], 1, 9));
  }
  await writeGrid(values.chart, {
    title: `What heads and MLPs add to the logits: ${model.info.modelType}`,
    ...{ text: wordsOf(input), column: 'head', rows: numbersTo(layers).map((layer) => `layer ${layer}`), columns, values: all.flat() },
    noteOf: (layer, part) => `layer ${layer}, ${part === count ? 'MLP' : `head ${part}`}: ${all[layer]?.[part]?.toFixed(4)}`,
    legend: `adds to the difference of logits, which is ${metric.toFixed(4)}`,
  });
}

export async function lens(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, lensOptions);
  const { folder, inputs } = readInputs(positionals, values, 1);
  const input = inputs[0] ?? '';
  await withModel(session, folder, values, (opened) => look(opened, input, values, session), refuse);
}

async function look({ model, description }: Opened, input: ModelInput, values: Values<typeof lensOptions>, session: Session): Promise<void> {
  const { output } = session;
  const { top = 5, position = -1 } = values;
  const edited = await steering(session, values, model);
  const { layers, inputIds, ids, probabilities } = await model.lens(input, { layers: values.layers, top, ...edited });
  const tokens = inputIds.length;
  const place = position < 0 ? tokens + position : position;
  if (place < 0 || place >= tokens) throw new UsageError('--position', `${-tokens} to ${tokens - 1}`, String(position));
  const texts = new Map<number, string>();
  if (typeof input === 'string') for (const id of new Set([...ids, ...inputIds])) texts.set(id, await model.decode([id]));
  const textOf = (id: number): string => (texts.has(id) ? JSON.stringify(texts.get(id)) : String(id));
  const at = (layer: number, token: number): { id: number; probability: number }[] =>
    numbersTo(top).map((__, rank) => {
      const index = (layer * tokens + token) * top + rank;
      return { id: ids[index] as number, probability: probabilities[index] as number };
    });
  if (values.json) {
    const predictions = layers.flatMap((layer, row) =>
      numbersTo(tokens).map((__, token) => ({
        layer,
        position: token,
        top: at(row, token).map((each) => ({ ...each, ...(texts.has(each.id) && { text: texts.get(each.id) }) })),
      })),
    );
    await output.json({ ...description, ids: [...inputIds], predictions });
  } else {
    await output.write(`after token ${place}, ${printable(textOf(inputIds[place] as number))}:\n`);
    for (const [row, layer] of layers.entries()) {
      const cells = at(row, place).map(({ id, probability }) => `${printable(textOf(id))} ${(100 * probability).toFixed(1)} %`);
      await output.write(`${String(layer).padStart(5)}  ${cells.join('  ')}\n`);
    }
  }
  const best = (row: number, token: number) => at(row, token)[0];
  await writeGrid(values.chart, {
    title: `What every layer would predict: ${model.info.modelType}`,
    ...{ text: wordsOf(input), column: 'position', rows: layers.map((layer) => `layer ${layer}`), columns: numbersTo(tokens) },
    values: layers.flatMap((__, row) => numbersTo(tokens).map((___, token) => best(row, token)?.probability ?? 0)),
    noteOf: (row, token) =>
      `before layer ${layers[row]}, after token ${token}: ${at(row, token)
        .map(({ id, probability }) => `${textOf(id)} ${(100 * probability).toFixed(1)} %`)
        .join(', ')}`,
    legend: 'probability of the likeliest token',
  });
}
