// Emscripten's glue for the two builds of multihead/core; build.mjs puts it beside the compiled modules.
export { default } from './glue.js';
