// Runs every suite with both WebAssembly builds, or with those that MULTIHEAD_TEST_BUILDS lists. vitest.config.ts sets the
// flag that Node 20 needs for the relaxed build.

import { readFile } from 'node:fs/promises';
import { load, MultiheadError, type Multihead, type Simd } from 'multihead';
import { expect } from 'vitest';
import { everything } from '../src/api/multihead.ts';
import { CoreObject } from '../src/runtime/core_object.ts';
import { guardModule } from '../src/runtime/guard.ts';
import type { RawModule } from '../src/runtime/raw.ts';
import { makeDisposable } from '../src/runtime/symbol_dispose.ts';
import { WasmTensor } from '../src/runtime/tensor.ts';
import type { Uint32 } from '../src/types/wire.ts';

const listed = process.env['MULTIHEAD_TEST_BUILDS']?.split(',');
export const builds = (['simd128', 'relaxed'] satisfies readonly Simd[]).filter((simd) => listed?.includes(simd) ?? true);

/** Loads a new instance with its own memory. */
export const loadBuild = (simd: Simd): Promise<Multihead> => load({ simd });

/**
 * Makes a new instance of the sources, and its raw module, for tests that exhaust memory or make a call of the core fail.
 */
export async function openBuild(simd: Simd, change: (raw: RawModule) => RawModule = (raw) => raw): Promise<{ mh: Multihead; raw: RawModule }> {
  makeDisposable(WasmTensor, CoreObject);
  const wasm = await readFile(new URL(`../dist/multihead-${simd}.wasm`, import.meta.url));
  const module = await WebAssembly.compile(new Uint8Array(wasm));
  const { createGlue, createApi, readParameter } = everything;
  const raw = await createGlue({
    readParameter,
    instantiateWasm(imports, receive) {
      void WebAssembly.instantiate(module, imports).then((made) => receive(made, module));
      return {};
    },
  });
  const backend = { simd, version: '', wasmBytes: 0, why: 'a test' } as const;
  return {
    mh: createApi(
      guardModule(change(raw), () => {}),
      backend,
      { compile: () => Promise.reject(new Error()), load: () => Promise.resolve(), imports: {} },
    ),
    raw,
  };
}

/** Loads a new instance, and counts the JavaScript calls that allocate in its WebAssembly memory. */
export async function openCountingBuild(simd: Simd): Promise<{ mh: Multihead; allocations: () => number }> {
  let count = 0;
  const { mh } = await openBuild(simd, (raw) => ({
    ...raw,
    get HEAPU8() {
      return raw.HEAPU8;
    },
    _multihead_allocate(bytes: Uint32) {
      count += 1;
      return raw._multihead_allocate(bytes);
    },
  }));
  return { mh, allocations: () => count };
}

/** Imports a fresh copy of an entry point, which has not loaded anything yet, and returns its load(). */
export async function freshLoad(name: string, entry = 'index_node.js'): Promise<typeof load> {
  const { href } = new URL(`../dist/${entry}?${name}`, import.meta.url);
  const module = (await import(/* @vite-ignore */ href)) as typeof import('multihead');
  return module.load;
}

/** Returns the MultiheadError that `fn` throws; the test fails if it throws none. */
export function errorOf(fn: () => unknown): MultiheadError {
  let result: unknown;
  try {
    result = fn();
  } catch (error) {
    expect(error).toMatchObject({ name: 'MultiheadError' });
    return error as MultiheadError;
  }
  throw new Error(`expected an error, got ${String(result)}`);
}

/** Returns the MultiheadError that rejects a promise; the test fails if the promise is not rejected. */
export async function rejectionOf(promise: Promise<unknown>): Promise<MultiheadError> {
  const error: unknown = await promise.then(
    () => undefined,
    (cause: unknown) => cause,
  );
  expect(error).toBeInstanceOf(MultiheadError);
  return error as MultiheadError;
}

/** Expects that `fn` throws and allocates nothing, and that the next call works. */
export function expectRefused(
  mh: Multihead,
  fn: () => unknown,
  code: MultiheadError['code'],
  argument: string,
  ...words: (string | RegExp)[]
): MultiheadError {
  const before = mh.memory();
  const error = errorOf(fn);
  expect(error.code, error.message).toBe(code);
  expect(error.argument, error.message).toBe(argument);
  for (const word of words) expect(error.message).toMatch(word);
  const after = mh.memory();
  expect({ live: after.live, bytes: after.bytes }).toEqual({
    live: before.live,
    bytes: before.bytes,
  });
  expectWorks(mh);
  return error;
}

/** One query and two equal keys: the output is the mean of the values. */
export function expectWorks(mh: Multihead): void {
  mh.scope(() => {
    const q = { shape: [1, 1, 1, 2], data: new Float32Array([1, 2]) };
    const k = { shape: [1, 1, 2, 2], data: new Float32Array([3, 4, 3, 4]) };
    const v = { shape: [1, 1, 2, 1], data: new Float32Array([10, 20]) };
    const { out } = mh.attention(q, k, v);
    expect(out.data[0]).toBeCloseTo(15, 5);
  });
}
