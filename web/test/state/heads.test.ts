import { describe, expect, it } from 'vitest';
import type { ForwardResult, GivenHeads } from '../../src/attention/messages.js';
import { createStore } from '../../src/base/store.js';
import { chosen, inputOf, keyOf, type App } from '../../src/state/app.js';
import { followHeads, followTraining, noSources, type HeadSource, type Sources } from '../../src/state/heads.js';
import { defaults, defaultsOf, fromHash, repaired, toHash, type PageState } from '../../src/state/page_state.js';
import type { TrainingSession } from '../../src/training/session.js';
import { blank, type TrainingView } from '../../src/training/view.js';

const headsOf = (key: string): GivenHeads => ({
  ...{ key, tokens: ['a', 'b'], x: new Float32Array(8), embedDim: 4, headDim: 2, names: ['one', 'two'], line: '', layer: 0, layers: 1 },
  weights: { qProj: new Float32Array(16), kProj: new Float32Array(16), vProj: new Float32Array(16), outProj: new Float32Array(16) },
});

/** A source whose readings end when the test says so. */
function source(version = 1) {
  const waiting: { text: string; done: (heads: GivenHeads) => void; fail: (error: Error) => void }[] = [];
  const read = ({ text }: PageState) => new Promise<GivenHeads>((done, fail) => waiting.push({ text, done, fail }));
  return { from: { version, causal: true, opening: '', read } satisfies HeadSource, waiting };
}
const settle = () => new Promise((done) => setTimeout(done));

function start(first: Partial<PageState> = {}, given: Partial<Sources> = {}) {
  const state = createStore<PageState>({ ...defaultsOf(first.source ?? 'rules'), ...first });
  const sources = createStore<Sources>({ ...noSources, ...given });
  const heads = followHeads(state, sources);
  const choose = (change: Partial<PageState>) => state.set({ ...state.get(), ...change });
  return { state, sources, heads, choose };
}

describe('the heads on the page', () => {
  it('are those of the words model at first, which the worker reads', () => {
    const { state, heads } = start({ source: 'novels' });
    expect(heads.get()).toEqual({ given: null, reading: false, missing: '' });
    const input = inputOf({ state, heads })!;
    expect(input).toMatchObject({ reads: 1, causal: true });
    expect([input.heads.length, input.tokens.at(-1)]).toEqual([4, 'Mr.']);
    state.set({ ...state.get(), novelsLayer: 1 });
    expect(keyOf(inputOf({ state, heads })!)).not.toBe(keyOf(input));
  });

  it('are hand-built if chosen', () => {
    const { state, heads } = start();
    expect(heads.get()).toEqual({ given: null, reading: false, missing: '' });
    expect(inputOf({ state, heads })).toMatchObject({ heads: defaults.heads, causal: false });
  });

  it('are hand-built for a link to heads that are not there, with the reason, and the others once they are', async () => {
    const { state, sources, heads } = start({ source: 'trained' });
    expect(heads.get()).toEqual({ given: null, reading: false, missing: 'No heads are trained here yet' });
    expect(inputOf({ state, heads })).toMatchObject({ heads: defaults.heads });
    const { from, waiting } = source();
    sources.set({ ...noSources, trained: from });
    expect(heads.get()).toEqual({ given: null, reading: true, missing: '' });
    expect(inputOf({ state, heads }), 'the screen stays until they are read').toBeUndefined();
    waiting[0]!.done(headsOf('first'));
    await settle();
    const input = inputOf({ state, heads })!;
    expect(input).toMatchObject({ tokens: ['a', 'b'], heads: ['previous', 'first'], given: { key: 'first' } });
    expect(keyOf({ ...input, given: headsOf('second') })).not.toBe(keyOf(input));
  });

  it('follow the sentence; an answer for an older sentence is not shown', async () => {
    const { from, waiting } = source();
    const { heads, choose } = start({ source: 'model' }, { model: from });
    const shown: (string | undefined)[] = [];
    heads.watch(({ given }) => shown.push(given?.key));
    choose({ text: 'new' });
    expect(waiting.map(({ text }) => text)).toEqual([defaultsOf('model').text]);
    waiting[0]!.done(headsOf('old'));
    await settle();
    expect(heads.get().reading).toBe(true);
    expect(waiting.map(({ text }) => text)).toEqual([defaultsOf('model').text, 'new']);
    waiting[1]!.done(headsOf('new'));
    await settle();
    expect(heads.get()).toMatchObject({ reading: false, given: { key: 'new' } });
    expect(shown).not.toContain('old');
  });

  it('are hand-built at once when the visitor goes back to them, also while others are read', async () => {
    const { from, waiting } = source();
    const { heads, choose } = start({ source: 'trained' }, { trained: from });
    choose({ source: 'rules' });
    expect(heads.get()).toEqual({ given: null, reading: false, missing: '' });
    waiting[0]!.done(headsOf('late'));
    await settle();
    expect(heads.get().given).toBeNull();
    choose({ source: 'trained' });
    waiting[1]!.done(headsOf('again'));
    await settle();
    expect(heads.get().given?.key).toBe('again');
  });

  it('are read again after a pause when they have changed, and stay on the screen meanwhile', async () => {
    const first = source();
    const { heads, sources } = start({ source: 'trained' }, { trained: first.from });
    first.waiting[0]!.done(headsOf('step 10'));
    await settle();
    const second = source(2);
    sources.set({ ...noSources, trained: second.from });
    const third = source(3);
    sources.set({ ...noSources, trained: third.from });
    expect(heads.get()).toMatchObject({ reading: false, given: { key: 'step 10' } });
    while (third.waiting.length === 0) await settle();
    expect(second.waiting).toEqual([]);
    third.waiting[0]!.done(headsOf('step 30'));
    await settle();
    expect(heads.get().given?.key).toBe('step 30');
  });

  it('are hand-built if the source is lost or cannot read the text, with the reason', async () => {
    const { from, waiting } = source();
    const { heads, sources, choose } = start({ source: 'model' }, { model: from });
    waiting[0]!.fail(new Error('There is no text for the model'));
    await settle();
    expect(heads.get()).toEqual({ given: null, reading: false, missing: 'There is no text for the model' });
    choose({ text: 'some' });
    waiting[1]!.done(headsOf('some'));
    await settle();
    expect(heads.get()).toMatchObject({ missing: '', given: { key: 'some' } });
    sources.set(noSources);
    expect(heads.get()).toEqual({ given: null, reading: false, missing: 'No model is open' });
  });

  it('are in the address, with a word and a head that only they have', () => {
    const state: PageState = { ...defaults, source: 'trained', query: 20, key: 19, head: 7, muted: [6] };
    expect(fromHash(`#${toHash(state)}`)).toEqual({ state, broken: [] });
    expect(repaired({ ...state, source: 'rules' })).toMatchObject({ query: null, key: null, head: 0, muted: [] });
    expect(fromHash('#source=nonsense')).toEqual({ state: defaults, broken: ['source'] });
  });
});

describe('the word in view', () => {
  const [given, other] = [
    { ...headsOf('model'), tokens: ['a', 'b', 'c'], steady: true },
    { ...headsOf('trained'), tokens: ['a', 'b', 'c'] },
  ];
  /** Two heads that agree on a and c, and differ on b. */
  const resultOf = (heads: GivenHeads) =>
    ({
      ...{ tokens: heads.tokens, heads: ['previous', 'first'], given: heads },
      trace: { weights: { shape: [2, 3, 3], data: Float32Array.of(1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 1) } },
      meanWeights: { shape: [3, 3], data: Float32Array.of(1, 0, 0, 0.5, 0.5, 0, 0, 0, 1) },
    }) as unknown as ForwardResult;
  const wordIn = (result: ForwardResult, query: number | null = null) =>
    chosen({ state: createStore({ ...defaults, query }) } as unknown as App, result).query;

  it('is the one on which the heads of a model differ most, and stays when they are bent', () => {
    expect(wordIn(resultOf(given))).toBe(1);
    const bent = { ...resultOf(given), meanWeights: { shape: [3, 3], data: new Float32Array(9) } };
    expect(wordIn(bent)).toBe(1);
    expect(wordIn(resultOf(given), 0)).toBe(0);
  });

  it('does not jump while heads train', () => expect(wordIn(resultOf(other))).toBe(2));
});

describe('heads that are trained', () => {
  it('have as many names as their weights have heads, if another run began while they were read', async () => {
    const settings = blank({ kind: 'fourJobs', seed: 1, heads: 1, layers: 1, rate: 0.01 });
    const view = createStore<TrainingView>({ ...settings, status: 'paused', step: 0 });
    const sources = createStore<Sources>(noSources);
    const { key: _, names: __, line: ___, ...layer } = headsOf('');
    const call = () => Promise.resolve({ ...layer, ofText: true });
    followTraining({ view, call } as unknown as TrainingSession, sources);
    view.set({ ...view.get(), step: 3, model: 1 });
    expect(await (sources.get().trained as HeadSource).read({ ...defaults, source: 'trained' })).toMatchObject({ names: ['head 1', 'head 2'] });
    // Both heads have earned two jobs, one with letters that the text does not have.
    const attention = [0, 0, 1, 1, 0, 0, 1, 1];
    view.set({ ...view.get(), step: 4, model: 2, measured: { attention } as unknown as NonNullable<TrainingView['measured']> });
    const name = 'latest vowel, latest star (none here)';
    expect(await (sources.get().trained as HeadSource).read({ ...defaults, source: 'trained' })).toMatchObject({ names: [name, name] });
  });
});
