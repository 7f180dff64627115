// What layers, blocks and stacks have in common: a module of the core by a handle, and its parameters.

import { CoreObject, type ObjectName } from './core_object.js';
import { MultiheadError } from './errors.js';
import { WasmLayerCache } from './layer_cache.js';
import { bytesPerElement } from './memory.js';
import { call, type Operands, type Runtime } from './operands.js';
import { pushStateDict, takeStateDict } from './state_dict.js';
import type { LayerCacheConfig, PlainTensor } from './types.js';

/** The core's calls for modules of one kind. Those with a status take the parameters pushed, or list them. */
export interface ModuleDoor extends ObjectName {
  /** Takes the configuration. A handle above 0, or minus a status code, as createCache(). */
  create(): number;
  release(handle: number): void;
  load(handle: number, names: number): number;
  state(handle: number): number;
  createCache(handle: number): number;
}

export abstract class CoreModule extends CoreObject {
  readonly #door: ModuleDoor;
  /** Of the parameters; shared with the holding. */
  readonly #memory: { bytes: number };
  #loaded = false;

  /** `write` gives the core the configuration. */
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

  /** Throws `E_DISPOSED`, and `E_OPTION` where it has no parameters. */
  protected ready(): void {
    this.assertLive();
    if (this.#loaded) return;
    throw new MultiheadError('E_OPTION', {
      argument: this.#door.argument,
      expected: `${this.#door.noun} with parameters: call loadStateDict() first`,
      got: 'one without',
    });
  }

  /** `names` is the number of multihead::ParameterNames, where the core asks for one. */
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
