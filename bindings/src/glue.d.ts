// Emscripten's glue, the same for all builds; build.mjs writes it next to the compiled modules.
import type { RawModule } from './raw.js';

/** Functions that the glue's caller can replace. */
export interface ModuleOverrides {
  /** Called by the core in team calls; see team.ts. */
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
