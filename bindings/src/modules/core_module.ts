// Base class of modules, blocks and transformers: a handle to a module in the core, and its parameters.

import { WasmModuleCache } from '../cache/module_cache.js';
import type { ModuleKind, ParameterNames } from '../generated/tables.js';
import { CoreObject, type ObjectName } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import { bytesPerElement, SharedParameters } from '../runtime/memory.js';
import { call, type Operands, type Runtime } from '../runtime/operands.js';
import type { ModuleCacheConfig, PlainTensor } from '../types/index.js';
import type { Int32 } from '../types/wire.js';
import { loadStateDict, takeStateDict } from './state_dict.js';

/** A kind of module, and how errors name it. */
export interface ModuleName extends ObjectName {
  readonly kind: ModuleKind;
  /** Ways to set the parameters, for error messages. */
  readonly filling: string;
}

/** A module owned by another object: its handle, which the owner frees, and its parameters. */
export interface BorrowedModule {
  readonly handle: Int32;
  readonly parameters: SharedParameters;
}

export abstract class CoreModule extends CoreObject {
  readonly #name: ModuleName;
  /**
   * Shared with the cleanup record that the finalizer gets. That record must not reference the module, or the module
   * would never be collected.
   */
  readonly #memory: { parameters?: SharedParameters };
  /** Naming scheme with which the parameters were loaded. */
  #names: ParameterNames = 0;

  /** Calls `write` to write the configuration into the block, and creates the module unless it is borrowed. */
  constructor(runtime: Runtime, write: (operands: Operands) => void, name: ModuleName, borrowed?: BorrowedModule) {
    const { raw } = runtime;
    const handle = call(runtime, (operands) => {
      write(operands);
      return borrowed?.handle ?? operands.make((raw) => raw.moduleCreate(name.kind));
    });
    const memory: { parameters?: SharedParameters } = {};
    super(runtime, handle, name, {
      what: () => `${name.noun} of ${memory.parameters?.bytes ?? 0} bytes`,
      free() {
        if (borrowed === undefined) raw.moduleRelease(handle);
        memory.parameters?.leave();
      },
    });
    this.#name = name;
    this.#memory = memory;
    if (borrowed !== undefined) memory.parameters = borrowed.parameters.join();
  }

  stateDict(): Record<string, PlainTensor> {
    this.ready();
    return this.#state(0);
  }

  /**
   * Gives this instance all parameters, which gradients need. In a team, a member stores only its share until then.
   * Throws `E_OPTION`, `E_MEMORY`.
   */
  takeAll(): void {
    this.ready();
    const all = this.#state(1);
    if (Object.keys(all).length > 0) this.load(all, this.#names, 1);
  }

  #state(sharesAlone: 0 | 1): Record<string, PlainTensor> {
    return call(this.runtime, (operands) => {
      operands.run((raw) => raw.moduleState(this.handle, sharesAlone));
      return takeStateDict(this.runtime);
    });
  }

  createCache(config: ModuleCacheConfig): WasmModuleCache {
    const { runtime } = this;
    this.assertLive();
    const make = (): Int32 => runtime.raw.moduleCacheCreate(this.handle);
    return runtime.scopes.track(new WasmModuleCache(runtime, make, config));
  }

  /** Throws `E_DISPOSED`, or `E_OPTION` if it has no parameters yet. */
  get parameters(): SharedParameters {
    this.assertLive();
    const { parameters } = this.#memory;
    if (parameters !== undefined) return parameters;
    const { argument, noun, filling } = this.#name;
    throw optionError(argument, `${noun} with parameters: call ${filling} first`, 'one without');
  }

  /** Throws `E_DISPOSED`, or `E_OPTION` if it has no parameters yet. */
  protected ready(): void {
    void this.parameters;
  }

  /** `names` is the naming scheme; attention modules ignore it. */
  protected load(dict: unknown, names: ParameterNames = 0, whole: 0 | 1 = 0): void {
    const { runtime } = this;
    this.assertLive();
    call(runtime, (operands) => {
      loadStateDict(runtime, dict, operands, () => runtime.raw.moduleLoad(this.handle, names, whole));
      this.replaced(names);
    });
  }

  /** Call this after the core replaced the parameters: updates the naming scheme and the memory count. */
  protected replaced(names: ParameterNames): void {
    const { heap, raw } = this.runtime;
    this.#names = names;
    this.#memory.parameters?.leave();
    const bytes = raw.moduleParameters(this.handle) * bytesPerElement('f32');
    this.#memory.parameters = new SharedParameters(heap, bytes).join();
  }
}
