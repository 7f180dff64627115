// What every entry point exports besides load().

export { MultiheadError } from './errors.js';
export { preferredBuild } from './features.js';
export { readSafetensors } from './read_safetensors.js';
export { gpt2Config } from './transformer_config.js';
export { writeSafetensors } from './write_safetensors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type * from './types.js';
