// Scopes: what is made inside is disposed at the end, unless it is returned.
//
// A scope that waits for a promise stays open, and JavaScript cannot say which of several open
// ones a continuation belongs to. So when one was opened while an older one was waiting, doubts
// are settled on the late side: what it may not have made itself is left to the older one, and
// what it returns to the caller.

interface Resource {
  /** That of our objects throws `E_OPTION` on a proxy of one. */
  readonly disposed?: unknown;
  dispose(): void;
}

interface Frame {
  readonly made: Set<Resource>;
  /** Opened while an older scope was waiting: perhaps inside of that, perhaps beside it. */
  readonly doubtful: boolean;
  /** Once it waits: what was made before the first await, and so in this scope for certain. */
  certain: ReadonlySet<Resource> | undefined;
}

export class ScopeStack {
  readonly #frames: Frame[] = [];

  /** Puts something into the innermost open scope. */
  track<R extends Resource>(resource: R): R {
    this.#frames.at(-1)?.made.add(resource);
    return resource;
  }

  run<T>(fn: () => T): T {
    const doubtful = this.#frames.at(-1)?.certain !== undefined;
    const frame: Frame = { made: new Set(), doubtful, certain: undefined };
    this.#frames.push(frame);
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

  /** A result that throws as it is looked at is passed on as an error, and nothing is kept. */
  #close(frame: Frame, result: unknown): void {
    let kept: readonly Resource[] = [];
    try {
      kept = returned(result);
      // Behind a proxy a tensor is not known, and would be disposed: an error says so.
      for (const resource of kept) void resource.disposed;
    } catch (error) {
      kept = [];
      throw error;
    } finally {
      this.#end(frame, new Set(kept));
    }
  }

  #end(frame: Frame, kept: ReadonlySet<Resource>): void {
    const depth = this.#frames.indexOf(frame);
    const older = this.#frames[depth - 1];
    const beside = older !== undefined && frame.doubtful && frame.certain !== undefined;

    for (const resource of kept) {
      // A younger scope may have counted it as its own.
      const holders = this.#frames.slice(depth).filter(({ made }) => made.delete(resource));
      if (holders.length > 0 && !beside) older?.made.add(resource);
    }
    this.#frames.splice(depth, 1);
    for (const resource of frame.made) {
      if (beside && !frame.certain?.has(resource)) older.made.add(resource);
      else resource.dispose();
    }
  }
}

function isPromiseLike(value: unknown): value is PromiseLike<unknown> {
  return (
    typeof value === 'object' &&
    value !== null &&
    'then' in value &&
    typeof value.then === 'function'
  );
}

/** The resources in a result: itself, or the values of an array or plain object, and of arrays in that. */
function returned(result: unknown): Resource[] {
  if (typeof result !== 'object' || result === null) return [];
  if (isResource(result)) return [result];
  if (Array.isArray(result)) return result.flat().filter(isResource);
  const prototype: unknown = Object.getPrototypeOf(result);
  const plain = prototype === Object.prototype || prototype === null;
  return plain ? Object.values(result).flat().filter(isResource) : [];
}

function isResource(value: unknown): value is Resource {
  return typeof value === 'object' && value !== null && 'dispose' in value;
}
