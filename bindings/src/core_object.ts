// What caches, prepared operations and modules have in common: they live in the core, and JavaScript has a handle.

import type { Int32 } from './arguments.js';
import { MultiheadError } from './errors.js';
import type { Heap, Holding } from './memory.js';
import type { Runtime } from './operands.js';

/** How errors name an object that is disposed. */
export interface ObjectName {
  /** As an argument: "cache". */
  readonly argument: string;
  /** In sentences: "a cache". */
  readonly noun: string;
}

/** Without running any code of the value's. */
export let isCoreObject: (value: unknown) => value is CoreObject;

/**
 * No function made in a constructor of a derived class may refer to `this`. In V8 the functions of
 * one scope keep alive all that any of them refers to, so the holding would keep its owner alive.
 */
export abstract class CoreObject {
  static {
    isCoreObject = (value): value is CoreObject =>
      typeof value === 'object' && value !== null && #handle in value;
  }

  /** As Vue's markRaw() sets it, so that ref() and reactive() hold the object itself and no proxy of it. */
  get __v_skip(): true {
    return true;
  }

  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #handle: Int32;
  readonly #name: ObjectName;
  readonly #holding: Holding;
  #disposed = false;

  constructor(runtime: Runtime, handle: Int32, name: ObjectName, holding: Holding) {
    this.#runtime = runtime;
    this.#handle = handle;
    this.#name = name;
    this.#holding = holding;
    runtime.heap.adopt(this, holding);
  }

  get disposed(): boolean {
    checkNoProxy(this);
    return this.#disposed;
  }

  dispose(): void {
    checkNoProxy(this);
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#holding);
  }

  protected get runtime(): Runtime {
    checkNoProxy(this);
    return this.#runtime;
  }

  /** Throws `E_DISPOSED`. Ask for it only where the call is made: code of the caller's may dispose the object before. */
  get handle(): Int32 {
    this.assertLive();
    return this.#handle;
  }

  /** Whether it was made by the load() whose memory this is. */
  livesIn(heap: Heap): boolean {
    return this.runtime.heap === heap;
  }

  /** Throws `E_FATAL`, `E_DISPOSED`. */
  assertLive(): void {
    checkNoProxy(this);
    this.#runtime.raw.assertAlive();
    if (!this.#disposed) return;
    throw new MultiheadError('E_DISPOSED', {
      argument: this.#name.argument,
      expected: `${this.#name.noun} that is not disposed`,
      got: 'a disposed one',
    });
  }
}

/** Throws `E_OPTION` for a proxy, which has none of its target's private members. */
function checkNoProxy(self: unknown): void {
  if (isCoreObject(self)) return;
  throw new MultiheadError('E_OPTION', {
    argument: 'this',
    expected: 'the object that was made',
    got: 'a proxy of it (in Vue: toRaw() or markRaw())',
  });
}
