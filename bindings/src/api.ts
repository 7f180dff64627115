// Exports that every entry point has in addition to load().

export { MultiheadError } from './errors.js';
export { preferredBuild } from './features.js';
export { readSafetensors } from './read_safetensors.js';
export { gpt2Config } from './transformer_config.js';
export { writeSafetensors } from './write_safetensors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type * from './types.js';
