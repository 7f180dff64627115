// The visitor's choices, and their form in the address: #text=…&heads=previous.first&causal=1&step=…&head=…

import { divisors, maxEdits, maxWindow, temperatureRange, unbent } from '../attention/bend.js';
import { mostHeads } from '../attention/messages.js';
import { patternIds, type PatternId } from '../attention/patterns.js';
import { novelsTexts, presets } from '../attention/presets.js';
import { maxCharacters, maxTokens, tokenize } from '../attention/tokens.js';
import { quoted } from '../base/format.js';
import { maxNameCharacters, maxPatches, scoreNames } from '../model/limits.js';
import { deviceChoices } from '../model/place.js';
import { weightChoices } from '../model/weights.js';
import { sizeIds } from '../speed/messages.js';
import { sequenceLength } from '../training/messages.js';
import { defaultSeed, headChoices, kindNames, layerChoices, mostSeed, rates } from '../training/settings.js';
import { flag, index, indexOrNone, indices, integer, listOf, number, numberOrNone, oneOf, textUpTo, weightEdits, type Field } from './fields.js';

export const stepIds = ['x', 'project', 'split', 'scores', 'scale', 'mask', 'softmax', 'values', 'merge', 'output'] as const;
export type StepId = (typeof stepIds)[number];

/** The sections of the page, in its order. An address may name one: "#train", or "at=train" among other parts. */
export const placeIds = ['your-sentence', 'steps', 'gallery', 'train', 'generate', 'own', 'speed', 'use-it'] as const;
export type PlaceId = (typeof placeIds)[number];

const partsOf = (hash: string): string[] => hash.replace(/^#/, '').split('&');

/** Sections of earlier versions, with the section and the step that show the same now. */
const former: Readonly<Record<string, { readonly place: PlaceId; readonly step: StepId } | undefined>> = {
  reveal: { place: 'steps', step: 'split' },
  bend: { place: 'steps', step: 'scale' },
};
/** Fields of earlier versions. An address may still have them; nothing reads them. */
const formerFields = ['splitHeads', 'splitApart', 'wrongReshape', 'revealView', 'galleryView', 'bendView'];

const formerOfPart = (part: string) => former[part.replace(/^at=/, '')];
const placeOfPart = (part: string): PlaceId | undefined => placeIds.find((id) => part === id || part === `at=${id}`) ?? formerOfPart(part)?.place;

export const placeIn = (hash: string): PlaceId | undefined =>
  partsOf(hash)
    .map(placeOfPart)
    .find((place) => place !== undefined);

export const viewNames = ['colors', 'numbers'] as const;
export type ViewName = (typeof viewNames)[number];

export const programLanguages = ['javascript', 'cpp'] as const;
export type ProgramLanguage = (typeof programLanguages)[number];

/** The heads that the page shows: of the words model, hand-built, trained in "Train live", or of the model in "Your own model". */
export const sourceNames = ['novels', 'rules', 'trained', 'model'] as const;
export type SourceName = (typeof sourceNames)[number];

export const novelsLayers = 2;

const opening = presets[0]!;
/** The defaults of the words model; of all other heads, those of the first example of hand-built heads. */
const ofNovels = { text: novelsTexts[0]!, causal: true };

/**
 * One line for each field of the state; its key is the field's name in the state and in the address. A section that
 * needs a new field adds a line.
 */
export const fields = {
  text: textUpTo(maxCharacters, opening.text),
  /** If the heads of this source are not there, the page shows hand-built ones. */
  source: oneOf(sourceNames, 'novels'),
  novelsLayer: integer(1, novelsLayers, novelsLayers),
  /** The patterns of hand-built head 1, head 2 and so on. */
  heads: listOf<PatternId>(patternIds, opening.heads),
  causal: flag(opening.causal),
  // The selection. Without a chosen query, the page picks one (see app.ts); a key need not be chosen.
  query: indexOrNone(maxTokens),
  key: indexOrNone(maxTokens),
  head: index(mostHeads),
  liveView: oneOf(viewNames, 'colors'),
  // Step through
  step: oneOf(stepIds, 'x'),
  /** The matrix shown, in the steps that have q, k and v. */
  part: oneOf(['q', 'k', 'v'], 'q'),
  stepView: oneOf(viewNames, 'colors'),
  /** Number of words on each side that a query sees; −1 for all. */
  window: integer(-1, maxWindow, unbent.window),
  temperature: number(...temperatureRange, unbent.temperature),
  divisor: oneOf(divisors, unbent.divisor),
  muted: indices(mostHeads),
  withoutOutput: flag(unbent.withoutOutput),
  edits: weightEdits(mostHeads, maxTokens, maxEdits),
  // Your own model
  /** Name of the model; empty if there is none. The address does not hold its files. */
  model: textUpTo(maxNameCharacters, ''),
  ownLayer: index(256),
  ownHead: index(256),
  ownQuery: indexOrNone(maxPatches),
  /** Text for the model; empty for the sentence of the page. */
  ownText: textUpTo(maxCharacters, ''),
  /** Sentences to compare, one a line; empty for a sample. */
  ownSentences: textUpTo(maxCharacters, ''),
  ownWeights: oneOf(weightChoices, 'auto'),
  ownDevice: oneOf(deviceChoices, 'auto'),
  ownView: oneOf(viewNames, 'colors'),
  ownSort: oneOf(['layer', ...scoreNames], 'layer'),
  /** Two sentences, one a line, and two words, one a line; empty for samples and for the likeliest words. */
  labTexts: textUpTo(maxCharacters, ''),
  labWords: textUpTo(100, ''),
  /** What changes the model while it writes: a scale or strength. */
  labChange: oneOf(['none', 'scale', 'swap', 'steer'], 'none'),
  labFactor: number(-20, 20, 0),
  // Train live. Null for heads or layers: the usual number for the kind of training.
  train: oneOf(kindNames, 'fourJobs'),
  seed: integer(0, mostSeed, defaultSeed),
  trainHeads: numberOrNone(headChoices),
  layers: numberOrNone(layerChoices),
  /** The layer whose heads the page shows; null for the last. */
  trainLayer: numberOrNone(layerChoices),
  rate: number(rates.least, rates.most, rates.usual),
  chart: oneOf(['loss', 'accuracy'], 'loss'),
  trainView: oneOf(viewNames, 'colors'),
  /** The pair chosen in the training's maps, whose words differ from the words of the sentence. */
  trainQuery: indexOrNone(sequenceLength),
  trainKey: indexOrNone(sequenceLength),
  // Generate: index of the held-out sequence to continue.
  pattern: index(100),
  speed: oneOf(sizeIds, 'paragraph'),
  language: oneOf(programLanguages, 'javascript'),
};

type Fields = typeof fields;
export type FieldName = keyof Fields;
export type PageState = {
  readonly [name in FieldName]: Fields[name] extends Field<infer T> ? T : never;
};

/** Heads that are trained here or of an opened model have tokens and a number of their own, which the address does not hold. */
const ownTokens = ({ source }: PageState): boolean => source === 'trained' || source === 'model';

/** The number of hand-built heads, or of heads in a layer of the words model. */
const countOf = ({ source, heads }: PageState): number => (source === 'rules' ? heads.length : 4);

/** Conditions between fields. If a condition fails, its field gets the default. */
const checks: { readonly [name in FieldName]?: (state: PageState) => boolean } = {
  head: (state) => state.head >= 0 && (ownTokens(state) || state.head < countOf(state)),
  query: (state) => ownTokens(state) || (state.query ?? -1) < tokenize(state.text).tokens.length,
  muted: (state) => ownTokens(state) || state.muted.every((head) => head < countOf(state)),
  key: (state) => ownTokens(state) || (state.key ?? -1) < tokenize(state.text).tokens.length,
};

const table = Object.entries(fields) as [FieldName, Field<unknown>][];

const plain = Object.fromEntries(table.map(([name, field]) => [name, field.default])) as unknown as PageState;
/** The values that an address leaves out. */
export const defaultsOf = (source: SourceName): PageState => ({ ...plain, source, ...(source === 'novels' && ofNovels) });

/** The state of the page without an address. */
export const defaults = defaultsOf('novels');

/** The part of the address after '#'; empty for the state without an address. */
export function toHash(state: PageState): string {
  const usual = defaultsOf(state.source);
  const parts = table
    .map(([name, field]) => [name, field.toText(state[name]), field.toText(usual[name])] as const)
    // An address without a source is from before the words model: its heads are hand-built.
    .filter(([name, text, other]) => name === 'source' || text !== other);
  const isUsual = state.source === 'novels' && parts.length === 1;
  return isUsual ? '' : new URLSearchParams(parts.map(([name, text]) => [name, text])).toString();
}

/** Undefined if the text is not valid percent-encoded UTF-8. */
function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return undefined;
  }
}

/**
 * Reads an address. `broken`: names in it that are unknown (in quotation marks), or whose values are invalid; these fields
 * have their defaults.
 */
export function fromHash(hash: string) {
  const read: Record<string, unknown> = {};
  const broken = new Set<string>();
  let step: StepId | undefined;
  for (const part of partsOf(hash)) {
    step ??= formerOfPart(part)?.step;
    if (part === '' || placeOfPart(part)) continue;
    const [rawName = '', ...rest] = part.split('=');
    const name = decoded(rawName) ?? rawName;
    if (formerFields.includes(name)) continue;
    const text = decoded(rest.join('='));
    const field = Object.hasOwn(fields, name) ? (fields[name as FieldName] as Field<unknown>) : undefined;
    const value = text === undefined ? undefined : field?.fromText(text);
    if (value === undefined) broken.add(field ? name : quoted(name, 40));
    else read[name] ??= value;
  }
  const usual = defaultsOf((read['source'] as SourceName | undefined) ?? (Object.keys(read).length > 0 ? 'rules' : 'novels'));
  return checked({ ...usual, ...(step && { step }), ...read } as PageState, broken);
}

/** Gives a field its default where a check fails, and adds its name to `broken`. */
function checked(state: PageState, broken: Set<string>) {
  let valid = state;
  for (const [name, holds] of Object.entries(checks)) {
    if (holds(valid)) continue;
    valid = { ...valid, [name]: defaultsOf(valid.source)[name as FieldName] };
    broken.add(name);
  }
  return { state: valid, broken: [...broken] };
}

/** The state with valid references: after an edit of the sentence, a chosen word or head may be gone. */
export const repaired = (state: PageState): PageState => checked(state, new Set()).state;
