// A generation on the page: the tokens so far, and the cost of each tick with a KV cache and without one.

import { messageOf } from '../base/format.js';
import { createStore } from '../base/store.js';
import { mostTokens, type Prompt, type Tick } from './messages.js';
import type { TrainingSession } from './session.js';

export interface GenerationView {
  readonly running: boolean;
  /** Undefined before the first token. */
  readonly prompt: Prompt | undefined;
  /** The tokens of the prompt, and all generated tokens. */
  readonly tokens: readonly number[];
  readonly ticks: readonly Tick[];
  readonly message: string;
}

export type Generating = ReturnType<typeof createGenerating>;

const blank: GenerationView = { running: false, prompt: undefined, tokens: [], ticks: [], message: '' };

export const finished = ({ tokens }: GenerationView): boolean => tokens.length >= mostTokens;

/** `delay`: milliseconds from one token to the next; with 0, only the end of a run is shown. */
export function createGenerating(training: TrainingSession, first: number, delay: () => number) {
  const view = createStore(blank);
  let now = blank;
  let sequence = first;
  /** Number of restarts. Answers to calls from before a restart are dropped. */
  let round = 0;
  let busy = false;

  function change(part: Partial<GenerationView>, shown = true): void {
    now = { ...now, ...part };
    if (shown) view.set(now);
  }

  /** Begins again with another held-out sequence. */
  function restart(next: number): void {
    sequence = next;
    round += 1;
    now = blank;
    view.set(now);
  }

  /** Generates one token. Returns true if it was added. */
  async function advance(shown: boolean): Promise<boolean> {
    if (busy || finished(now)) return false;
    busy = true;
    const mine = round;
    try {
      if (!now.prompt) {
        const prompt = await training.call('prompt', sequence);
        if (mine !== round) return false;
        change({ prompt, tokens: prompt.tokens, message: '' }, shown);
      }
      const tick = await training.call('tick');
      if (mine !== round) return false;
      change({ tokens: [...now.tokens, tick.cached.token], ticks: [...now.ticks, tick] }, shown);
      return true;
    } catch (error) {
      if (mine === round) change({ running: false, message: messageOf(error) });
      return false;
    } finally {
      busy = false;
    }
  }

  /** Generates until the end, or until pause(). */
  async function run(): Promise<void> {
    if (now.running) return;
    if (finished(now)) restart(sequence);
    change({ running: true });
    const mine = round;
    while (now.running && mine === round && !finished(now)) {
      const wait = delay();
      if (!(await advance(wait > 0))) break;
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    }
    if (mine === round) change({ running: false });
  }

  // Begin again if the model has changed, because the tokens so far are from the previous model.
  let { model } = training.view.get();
  training.view.watch((next) => {
    if (next.model !== model && now.prompt) restart(sequence);
    model = next.model;
  });

  return {
    ...{ view, run, restart },
    pause: (): void => change({ running: false }),
    /** Generates one token. */
    tick: async (): Promise<void> => void (await advance(true)),
  };
}
