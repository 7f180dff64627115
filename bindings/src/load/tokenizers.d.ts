// In place of the declarations of @huggingface/tokenizers, an optional peer dependency: their imports lack the file
// extensions that this project's module resolution asks for.

import type { TextTokenizer } from '../types/models.js';

export const Tokenizer: new (json: object, config: object) => TextTokenizer;
