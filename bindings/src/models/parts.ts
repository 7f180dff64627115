// What a model has besides the core.

import type { ChatMessage, TextTokenizer } from '../types/models.js';
import type { Settings } from './config.js';

/** What openModel() knows of a model besides the core. */
export interface ModelParts {
  readonly findTokenizer: () => Promise<TextTokenizer>;
  /** The text of messages. */
  readonly renderChat: (messages: readonly ChatMessage[]) => Promise<string>;
  /** Names of the classes. */
  readonly labelsOf: (count: number) => readonly string[];
  /** Of config_sentence_transformers.json. */
  readonly prompts: Settings;
  /** True if texts become lower case before they are embedded. */
  readonly lowerCase: boolean;
}
