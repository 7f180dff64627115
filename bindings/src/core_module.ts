// What layers, blocks and stacks have in common: a module of the core by a handle, and its parameters.

import { MultiheadError } from './errors.js';
import { bytesPerElement, type Holding } from './memory.js';
import { call, type Runtime } from './operands.js';
import { pushStateDict, takeStateDict } from './state_dict.js';
import type { PlainTensor } from './types.js';

/** The core's calls for modules of one kind. Those with a status take the parameters pushed, or list them. */
export interface ModuleDoor {
  /** The call that makes them, for errors: "transformer". */
  readonly made: string;
  /** "a layer", in sentences. */
  readonly noun: string;
  release(handle: number): void;
  load(handle: number, names: number): number;
  state(handle: number): number;
}

export class CoreModule {
  readonly #runtime: Runtime;
  readonly #owner: object;
  readonly #door: ModuleDoor;
  readonly #handle: number;
  readonly #holding: Holding;
  /** Of the parameters; shared with #holding, which must not refer to the owner. */
  readonly #memory = { bytes: 0 };
  #loaded = false;
  #disposed = false;

  /** `handle` is above 0, and `owner` what the caller of the package holds. */
  constructor(runtime: Runtime, owner: object, handle: number, door: ModuleDoor) {
    this.#runtime = runtime;
    this.#owner = owner;
    this.#door = door;
    this.#handle = handle;
    const { heap } = runtime;
    const memory = this.#memory;
    this.#holding = {
      what: () => `${door.noun} of ${memory.bytes} bytes`,
      free() {
        door.release(handle);
        heap.count(-memory.bytes);
      },
    };
    heap.adopt(owner, this.#holding);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this.#owner, this.#holding);
  }

  /** The handle; throws `E_DISPOSED`. */
  live(): number {
    if (!this.#disposed) return this.#handle;
    throw new MultiheadError('E_DISPOSED', {
      argument: this.#door.made,
      expected: `${this.#door.noun} that is not disposed`,
      got: 'a disposed one',
    });
  }

  /** The handle of one that has parameters; throws `E_DISPOSED`, `E_OPTION`. */
  ready(): number {
    const handle = this.live();
    if (this.#loaded) return handle;
    throw new MultiheadError('E_OPTION', {
      argument: this.#door.made,
      expected: `${this.#door.noun} with parameters: call loadStateDict() first`,
      got: 'one without',
    });
  }

  /** `names` is the number of multihead::ParameterNames, where the core asks for one. */
  loadStateDict(dict: unknown, names = 0): void {
    const handle = this.live();
    const runtime = this.#runtime;
    call(runtime, (operands) => {
      const bytes = pushStateDict(runtime, dict, operands) * bytesPerElement('f32');
      operands.check(this.#door.load(handle, names));
      runtime.heap.count(bytes - this.#memory.bytes);
      this.#memory.bytes = bytes;
      this.#loaded = true;
    });
  }

  stateDict(): Record<string, PlainTensor> {
    const handle = this.ready();
    return call(this.#runtime, (operands) => {
      operands.check(this.#door.state(handle));
      return takeStateDict(this.#runtime);
    });
  }
}
