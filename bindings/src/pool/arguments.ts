// Converts the arguments of a pool's call to messages, and holds the handles of objects that live in workers.

import { checkSignal } from '../runtime/abort.js';
import { onJavaScriptHeap } from '../runtime/memory.js';
import { checkCallback, checkFlag } from '../runtime/options.js';
import { isShared } from '../runtime/read_tensor.js';
import { coreOf, describe, nouns } from '../runtime/tensor.js';
import { isArrayBuffer, pristine, typedArrayName } from '../runtime/typed_arrays.js';
import { disposedObject, objectsApart } from './shared/errors.js';
import type { Argument, SentValue, Placeholder } from './shared/protocol.js';
import type { Workers, PoolWorker } from './workers.js';

/** An object in one worker, or in each worker of a team. Its proxy and its running calls reference the handle. */
export class Handle {
  readonly all: Workers;
  readonly workers: readonly PoolWorker[];
  readonly id: number;
  /** Shared memory through which the workers of a team exchange data; undefined for a single worker. */
  readonly sharedBlock: SharedArrayBuffer | undefined;
  released = false;

  constructor(all: Workers, workers: readonly PoolWorker[], id: number, sharedBlock: SharedArrayBuffer | undefined) {
    this.all = all;
    this.workers = workers;
    this.id = id;
    this.sharedBlock = sharedBlock;
  }

  get disposed(): boolean {
    return this.released || this.all.disposed;
  }
}

/** The handle of each proxy. */
export const handleOf = new WeakMap<object, Handle>();

/** Deepest nesting that is copied: a state dict in an options object. */
const mostLevels = 6;

export interface SentArguments {
  readonly args: Argument[];
  readonly transfer: ArrayBuffer[];
  /** An object among the arguments, whose workers run the call. All objects of one call live in the same workers. */
  readonly placement: Handle | undefined;
}

/**
 * Copies the numbers of the arguments into new buffers, which are transferred. Shared memory is sent without a copy.
 *
 * @throws {MultiheadError} `E_OPTION` if two objects live in different workers; `E_DISPOSED`
 * @param options.several true if several workers get the arguments, even when no argument is an object of several
 * workers: large buffers are then copied to shared memory
 * @param options.transferred buffers that are not copied, because the task transfers them
 */
export function packArguments(
  given: readonly unknown[],
  { several = false, transferred = [] }: { several?: boolean; transferred?: readonly ArrayBufferLike[] | undefined } = {},
): SentArguments {
  const transfer: ArrayBuffer[] = [];
  const handles = given.map((each) => (typeof each === 'object' && each !== null ? handleOf.get(each) : undefined));
  const toSeveral = several || handles.some((handle) => handle !== undefined && handle.workers.length > 1);
  const copying: Copying = {
    copied: toSeveral ? copiedForSeveral : (own) => copiedForOne(own, transfer, transferred),
    copies: new Map(),
  };
  let placement: Handle | undefined;
  const args = given.map((each, index): Argument => {
    const handle = handles[index];
    if (handle === undefined) return packed(each, copying);
    if (handle.disposed) throw disposedObject();
    if (placement !== undefined && !sameWorkers(placement, handle)) throw objectsApart();
    placement = handle;
    return { object: handle.id };
  });
  return { args, transfer, placement };
}

const sameWorkers = (a: Handle, b: Handle): boolean =>
  a.workers.length === b.workers.length && a.workers.every((worker, rank) => worker === b.workers[rank]);

/** The state that the arguments of one call share while they are copied. */
interface Copying {
  readonly copied: (own: Numbers) => Numbers;
  /** The copy of each array, buffer and tensor; an array that is given twice is copied once. */
  readonly copies: Map<object, unknown>;
}

/** Throws `E_MEMORY`. */
function once(key: object, bytes: number, { copies }: Copying, copy: () => unknown): unknown {
  if (!copies.has(key)) copies.set(key, onJavaScriptHeap(bytes, 'arguments', copy));
  return copies.get(key);
}

function packed(argument: unknown, copying: Copying): SentValue {
  const { copied } = copying;
  const placeholders: Placeholder[] = [];
  const numbers = (own: Numbers, key: object) => once(key, own.byteLength, copying, () => copied(own));
  const pack = (value: unknown, levels: number, path: readonly string[]): unknown => {
    if (typeof value === 'function') return void placeholders.push({ path, kind: 'function' });
    if (typeof value === 'symbol') return void placeholders.push({ path, kind: 'symbol', text: value.description });
    if (typeof value !== 'object' || value === null || levels === 0) return value;
    const core = coreOf(value);
    if (core !== undefined) {
      const { dtype, shape } = core;
      if (core.disposed) return void placeholders.push({ path, kind: 'disposed tensor', dtype, shape });
      return { data: numbers(core.view(), core), shape: [...shape], dtype };
    }
    if (ArrayBuffer.isView(value)) {
      if (typedArrayName(value) !== undefined) return numbers(pristine(value as Numbers), value);
      // A message would copy the whole underlying buffer, possibly an entire WebAssembly memory.
      const { buffer, byteOffset, byteLength } = value;
      return once(value, byteLength, copying, () => new DataView(new Uint8Array(buffer, byteOffset, byteLength).slice().buffer));
    }
    if (isArrayBuffer(value)) return once(value, value.byteLength, copying, () => value.slice(0));
    if (Array.isArray(value)) return value.map((each, index) => pack(each, levels - 1, [...path, String(index)]));
    const copy = propertiesOf(value);
    const noun = describe(value);
    nouns.set(copy, noun);
    if (noun !== 'a Object') placeholders.push({ path, kind: 'class', noun });
    for (const [name, each] of Object.entries(copy)) copy[name] = pack(each, levels - 1, [...path, name]);
    return copy;
  };
  return { value: pack(argument, mostLevels, []), placeholders };
}

/**
 * Copies options. Includes properties from a class or another prototype, because messages between threads carry own
 * properties only. Excludes methods and anything added to Object.prototype.
 */
function propertiesOf(value: object): Record<string, unknown> {
  const copy: Record<string, unknown> = Object.assign(Object.create(null), value);
  let from: unknown = Object.getPrototypeOf(value);
  while (from !== null && !Object.hasOwn(from as object, 'hasOwnProperty')) {
    for (const name of Object.getOwnPropertyNames(from)) {
      if (name in copy) continue;
      const each = (value as Record<string, unknown>)[name];
      if (typeof each !== 'function') copy[name] = each;
    }
    from = Object.getPrototypeOf(from);
  }
  return copy;
}

type Numbers = Float32Array | Uint16Array | Uint8Array | Int32Array;

function copiedForOne(own: Numbers, transfer: ArrayBuffer[], transferred: readonly ArrayBufferLike[]): Numbers {
  if (own.length === 0 || isShared({ data: own }) || transferred.includes(own.buffer)) return own;
  const copy = own.slice();
  transfer.push(copy.buffer as ArrayBuffer);
  return copy;
}

/** Below this many bytes, one copy for each worker is cheaper than shared memory. */
const fewBytes = 2 ** 15;

function copiedForSeveral(own: Numbers): Numbers {
  if (own.length === 0 || isShared({ data: own })) return own;
  if (own.byteLength < fewBytes) return own.slice();
  const Same = own.constructor as new (buffer: SharedArrayBuffer) => Numbers;
  const copy = new Same(new SharedArrayBuffer(own.byteLength));
  copy.set(own);
  return copy;
}

/** Options of a call that the pool itself uses. */
export interface CallOptions {
  readonly signal: AbortSignal | undefined;
  readonly progress: ((done: number, total: number) => void) | undefined;
  /** True if the call takes the buffers of its operands, and returns them with the result. */
  readonly transfer: boolean;
}

/** Takes `signal` and `progress` out of the last argument, and `transfer` if `transfers` is true. Throws `E_OPTION`. */
export function splitOptions(args: readonly unknown[], transfers = false): { args: unknown[]; options: CallOptions } {
  const last = args.at(-1);
  const none = { args: [...args], options: { signal: undefined, progress: undefined, transfer: false } };
  if (typeof last !== 'object' || last === null || Array.isArray(last)) return none;
  if (coreOf(last) !== undefined || ArrayBuffer.isView(last) || handleOf.has(last)) return none;
  if (!('signal' in last) && !('progress' in last) && !(transfers && 'transfer' in last)) return none;
  const { signal, progress, ...rest } = propertiesOf(last);
  const transfer = transfers ? rest['transfer'] : undefined;
  if (transfers) delete rest['transfer'];
  checkSignal(signal);
  checkCallback(progress, 'progress');
  const takes = transfer === undefined ? false : checkFlag(transfer, 'transfer');
  const options = { signal, progress, transfer: takes } as CallOptions;
  // Drop the options object if it held only the pool's options: the call itself then gets none.
  const own = Object.keys(rest).length === 0 ? [] : [rest];
  return { args: [...args.slice(0, -1), ...own], options };
}
