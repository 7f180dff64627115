// Emscripten's glue, the same for all builds; build.mjs puts it beside the compiled modules.
import type { RawModule } from './raw.js';

/** What it lets its caller replace. */
export interface ModuleOverrides {
  /** Called by the core in calls of a team; see team.ts. */
  exchange?(data: number, rows: number, stride: number, bounds: number): number;
  /** Called by the core while a module loads its parameters; see state_dict.ts. */
  readParameter?: ((key: number, first: number, count: number, address: number) => number) | undefined;
  instantiateWasm(
    imports: WebAssembly.Imports,
    receive: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void,
  ): object;
}

declare const createGlue: (overrides: ModuleOverrides) => Promise<RawModule>;
export default createGlue;
