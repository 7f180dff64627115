// What generates: loaded with models that can.

export { generate } from './generate.js';
export { makePrefix } from './prefix.js';
export { Group, mostTogether } from './together.js';
