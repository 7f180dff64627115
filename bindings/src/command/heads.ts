// multihead heads: what every head of a model looks at, in numbers and as a chart.

import { printable } from '../runtime/text.js';
import type { Model, ModelInput } from '../types/models.js';
import { chart, numbers, type Option, parse, UsageError, type Values } from './arguments.js';
import { type ChartMap, mostSide, svgOf } from './chart.js';
import { Interrupted } from './interrupt.js';
import { smallMap } from './map_image.js';
import { rowOf, showLine, writeChart } from './output.js';
import { type Opened, readerOf, readInputs, type Session, sharedOptions, withModel } from './session.js';
import { type Statistics, statisticsOf } from './statistics.js';

export const headsOptions = {
  layers: numbers('only these layers, such as 0,1'),
  heads: numbers('only these heads of each layer'),
  chart: chart('writes an SVG with a small map of each head'),
  ...sharedOptions,
} satisfies Record<string, Option<unknown>>;

export const headsHelp = `For each head, of an encoder–decoder model those of its encoder, means over the queries:
  entropy    −Σ w log₂ w of the weights w, in bits: 0 if one token has all the weight, log₂ n if n have equal weights
  previous   weight on the token before the query's own; queries from the second token
  first      weight on the first token; queries from the second token
  self       weight on the query's own token
  induction  weight on tokens that follow an earlier occurrence of the query's token; – if no token occurs twice
`;

/** Distinct numbers in their order, each below `end`. */
function chosen(list: readonly number[] | undefined, end: number, flag: string): number[] {
  const all = list ?? Array.from({ length: end }, (_, at) => at);
  const wrong = all.find((each) => each >= end);
  if (wrong !== undefined) throw new UsageError(flag, `0 to ${end - 1}`, String(wrong));
  return [...new Set(all)].sort((a, b) => a - b);
}

const columns = ['entropy', 'previous', 'first', 'self', 'induction'] as const satisfies readonly (keyof Statistics)[];
const rounded = (value: number | null): string => (value === null ? '–' : value.toFixed(3));

/** Bytes of the maps that are computed in one pass. */
const mostMapBytes = 64 * 2 ** 20;

/** The maps of these heads, computed all at once, all of a layer, or one by one, as memory allows. */
async function* mapsOf(model: Model, input: ModelInput, layers: readonly number[], heads: readonly number[], tokens: number) {
  const { numLayers, numHeads } = model.info;
  const size = tokens ** 2;
  const fits = (count: number): boolean => count * size * Float32Array.BYTES_PER_ELEMENT <= mostMapBytes;
  const part = (data: Float32Array, at: number, count: number): Float32Array => data.subarray(at * count, (at + 1) * count);
  const all = fits(numLayers * numHeads) ? (await model.attentions(input)).data : undefined;
  for (const layer of layers) {
    let ofLayer = all && part(all, layer, numHeads * size);
    if (ofLayer === undefined && fits(numHeads)) ofLayer = (await model.attentions(input, { layer })).data;
    for (const head of heads) {
      const weights = ofLayer === undefined ? (await model.attentions(input, { layer, head })).data : part(ofLayer, head, size);
      yield { layer, head, weights };
    }
  }
}

export async function heads(args: readonly string[], session: Session): Promise<void> {
  const { values, positionals } = parse(args, headsOptions);
  const { folder, inputs } = readInputs(positionals, values, 1);
  await withModel(session, folder, values, (opened) => look(readerOf(opened), inputs[0] ?? '', values, session));
}

async function look(
  { model, description }: Opened,
  input: ModelInput,
  values: Values<typeof headsOptions>,
  { output, messages, interrupt }: Session,
): Promise<void> {
  const layers = chosen(values.layers, model.info.numLayers, '--layers');
  const columnHeads = chosen(values.heads, model.info.numHeads, '--heads');
  const encoded = typeof input === 'string' ? await model.encode(input) : { ids: [...input], tokens: undefined };
  const side = mostSide(layers.length * columnHeads.length);

  const found: ({ readonly layer: number; readonly head: number } & Statistics)[] = [];
  const maps: ChartMap[] = [];
  const measure = async (): Promise<void> => {
    for await (const { layer, head, weights } of mapsOf(model, input, layers, columnHeads, encoded.ids.length)) {
      showLine(messages, `layer ${layer}`);
      await new Promise((resolve) => setImmediate(resolve)); // Ctrl-C has its turn
      if (interrupt.signal.aborted) throw new Interrupted();
      const statistics = statisticsOf(weights, encoded.ids);
      found.push({ layer, head, ...statistics });
      if (values.chart === undefined) continue;
      const note = columns.map((name) => `${name} ${rounded(statistics[name])}`).join(', ');
      maps.push({ layer, head, map: smallMap(weights, encoded.ids.length, side), note: `layer ${layer}, head ${head}: ${note}` });
    }
  };
  await interrupt.during(measure).finally(() => showLine(messages, ''));

  if (values.json) {
    const tokens = encoded.tokens === undefined ? {} : { tokens: encoded.tokens };
    await output.json({ ...description, ids: encoded.ids, ...tokens, maps: found });
  } else {
    await output.write(rowOf(['layer', ' head', ...columns], 2, 10));
    for (const { layer, head, ...each } of found) {
      await output.write(rowOf([String(layer), String(head), ...columns.map((name) => rounded(each[name]))], 2, 10));
    }
  }
  const words = printable(typeof input === 'string' ? input : input.join(' '));
  const { modelType } = model.info;
  await writeChart(values.chart, () => svgOf({ modelType, text: words, tokens: encoded.ids.length, layers, heads: columnHeads, maps }));
}
