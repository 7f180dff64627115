// Emscripten's glue for the simd128 build; build.mjs puts it beside the compiled modules.
import type { ModuleFactory } from './raw.js';

declare const factory: ModuleFactory;
export default factory;
