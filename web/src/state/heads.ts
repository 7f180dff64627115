// Reads the heads that the page shows from the source that the visitor has chosen, for the present sentence. Meanwhile the
// screen stays.

import type { GivenHeads } from '../attention/messages.js';
import { messageOf } from '../base/format.js';
import { createStore, type Store } from '../base/store.js';
import type { TrainingSession } from '../training/session.js';
import { earnedBy } from '../training/view.js';
import type { PageState } from './page_state.js';

export interface HeadSource {
  /** Differs after every change of the heads. */
  readonly version: number;
  /** True if a token of the model sees only itself and earlier tokens. */
  readonly causal: boolean;
  /** A text that these heads read well; empty if any does. */
  readonly opening: string;
  read(state: PageState): Promise<GivenHeads>;
}

/** The sources that have heads. A text is the reason why the source has none. */
export type Sources = { readonly [name in 'trained' | 'model']: HeadSource | string };

export interface Heads {
  /** Null for hand-built heads, and for those of the words model, which the attention worker reads. */
  readonly given: GivenHeads | null;
  readonly reading: boolean;
  /** Reason why the chosen source shows no heads; empty if it does. */
  readonly missing: string;
}

/** Milliseconds between two readings of heads that train. */
const pause = 200;

const choiceOf = ({ source, text, trainLayer, ownLayer }: PageState): string => JSON.stringify([source, text, trainLayer, ownLayer]);

export function followHeads(state: Store<PageState>, sources: Store<Sources>): Store<Heads> {
  const heads = createStore<Heads>({ given: null, reading: false, missing: '' });
  /** The visitor's choices and the version of the heads at the last reading. */
  let last = { choice: '', version: 0 };
  let busy = false;
  /** True after a pause. */
  let rested = false;
  let timer: ReturnType<typeof setTimeout> | undefined;

  function follow(): void {
    const now = state.get();
    const { source } = now;
    const from = source === 'trained' || source === 'model' ? sources.get()[source] : '';
    if (typeof from === 'string') {
      last = { choice: '', version: 0 };
      const { given, reading, missing } = heads.get();
      if (given || reading || missing !== from) heads.set({ given: null, reading: false, missing: from });
      return;
    }
    const choice = choiceOf(now);
    const isOther = choice !== last.choice;
    if (isOther && !heads.get().reading) heads.set({ ...heads.get(), reading: true, missing: '' });
    if (busy || (!isOther && from.version === last.version)) return;
    if (isOther || rested) void read(from, choice, now);
    else
      timer ??= setTimeout(() => {
        timer = undefined;
        rested = true;
        follow();
        rested = false;
      }, pause);
  }

  async function read(from: HeadSource, choice: string, now: PageState): Promise<void> {
    busy = true;
    last = { choice, version: from.version };
    const result = await from.read(now).catch(messageOf);
    busy = false;
    const isString = typeof result === 'string';
    // The visitor may have chosen otherwise meanwhile, or the source may be lost.
    if (choiceOf(state.get()) === choice && last.choice === choice)
      heads.set({ given: isString ? null : result, reading: false, missing: isString ? result : '' });
    follow();
  }

  state.watch(follow);
  sources.watch(follow);
  return heads;
}

/** A text with everything that the four jobs look for: letters, vowels and stars. */
const lettersAndStars = 'b a ✦ t o r s ★ c e n d';

const untrained = 'No heads are trained here yet';
export const noModel = 'No model is open';
export const noSources: Sources = { trained: untrained, model: noModel };

/** Keeps the source of trained heads up to date with the training. */
export function followTraining({ view, call }: TrainingSession, sources: Store<Sources>): void {
  let version = 0;
  view.watch((now, before) => {
    if (before && now.model === before.model && now.measured === before.measured && now.status === before.status) return;
    const there = now.step > 0 && now.status !== 'lost' && now.status !== 'starting';
    version += 1;
    const opening = now.curve.settings.kind === 'fourJobs' ? lettersAndStars : '';
    const trained = there ? { version, causal: true, opening, read } : untrained;
    if (trained !== sources.get().trained) sources.set({ ...sources.get(), trained });
  });

  async function read({ text, trainLayer }: PageState): Promise<GivenHeads> {
    const { ofText, ...layer } = await call('heads', text, trainLayer === null ? null : trainLayer - 1);
    const now = view.get();
    const { kind } = now.curve.settings;
    // Count the heads in the weights: the settings may be of a run that started meanwhile, with another number of heads.
    const heads = layer.weights.qProj.length / (layer.embedDim * layer.headDim);
    // A job without its letters in the text shows nothing of the kind.
    const there = (job: string): boolean => !(/star/.test(job) && !/[★☆✦✧]/.test(letters)) && !(/vowel/.test(job) && !/[aeio]/.test(letters));
    const letters = layer.tokens.join('');
    const names = Array.from(
      { length: heads },
      (_, head) =>
        earnedBy(now, layer.layer * heads + head)
          .map((job) => (there(job) ? job : `${job} (none here)`))
          .join(', ') || `head ${head + 1}`,
    );
    const those = ofText
      ? `the ${layer.tokens.length} of your sentence that they know${kind === 'fourJobs' ? ' (b to t, a, e, i, o)' : ''}`
      : 'your sentence has too few that they know, so they read a training sequence';
    const line = `Trained here for ${now.step} steps. They read letters: ${those}.`;
    return { ...layer, key: `trained ${now.model} ${version} ${layer.layer} ${text}`, names, line };
  }
}
