// Captures and edits of the caller, checked.

import { editActions } from '../generated/tables.js';
import { MultiheadError, optionError, shapeError } from '../runtime/errors.js';
import { checkTensorLike } from '../runtime/operands.js';
import { checkChoice, checkOptions, type Names, plain } from '../runtime/options.js';
import { formatShape } from '../runtime/shape.js';
import { describe, flattened, readNumbers } from '../runtime/tensor.js';
import { pristine, typedArrayName } from '../runtime/typed_arrays.js';
import type { Capture, GradientPlace, ModelInfo, Site } from '../types/models.js';
import type { ModelEngine, Place, PlacedEdit } from './core/engine.js';
import { axesOf, shapeOf, siteNames, type TokenCounts } from './core/sites.js';
import { entriesOf } from './inputs.js';

const actionNames = Object.keys(editActions) as (keyof typeof editActions)[];

const captureNames = { site: plain, layer: plain, heads: plain } satisfies Names<Capture>;
const placeNames = { site: plain, layer: plain } satisfies Names<GradientPlace>;
const editNames = { ...captureNames, tokens: plain, ...Object.fromEntries(actionNames.map((name) => [name, plain])) };

/** Whole numbers below `end`, one or more. Throws `E_OPTION`. */
export function checkPlaces(value: unknown, argument: string, end: number): number[] {
  if (!Array.isArray(value) || value.length === 0) throw optionError(argument, 'an array of whole numbers, not empty', describe(value));
  return entriesOf(value, argument).map((each) => checkBelow(each, argument, end));
}

function checkBelow(value: unknown, argument: string, end: number): number {
  if (Number.isInteger(value) && (value as number) >= 0 && (value as number) < end) return value as number;
  throw optionError(argument, end === Infinity ? 'whole numbers ≥ 0' : `0 to ${end - 1}`, describe(value));
}

const oneToken: TokenCounts = { tokens: 1, source: 1 };

/** Sites whose tokens are those of the encoder. */
const isOfSource = (site: number): boolean => siteNames[site] === 'cross_k' || siteNames[site] === 'cross_v';

/** The number of a site in the core. */
export const siteOf = (value: unknown, argument: string): Place['site'] =>
  siteNames.indexOf(checkChoice(value as Site, siteNames, argument)) as Place['site'];

function readPlace(given: Capture, argument: string, info: ModelInfo): Place {
  const site = siteOf(given.site, `${argument}.site`);
  const layer = checkBelow(given.layer, `${argument}.layer`, info.numLayers);
  if (given.heads === undefined) return { site, layer };
  const { shape, headAxis } = axesOf(site, info, oneToken);
  const name = `${argument}.heads`;
  if (headAxis === undefined) throw optionError(name, `none: ${given.site} has no heads`, describe(given.heads));
  const heads = checkPlaces(given.heads, name, shape[headAxis] as number);
  const twice = heads.find((head, at) => heads.indexOf(head) < at);
  if (twice !== undefined) throw optionError(name, 'each head once', `head ${twice} twice`);
  return { site, layer, heads };
}

function listOf(value: unknown, argument: string): unknown[] {
  if (value === undefined) return [];
  if (Array.isArray(value)) return entriesOf(value, argument);
  throw optionError(argument, 'an array', describe(value));
}

/** Copies a list of places. Throws `E_OPTION`. */
export function readPlaces(given: unknown, argument: string, engine: ModelEngine, withHeads: boolean): Place[] {
  const list = listOf(given, argument);
  return list.map((place, at) => {
    checkOptions(place, withHeads ? captureNames : placeNames, `${argument}[${at}]`);
    return readPlace(place as Capture, `${argument}[${at}]`, engine.info);
  });
}

/** Copies numbers of the caller, which must be finite. */
export function numbersOf(value: unknown, argument: string): NonNullable<PlacedEdit['value']> {
  let copy: { data: Float32Array; shape: readonly number[] };
  if (typeof value === 'number') copy = { data: Float32Array.of(value), shape: [] };
  else if (typedArrayName(value) === 'Float32Array') {
    const data = pristine(value as Float32Array).slice();
    copy = { data, shape: [data.length] };
  } else if (Array.isArray(value)) {
    const [flat, shape] = flattened(value, argument);
    copy = { data: Float32Array.from(readNumbers(flat, shape, argument) ?? []), shape };
  } else {
    const { data, shape } = checkTensorLike(value, ['f32'], argument);
    copy = { data: pristine(data).slice(), shape };
  }
  const wrong = copy.data.find((number) => !Number.isFinite(number));
  if (wrong === undefined) return copy;
  throw optionError(argument, 'finite numbers', String(wrong));
}

/** Copies edits. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`. */
export function readEdits(given: unknown, engine: ModelEngine, option = 'edits'): PlacedEdit[] {
  const list = listOf(given, option);
  return list.map((each, at) => {
    const argument = `${option}[${at}]`;
    checkOptions(each, editNames, argument);
    const edit = each as Capture & { readonly tokens?: unknown } & Readonly<Record<string, unknown>>;
    const names = actionNames.filter((name) => edit[name] !== undefined);
    const [name] = names;
    if (name === undefined || names.length > 1) throw optionError(argument, `one of ${actionNames.join(', ')}`, names.join(' and ') || 'none');
    const value = numbersOf(edit[name], `${argument}.${name}`);
    if (name === 'scale' && value.shape.length > 0) throw optionError(`${argument}.scale`, 'a number', describe(edit[name]));
    const factor = value.data[0] ?? 0;
    const tokens = edit.tokens === undefined ? undefined : checkPlaces(edit.tokens, `${argument}.tokens`, Infinity);
    const place = readPlace(edit, argument, engine.info);
    return { ...place, tokens, action: editActions[name], ...(name === 'scale' ? { factor } : { factor: 1, value }) };
  });
}

/** Checks the parts of edits once the numbers of tokens are known; undefined in a session. Throws `E_OPTION`, `E_SHAPE`. */
export function checkParts(edits: readonly PlacedEdit[], info: ModelInfo, counts: TokenCounts | undefined, option = 'edits'): void {
  edits.forEach((edit, at) => {
    const { tokens, action, value } = edit;
    const argument = `${option}[${at}]`;
    const ofSource = isOfSource(edit.site);
    const count = ofSource ? counts?.source : counts?.tokens;
    const most = (ofSource ? info.encoder : info)?.maxTokens || Infinity;
    for (const token of tokens ?? []) checkBelow(token, `${argument}.tokens`, count ?? most);
    if (value === undefined) return;
    const name = `${argument}.${actionNames[action]}`;
    if (action === editActions.replace) {
      if (counts === undefined) throw optionError(name, 'set, add or scale where a text grows', 'replace');
      const whole = shapeOf({ ...edit, heads: undefined }, info, counts);
      if (whole.join() !== value.shape.join()) throw shapeError(name, formatShape(whole), formatShape(value.shape));
      return;
    }
    const part = shapeOf(edit, info, counts ?? oneToken);
    const { tokenAxis } = axesOf(edit.site, info, oneToken);
    if (tokens !== undefined) part[tokenAxis] = tokens.length;
    const missing = part.length - value.shape.length;
    const fits = value.shape.every((extent, axis) => extent === 1 || extent === part[axis + missing]);
    if (missing < 0 || !fits) throw shapeError(name, `numbers that broadcast to ${formatShape(part)}`, formatShape(value.shape));
  });
}

/** Calls the core, whose lists of captures and of outputs have another name here. */
export async function named<T>(argument: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    const ofList = /^(captures|outputs)(?=\[)/;
    if (!(error instanceof MultiheadError) || !ofList.test(error.argument)) throw error;
    const { code, expected, got } = error;
    throw new MultiheadError(code, { argument: error.argument.replace(ofList, argument), expected, got, cause: error });
  }
}
