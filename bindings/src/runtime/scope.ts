// Scopes dispose the resources that were made inside, except the returned ones.
//
// A scope whose function returned a promise stays open until the promise settles. While several scopes are open,
// JavaScript cannot tell to which scope a continuation belongs: a new resource always goes to the innermost frame,
// which may be the wrong scope. A scope that was opened while an older one waits, and that itself waits, therefore
// disposes only resources that are certainly its own: those made before its first await. The older scope disposes the
// rest, and the caller owns the resources that the older scope returns.

import type { Scope } from '../types/index.js';
import { disposedError } from './errors.js';

interface Resource {
  /** Reading this throws `E_OPTION` on a proxy of an object of this package. */
  readonly disposed?: unknown;
  dispose(): void;
}

const none: ReadonlySet<Resource> = new Set();

interface Frame {
  readonly made: Set<Resource>;
  /** True if the scope was opened while an older scope waited. It may be nested in that scope, or independent of it. */
  readonly doubtful: boolean;
  /** Resources made before the scope began to wait, which are certainly its own; undefined until then. */
  certain: ReadonlySet<Resource> | undefined;
}

export class ScopeStack {
  readonly #frames: Frame[] = [];

  /** Adds a resource to the innermost open scope, if there is one. */
  track<R extends Resource>(resource: R): R {
    this.#frames.at(-1)?.made.add(resource);
    return resource;
  }

  #push(): Frame {
    const doubtful = this.#frames.at(-1)?.certain !== undefined;
    const frame: Frame = { made: new Set(), doubtful, certain: undefined };
    this.#frames.push(frame);
    return frame;
  }

  /** Opens a scope that lasts until it is disposed, or until the scope around it ends. */
  open(): Scope {
    const outer = this.#frames.at(-1);
    const frame = this.#push();
    let disposed = false;
    const dispose = (): void => {
      if (disposed) return;
      disposed = true;
      this.#end(frame, none);
    };
    const keep = <T>(value: T): T => {
      const kept = new Set(resourcesIn(value));
      if (disposed) throw disposedError('scope', 'a scope');
      this.#pass(frame, kept);
      return value;
    };
    const scope: Scope = Object.freeze({
      get disposed() {
        return disposed;
      },
      keep,
      dispose,
      [Symbol.dispose]: dispose,
    });
    outer?.made.add(scope);
    return scope;
  }

  run<T>(fn: () => T): T {
    const frame = this.#push();
    let result: T;
    let waits: boolean;
    try {
      result = fn();
      waits = isPromiseLike(result);
    } catch (error) {
      this.#close(frame, undefined);
      throw error;
    }
    if (!waits) {
      this.#close(frame, result);
      return result;
    }
    frame.certain = new Set(frame.made);
    const settled = Promise.resolve(result).then(
      (value: unknown) => {
        this.#close(frame, value);
        return value;
      },
      (error: unknown) => {
        this.#close(frame, undefined);
        throw error;
      },
    );
    return settled as T;
  }

  /** Ends a scope. If reading the result throws, disposes everything and rethrows the error. */
  #close(frame: Frame, result: unknown): void {
    let kept: ReadonlySet<Resource> = none;
    try {
      kept = new Set(resourcesIn(result));
    } finally {
      this.#end(frame, kept);
    }
  }

  /**
   * Gives resources of a frame to the older scope, or to the caller. Returns the older scope if the frame may be
   * independent of it.
   */
  #pass(frame: Frame, kept: ReadonlySet<Resource>): Frame | undefined {
    const depth = this.#frames.indexOf(frame);
    const older = this.#frames[depth - 1];
    const independent = older !== undefined && frame.doubtful && frame.certain !== undefined;
    for (const resource of kept) {
      // A younger open scope may hold the resource instead of this one.
      const holders = this.#frames.slice(depth).filter(({ made }) => made.delete(resource));
      if (holders.length > 0 && !independent) older?.made.add(resource);
    }
    return independent ? older : undefined;
  }

  /** Removes the frame. The older scope, or the caller, gets `kept`; the rest is disposed. */
  #end(frame: Frame, kept: ReadonlySet<Resource>): void {
    const older = this.#pass(frame, kept);
    this.#frames.splice(this.#frames.indexOf(frame), 1);
    for (const resource of frame.made) {
      if (older !== undefined && !frame.certain?.has(resource)) older.made.add(resource);
      else resource.dispose();
    }
  }
}

const isPromiseLike = (value: unknown): value is PromiseLike<unknown> =>
  typeof value === 'object' && value !== null && 'then' in value && typeof value.then === 'function';

/** Collects the resources in a result: itself, or the values of an array or plain object, and of arrays in it. */
function returned(result: unknown): Resource[] {
  if (typeof result !== 'object' || result === null) return [];
  if (isResource(result)) return [result];
  const prototype: unknown = Object.getPrototypeOf(result);
  const plain = prototype === Object.prototype || prototype === null;
  if (!plain && !Array.isArray(result)) return [];
  // Object.values() skips holes. flat() would visit 2³² holes of a sparse array, and every index below a proxy's
  // length.
  const inner = (each: unknown) => (Array.isArray(each) ? Object.values<unknown>(each) : [each]);
  return Object.values(result).flatMap(inner).filter(isResource);
}

/** Like returned(). Throws `E_OPTION` for a proxy of a tensor, because the scope would not recognize its tensor. */
function resourcesIn(result: unknown): Resource[] {
  const found = returned(result);
  for (const resource of found) void resource.disposed;
  return found;
}

const isResource = (value: unknown): value is Resource => typeof value === 'object' && value !== null && 'dispose' in value;
