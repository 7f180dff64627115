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
  /** The texts of the folder by their paths, config.json among them. */
  readonly texts: ReadonlyMap<string, string>;
  /** What SigLIP's texts are padded with. */
  readonly padding: { readonly token: string | undefined; readonly id: number };
  /** preprocessor_config.json of a model with pixels, if the folder has it. */
  readonly preprocessor: string | undefined;
  /** Paths of the folder with the transformer, and of those of Dense modules, with a slash at the end unless empty. */
  readonly base: string;
  readonly dense: readonly string[];
  /** True if texts become lower case before they are embedded. */
  readonly lowerCase: boolean;
  /** Undefined for a model that generates no text. */
  readonly generator: typeof import('./generator.js') | undefined;
}
