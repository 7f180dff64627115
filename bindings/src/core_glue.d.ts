// Emscripten's glue for the two builds of multihead/core; build.mjs writes it next to the compiled modules.
export { default } from './glue.js';
