// Exports of multihead and multihead/inline in addition to load().

export { MultiheadError } from '../runtime/errors.js';
export { preferredBuild } from '../load/features.js';
export { readSafetensors } from '../safetensors/read.js';
export { openSafetensors } from '../safetensors/open.js';
export { gpt2Config } from '../modules/gpt2_config.js';
export { writeSafetensors } from '../safetensors/write.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from '../runtime/errors.js';
export type * from '../types/index.js';
