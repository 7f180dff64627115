// What every entry point that has createPool() exports besides.

export { MultiheadError } from './errors.js';
export type { MultiheadErrorCode, MultiheadErrorParts } from './errors.js';
export type * from './pool_types.js';
