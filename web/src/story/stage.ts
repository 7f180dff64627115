// What a scene of the story is made of and made with.

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
  /** Shows the sentence under the figure, and fills in the one that ends the scene; null hides that. */
  say(live: string, values?: Values, after?: Values | null): void;
  /** Runs a call of the engine and then `show`; shows a failure in the place of the numbers. Only the latest call counts. */
  ask<T>(call: () => Promise<T>, show: (answer: T) => void): void;
}

export interface Scene {
  readonly figure: HTMLElement;
  /** What to do with the hand. */
  readonly controls: HTMLElement;
  /** Programs that compute the numbers of the scene. */
  programs?(): readonly string[];
  /** Where the whole page shows these numbers, if it does. */
  readonly onPage?: string;
  /** Trains what the scene trains, as its button does: the handout shows the results. */
  start?(): void;
}

export type MakeScene = (stage: Stage) => Scene;
