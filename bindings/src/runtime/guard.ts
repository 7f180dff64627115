// After a trap, C++ objects remain in the state in the middle of a call, so the instance is dead.

import type { Int32, Uint32 } from '../types/wire.js';
import { MultiheadError } from './errors.js';
import type { RawModule } from './raw.js';

/** A module whose calls all throw `E_FATAL` once one of them has trapped. */
export interface GuardedModule extends RawModule {
  /** Throws `E_FATAL` once the instance is dead. */
  assertAlive(): void;
  readonly dead: boolean;
}

type RawCall = (...args: unknown[]) => unknown;

/** `onDeath` is called once. */
export function guardModule(raw: RawModule, onDeath: () => void): GuardedModule {
  let death: { readonly cause: unknown } | undefined;

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
  const assertAlive = (): void => {
    if (death !== undefined) throw fatal(death.cause);
  };
  const died = (cause: unknown): MultiheadError => {
    death = { cause };
    onDeath();
    return fatal(cause);
  };
  const guarded = {
    assertAlive,
    get dead() {
      return death !== undefined;
    },
    get HEAPU8() {
      return raw.HEAPU8;
    },
    /**
     * Written out instead of made by the loop below: a call takes less than a microsecond, and the glue replaces the
     * function at its first call.
     */
    _multihead_run: (
      handle: Int32,
      q: Uint32,
      k: Uint32,
      v: Uint32,
      out: Uint32,
      lse: Uint32,
    ): Int32 => {
      assertAlive();
      try {
        return raw._multihead_run(handle, q, k, v, out, lse);
      } catch (cause) {
        throw died(cause);
      }
    },
    /** Written out, because the loop below passes only three parameters. */
    _multihead_run_backward: (...given: Parameters<RawModule['_multihead_run_backward']>): Int32 => {
      assertAlive();
      try {
        return raw._multihead_run_backward(...given);
      } catch (cause) {
        throw died(cause);
      }
    },
  } satisfies Partial<GuardedModule>;
  for (const [name, method] of Object.entries(raw) as [string, unknown][]) {
    if (typeof method !== 'function' || name in guarded) continue;
    const call = method as RawCall;
    Object.defineProperty(guarded, name, {
      // No other function has more parameters. A rest parameter would make an array for each call.
      value: (a?: unknown, b?: unknown, c?: unknown): unknown => {
        assertAlive();
        try {
          return call(a, b, c);
        } catch (cause) {
          throw died(cause);
        }
      },
    });
  }
  return guarded as unknown as GuardedModule;
}
