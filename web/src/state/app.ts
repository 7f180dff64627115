// The state that the sections of the page share.

import type { ForwardInput, ForwardResult, GivenHeads } from '../attention/messages.js';
import { colorOf, type NamedHeads, type PatternId } from '../attention/patterns.js';
import { defaultQuery, tokenize } from '../attention/tokens.js';
import { createStore, type Store } from '../base/store.js';
import { createTrainings } from '../training/kinds.js';
import { settingsOf } from '../training/settings.js';
import { changedIn } from './changes.js';
import { followHeads, followTraining, noSources, type Heads } from './heads.js';
import { keepHistory, windowBar, type AddressBar } from './history.js';
import { fromHash, repaired, type FieldName, type PageState } from './page_state.js';

/** The pair of tokens under the pointer or the keyboard's focus; all maps highlight it. */
export interface Pointed {
  readonly query: number;
  /** Null if only a query is under the pointer or focus. */
  readonly key: number | null;
}

/** The query, key and head that the page shows. All are valid for the sentence on the screen. */
export interface Selection extends Pointed {
  readonly head: number;
}

export type StartWorker = (name: 'attention' | 'model' | 'speed' | 'training') => Worker;

type Readable<T> = Pick<Store<T>, 'get' | 'watch'>;

export type App = ReturnType<typeof createApp>;

export function createApp(startWorker: StartWorker, bar: AddressBar = windowBar()) {
  const first = fromHash(bar.read().hash);
  const state = createStore(first.state);
  const broken = createStore<readonly string[]>(first.broken);
  const history = keepHistory(state, bar, (names) => broken.set(names));
  const undone = createStore('');
  const sources = createStore(noSources);
  const heads = followHeads(state, sources);
  state.watch((now, before) => {
    const direction = history.direction();
    undone.set(direction !== 0 && before ? `${direction < 0 ? 'Undone' : 'Redone'}: ${changedIn(now, before)}` : '');
  });
  const training = createTrainings(settingsOf(first.state), {
    startWorker: () => startWorker('training'),
    nextFrame: (run) => void requestAnimationFrame(run),
  });
  followTraining(training, sources);
  return {
    startWorker,
    /** Sections read it and call update() to change it. */
    state: state as Readable<PageState>,
    /** Heads besides the hand-built ones: trained here, or of the visitor's model. */
    sources,
    heads: heads as Readable<Heads>,
    /** The latest forward pass; null before the first, and if the sentence has no tokens. */
    result: createStore<ForwardResult | null>(null),
    /** The pair under the pointer or focus. A click or Enter instead sets query, key and head of the state. */
    pointed: createStore<Pointed | null>(null),
    broken,
    history,
    /** "Train live"; its workers start on first use. */
    training,
    undo: history.undo,
    redo: history.redo,
    /** Text about the last undo or redo, such as "Undone: temperature"; empty after any other change. */
    undone: undone as Readable<string>,
  };
}

/**
 * Changes the state. Each call makes one history entry, which Back and undo() revert. Calls with the same `burst` name
 * in quick succession, for example during typing or dragging, share one entry.
 */
export function update(app: App, change: Partial<PageState>, burst?: string): void {
  app.history.change(repaired({ ...app.state.get(), ...change }), burst);
}

/** Calls `listener` when at least one of these fields of the state has changed. */
export function whenChanged(app: App, names: readonly FieldName[], listener: () => void): void {
  app.state.watch((state, previous) => {
    if (previous && names.some((name) => state[name] !== previous[name])) listener();
  });
}

/** Calls `draw` now, and when the result, the pointed cell or the state has changed. */
export function whenViewed(app: App, draw: () => void): void {
  app.result.watch(draw);
  app.pointed.watch(draw);
  app.state.watch(draw);
}

export const withNumbers = (app: App, draw: (result: ForwardResult) => void) => (): void => {
  const result = app.result.get();
  if (result) draw(result);
};

export function withResult(app: App, section: HTMLElement): HTMLElement {
  app.result.watch((result) => {
    section.hidden = result === null;
  });
  return section;
}

const colorsOfNovels: readonly PatternId[] = [0, 1, 2, 3].map(colorOf);

/** The heads of the result; before the first, those that will be there. */
export const headsOf = ({ result, state }: Pick<App, 'result' | 'state'>): NamedHeads =>
  result.get() ??
  (state.get().source === 'novels' ? { heads: colorsOfNovels, given: { names: colorsOfNovels.map((_, head) => `head ${head + 1}`) } } : state.get());

/** The worker's input; null for a sentence without tokens, undefined while heads are being read. */
export function inputOf({ state, heads: shown }: Pick<App, 'state' | 'heads'>): ForwardInput | null | undefined {
  const { text, source, novelsLayer, heads, causal, window, temperature, divisor, muted, withoutOutput, edits } = state.get();
  const { given, reading } = shown.get();
  const novels = source === 'novels';
  if (reading) return undefined;
  const bend = { window, temperature, divisor, muted, withoutOutput, edits };
  const shared = { causal, bend };
  if (given) return { tokens: given.tokens, heads: given.names.map((_, head) => colorOf(head)), ...shared, given };
  const { tokens } = tokenize(text);
  if (tokens.length === 0) return null;
  return novels ? { tokens, heads: colorsOfNovels, ...shared, reads: novelsLayer - 1 } : { tokens, heads, ...shared };
}

/** Two inputs with equal keys have equal results. The key of given heads stands for their numbers. */
export const keyOf = (input: ForwardInput | null): string =>
  JSON.stringify(input && [input.tokens, input.heads, input.causal, input.bend, input.reads ?? input.given?.key]);

/** True if `result` was computed for the present choices. */
export function isCurrent(result: ForwardResult | null, app: App): boolean {
  const input = inputOf(app);
  return input !== undefined && keyOf(input) === keyOf(result);
}

const disputed = new WeakMap<GivenHeads, number>();

/** The token at which the heads differ most: where their weights are farthest from their mean. It stays when they are bent. */
function mostDisputed(given: GivenHeads, { trace: { weights }, meanWeights: { data: mean } }: ForwardResult): number {
  let best = disputed.get(given);
  if (best !== undefined) return best;
  const count = given.tokens.length;
  const sums = new Float64Array(count);
  weights.data.forEach((weight, i) => (sums[Math.floor(i / count) % count]! += Math.abs(weight - mean[i % (count * count)]!)));
  best = sums.indexOf(Math.max(...sums));
  disputed.set(given, best);
  return best;
}

/** The chosen query, key and head, limited to the tokens and heads of `result`, which may be older than the state. */
export function chosen(app: App, result: ForwardResult): Selection {
  const { query, key, head } = app.state.get();
  const count = result.tokens.length;
  const usual = () => (result.given?.steady ? mostDisputed(result.given, result) : defaultQuery(result.tokens));
  return {
    query: query !== null && query < count ? query : result.next ? count - 1 : usual(),
    key: key !== null && key < count ? key : null,
    head: Math.min(head, result.heads.length - 1),
  };
}

/** Like chosen(), but a pair under the pointer or focus takes precedence. */
export function inView(app: App, result: ForwardResult): Selection {
  const selection = chosen(app, result);
  const pointed = app.pointed.get();
  const inside = (token: number | null) => token === null || token < result.tokens.length;
  return pointed && inside(pointed.query) && inside(pointed.key) ? { ...selection, ...pointed } : selection;
}
