// After a trap, C++ objects remain in the state in the middle of a call, so the instance is dead. dispose() ends an
// instance too, and drops all references to it, so that the engine can free its memory.

import type { Int32, Uint32 } from '../types/wire.js';
import { disposedError, MultiheadError } from './errors.js';
import type { RawModule } from './raw.js';

/** A module whose calls all throw `E_FATAL` once one of them has trapped, and `E_DISPOSED` after dispose(). */
export interface GuardedModule extends RawModule {
  /** Throws `E_FATAL` or `E_DISPOSED` once the instance is dead. */
  assertAlive(): void;
  /** True after a trap and after dispose(). */
  readonly dead: boolean;
  readonly disposed: boolean;
  dispose(): void;
}

type RawCall = (...args: unknown[]) => unknown;

/** `onDeath` is called after a trap and after dispose(). */
export function guardModule(given: RawModule, onDeath: () => void): GuardedModule {
  let raw: RawModule | undefined = given;
  let death: (() => MultiheadError) | undefined;
  const methods: (RawCall | undefined)[] = [];

  const fatal = (cause: unknown): MultiheadError =>
    new MultiheadError('E_FATAL', {
      argument: 'multihead',
      expected: 'an instance that works',
      got: `one that ended with ${String(cause)}`,
      message:
        `multihead: this instance is dead since a call ended with "${String(cause)}"; ` +
        'its tensors, layers and caches are lost, and load() gives a new instance',
      cause,
    });
  const disposed = (): MultiheadError => disposedError('multihead', 'an instance', 'a disposed one; load() gives a new instance');
  const assertAlive = (): void => {
    if (death !== undefined) throw death();
  };
  const end = (error: () => MultiheadError): void => {
    death = error;
    onDeath();
  };
  const died = (cause: unknown): MultiheadError => {
    end(() => fatal(cause));
    return fatal(cause);
  };
  const guarded = {
    assertAlive,
    get dead() {
      return death !== undefined;
    },
    get disposed() {
      return raw === undefined;
    },
    dispose() {
      raw = undefined;
      methods.length = 0;
      end(disposed);
    },
    get HEAPU8() {
      if (raw === undefined) throw disposed();
      return raw.HEAPU8;
    },
    /**
     * Written out instead of made by the loop below: a call takes less than a microsecond, and the glue replaces the
     * function at its first call.
     */
    _multihead_run: (handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32): Int32 => {
      assertAlive();
      try {
        return (raw as RawModule)._multihead_run(handle, q, k, v, out, lse);
      } catch (cause) {
        throw died(cause);
      }
    },
  } satisfies Partial<GuardedModule>;
  for (const [name, method] of Object.entries(given) as [string, unknown][]) {
    if (typeof method !== 'function' || name in guarded) continue;
    const at = methods.push(method as RawCall) - 1;
    Object.defineProperty(guarded, name, {
      value: (...args: unknown[]): unknown => {
        assertAlive();
        try {
          return (methods[at] as RawCall)(...args);
        } catch (cause) {
          throw died(cause);
        }
      },
    });
  }
  // V8 finds the many properties of this object faster if it is a prototype.
  return Object.create(guarded) as GuardedModule;
}
