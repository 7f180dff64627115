// What layers, blocks and stacks have in common: the handle of a module of the core, and its parameters.

import { CoreObject, type ObjectName } from './core_object.js';
import { MultiheadError } from './errors.js';
import { WasmLayerCache } from './layer_cache.js';
import { bytesPerElement } from './memory.js';
import { call, type Operands, type Runtime } from './operands.js';
import { pushStateDict, takeStateDict } from './state_dict.js';
import type { LayerCacheConfig, PlainTensor } from './types.js';

/** The core's calls for modules of one kind. */
export interface ModuleDoor extends ObjectName {
  /** Reads the configuration from the block. Gives a handle above 0, or minus a CallStatus. */
  create(): number;
  release(handle: number): void;
  /** Takes the parameters that were pushed. Gives a CallStatus. */
  load(handle: number, names: number): number;
  /** Lists the parameters. Gives a CallStatus. */
  state(handle: number): number;
  /** As create(), for a cache. */
  createCache(handle: number): number;
}

export abstract class CoreModule extends CoreObject {
  readonly #door: ModuleDoor;
  /** The bytes of the parameters. The holding, which must not refer to the module, has the same object. */
  readonly #memory: { bytes: number };
  #loaded = false;

  /** `write` writes the configuration into the block. */
  constructor(runtime: Runtime, write: (operands: Operands) => void, door: ModuleDoor) {
    const { heap } = runtime;
    const handle = call(runtime, (operands) => {
      write(operands);
      return operands.make(() => door.create());
    });
    const memory = { bytes: 0 };
    super(runtime, handle, door, {
      what: () => `${door.noun} of ${memory.bytes} bytes`,
      free() {
        door.release(handle);
        heap.count(-memory.bytes);
      },
    });
    this.#door = door;
    this.#memory = memory;
  }

  stateDict(): Record<string, PlainTensor> {
    this.ready();
    return call(this.runtime, (operands) => {
      operands.run(() => this.#door.state(this.handle));
      return takeStateDict(this.runtime);
    });
  }

  createCache(config: LayerCacheConfig): WasmLayerCache {
    const { runtime } = this;
    this.assertLive();
    const make = (): number => this.#door.createCache(this.handle);
    return runtime.scopes.track(new WasmLayerCache(runtime, make, config));
  }

  /** Throws `E_DISPOSED`, or `E_OPTION` if no parameters have been loaded. */
  protected ready(): void {
    this.assertLive();
    if (this.#loaded) return;
    throw new MultiheadError('E_OPTION', {
      argument: this.#door.argument,
      expected: `${this.#door.noun} with parameters: call loadStateDict() first`,
      got: 'one without',
    });
  }

  /** `names` is a ParameterNames, which layers ignore. */
  protected load(dict: unknown, names = 0): void {
    const { runtime } = this;
    this.assertLive();
    call(runtime, (operands) => {
      const bytes = pushStateDict(runtime, dict, operands) * bytesPerElement('f32');
      operands.run(() => this.#door.load(this.handle, names));
      runtime.heap.count(bytes - this.#memory.bytes);
      this.#memory.bytes = bytes;
      this.#loaded = true;
    });
  }
}
