// The types of the story: a scene, and the stage that gives a scene its words, numbers and workers.

import type { AttendInput, Attended } from '../attention/attend.js';
import type { ForwardInput, ForwardResult } from '../attention/messages.js';
import type { TrainingSession } from '../training/session.js';
import type { Peeked } from '../training/peek.js';
import type { Values, Words } from './language.js';

export const sceneIds = ['compromise', 'score', 'temperature', 'heads', 'split', 'mask', 'jobs', 'cache'] as const;
export type SceneId = (typeof sceneIds)[number];

/** The workers' calls that scenes make. They start on first use. */
export interface Engine {
  attend(input: AttendInput): Promise<Attended>;
  forward(input: ForwardInput): Promise<ForwardResult>;
  /** Trains the models of the scene about the mask; `fresh` begins anew. */
  peek(steps: number, fresh: boolean): Promise<Peeked>;
  readonly training: TrainingSession;
}

/** Numbers that the visitor has chosen, which the address keeps. */
export interface Choices {
  /** The number of this name if it is one from `least` to `most`, else `otherwise`. */
  number(name: string, otherwise: number, least: number, most: number): number;
  set(name: string, value: number): void;
}

export interface Stage {
  readonly words: Words;
  readonly engine: Engine;
  readonly choices: Choices;
  /**
   * Shows the text `live` as the sentence with the numbers. `after` has the values of the sentence that ends the scene; null hides that
   * sentence.
   */
  say(live: string, values?: Values, after?: Values | null): void;
  /** Runs a call of the engine and then `show`; shows a failure in the place of the numbers. Only the latest call counts. */
  ask<T>(call: () => Promise<T>, show: (answer: T) => void): void;
}

export interface Scene {
  readonly figure: Element;
  /** The sliders and buttons for the visitor, with a line that says how to use them. */
  readonly controls: HTMLElement;
  /** Programs that compute the numbers of the scene. */
  programs?(): readonly string[];
  /** The address, from '#' on, at which the whole page shows these numbers; undefined if it does not. */
  readonly onPage?: string;
  /** Starts the scene's training, as its button does. The handout calls it, to show the results. */
  start?(): void;
}

export type MakeScene = (stage: Stage) => Scene;
