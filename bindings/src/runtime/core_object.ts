// Base class of caches, prepared operations and modules: they live in the core, and JavaScript holds a handle.

import type { Int32 } from '../types/wire.js';
import { disposedError, optionError } from './errors.js';
import type { Heap, CleanupRecord } from './memory.js';
import type { Runtime } from './operands.js';
import { nameObject } from './tensor.js';

/** Name of a disposed object in error messages. */
export interface ObjectName {
  /** Name of the argument, for example "cache". */
  readonly argument: string;
  /** Noun in sentences, for example "a cache". */
  readonly noun: string;
}

/** True for an object of this class itself, not for a proxy of one. */
export let isCoreObject: (value: unknown) => value is CoreObject;

/**
 * No function created in a constructor of a derived class may reference `this`. In V8, all functions of one scope keep
 * alive everything that any of them references, so the cleanup record would keep its owner alive.
 */
export abstract class CoreObject {
  static {
    isCoreObject = (value): value is CoreObject => typeof value === 'object' && value !== null && #handle in value;
  }

  /** Vue's marker (set by markRaw()) that makes ref() and reactive() store the object itself instead of a proxy. */
  get __v_skip(): true {
    return true;
  }

  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #handle: Int32;
  readonly #name: ObjectName;
  readonly #cleanup: CleanupRecord;
  #disposed = false;

  constructor(runtime: Runtime, handle: Int32, name: ObjectName, cleanup: CleanupRecord) {
    this.#runtime = runtime;
    this.#handle = handle;
    this.#name = name;
    this.#cleanup = cleanup;
    nameObject(this, name.noun);
    runtime.heap.adopt(this, cleanup);
  }

  get disposed(): boolean {
    checkNoProxy(this);
    return this.#disposed || this.#runtime.raw.disposed;
  }

  dispose(): void {
    if (this.disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#cleanup);
  }

  protected get runtime(): Runtime {
    checkNoProxy(this);
    return this.#runtime;
  }

  /** Throws `E_DISPOSED`. */
  get handle(): Int32 {
    this.assertLive();
    return this.#handle;
  }

  /** True if the load() with this memory made the object. */
  livesIn(heap: Heap): boolean {
    return this.runtime.heap === heap;
  }

  /** Throws `E_FATAL`, `E_DISPOSED`. */
  assertLive(): void {
    checkNoProxy(this);
    this.#runtime.raw.assertAlive();
    if (!this.#disposed) return;
    throw disposedError(this.#name.argument, this.#name.noun);
  }
}

/** Throws `E_OPTION` for a proxy, which lacks the private members of its target. */
function checkNoProxy(self: unknown): void {
  if (isCoreObject(self)) return;
  throw optionError('this', 'the object that was made', 'a proxy of it (in Vue: toRaw() or markRaw())');
}
