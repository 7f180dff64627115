// openSafetensors(): one tensor at a time from a Blob or a Response, with the checks of readSafetensors().

import { type MultiheadError, openSafetensors, readSafetensors, writeSafetensors } from 'multihead';
import { describe, expect, it, vi } from 'vitest';
import { rejectionOf } from './builds.ts';

const tensors = {
  a: { shape: [2, 3], data: Float32Array.of(1, 2, 3, 4, 5, 6) },
  half: { shape: [5], data: Uint16Array.of(1, 2, 3, 4, 5), dtype: 'bf16' as const },
  empty: { shape: [0, 7], data: new Float32Array() },
  flags: { shape: [3], data: Uint8Array.of(0, 1, 1) },
};
const file = writeSafetensors(tensors, { metadata: { format: 'pt' } });
const expected = readSafetensors(file);

/** A response that sends `bytes` in pieces of this size, and counts them. */
function inPieces(bytes: Uint8Array<ArrayBuffer>, size: number, options: { endless?: boolean; fails?: boolean } = {}) {
  const state = { sent: 0, cancelled: false };
  const stream = new ReadableStream<Uint8Array>(
    {
      pull(controller) {
        if (state.sent >= bytes.length && options.endless !== true) {
          if (options.fails === true) controller.error(new TypeError('terminated'));
          else controller.close();
          return undefined;
        }
        if (state.sent >= bytes.length) return new Promise(() => {});
        controller.enqueue(bytes.slice(state.sent, state.sent + size));
        state.sent += size;
        return undefined;
      },
      cancel() {
        state.cancelled = true;
      },
    },
    { highWaterMark: 0 },
  );
  return { response: new Response(stream), state };
}

async function all(opened: AsyncIterable<[string, unknown]>): Promise<Record<string, unknown>> {
  const found: Record<string, unknown> = {};
  for await (const [name, tensor] of opened) found[name] = tensor;
  return found;
}

const withHeader = (header: string, data: number): Uint8Array<ArrayBuffer> => {
  const text = new TextEncoder().encode(header);
  const bytes = new Uint8Array(8 + text.length + data);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(text.length), true);
  bytes.set(text, 8);
  return bytes;
};

describe('openSafetensors', () => {
  it('reads a Blob in any order, as often as wanted, and no more than is asked for', async () => {
    const reads: [number, number][] = [];
    class Watched extends Blob {
      override slice(begin = 0, end = 0): Blob {
        reads.push([begin, end - begin]);
        return super.slice(begin, end);
      }
    }
    const opened = await openSafetensors(new Watched([file]));
    expect(reads.reduce((sum, [, count]) => sum + count, 0)).toBeLessThanOrEqual(file.length - 24 - 10 - 3);
    expect(opened.metadata).toEqual({ format: 'pt' });
    expect(Object.keys(opened.entries)).toEqual(Object.keys(expected.tensors));
    expect(opened.entries['half']).toEqual({ dtype: 'bf16', shape: [5] });
    reads.length = 0;
    expect(await opened.read('half')).toEqual(expected.tensors['half']);
    expect(reads.map(([, count]) => count)).toEqual([10]);
    expect(await all(opened)).toEqual({ ...expected.tensors });
    expect(await all(opened)).toEqual({ ...expected.tensors });
    expect(await rejectionOf(opened.read('none'))).toMatchObject({ code: 'E_OPTION', argument: 'name' });
    expect(await rejectionOf(opened.read({} as never))).toMatchObject({ code: 'E_OPTION', argument: 'name' });
  });

  it.each([1, 7, 64, 1e6])('reads a Response in pieces of %d bytes, once', async (size) => {
    const { response } = inPieces(file, size);
    const opened = await openSafetensors(response);
    expect(await rejectionOf(opened.read('a'))).toMatchObject({ code: 'E_OPTION', argument: 'source' });
    expect(await all(opened)).toEqual({ ...expected.tensors });
    expect(await rejectionOf(all(opened))).toMatchObject({ code: 'E_OPTION', argument: 'source' });
    expect(response.bodyUsed).toBe(true);
  });

  it('reads the next part of a Response only when it is needed, and ends it when the loop ends', async () => {
    const { response, state } = inPieces(file, 4);
    const opened = await openSafetensors(response);
    const beforeData = state.sent;
    expect(beforeData).toBeLessThan(file.length - 24);
    for await (const [name] of opened) {
      expect(name).toBe('a');
      expect(state.sent).toBeLessThanOrEqual(beforeData + 24 + 4);
      break;
    }
    expect(state.cancelled).toBe(true);
  });

  const bad: [string, Uint8Array<ArrayBuffer>][] = [
    ['no bytes', new Uint8Array()],
    ['seven bytes', file.slice(0, 7)],
    ['half a header', file.slice(0, 40)],
    ['a header of 2⁶⁰ bytes', Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 16)],
    ['no JSON', withHeader('{', 0)],
    ['a name twice', withHeader('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1)],
    ['an unknown dtype', withHeader('{"a":{"dtype":"X","shape":[1],"data_offsets":[0,1]}}', 1)],
    ['a gap', withHeader('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', 2)],
    ['a tensor that is cut off', file.slice(0, -1)],
    ['bytes after the last tensor', Uint8Array.of(...file, 0)],
  ];
  it.each(bad)('refuses %s', async (_, bytes) => {
    let wanted: MultiheadError | undefined;
    try {
      readSafetensors(bytes);
    } catch (error) {
      wanted = error as MultiheadError;
    }
    expect(wanted?.code).toBe('E_FORMAT');
    const blob = await rejectionOf(openSafetensors(new Blob([bytes])).then(all));
    expect([blob.code, blob.message]).toEqual(['E_FORMAT', wanted?.message]);
    const { response } = inPieces(bytes, 5);
    expect(await rejectionOf(openSafetensors(response).then(all))).toMatchObject({ code: 'E_FORMAT' });
  });

  it('refuses other sources and options, and responses with errors', async () => {
    const used = new Response(file);
    await used.arrayBuffer();
    const locked = new Response(file);
    locked.body?.getReader();
    const sources = [undefined, null, 7, 'x.safetensors', file, {}, used, locked, new Response(null)];
    for (const source of sources) {
      expect(await rejectionOf(openSafetensors(source as never))).toMatchObject({ name: 'MultiheadError', code: 'E_OPTION', argument: 'source' });
    }
    for (const options of [null, 7, { signal: {} }, { sginal: undefined }]) {
      expect(await rejectionOf(openSafetensors(new Blob([file]), options as never))).toMatchObject({ code: 'E_OPTION' });
    }
    const missing = new Response('no', { status: 404, statusText: 'Not Found' });
    expect(await rejectionOf(openSafetensors(missing))).toMatchObject({ code: 'E_LOAD', got: 'HTTP status 404 Not Found' });
    const { response } = inPieces(file.slice(0, -2), 50, { fails: true });
    expect(await rejectionOf(openSafetensors(response).then(all))).toMatchObject({
      code: 'E_LOAD',
      got: 'terminated',
      cause: expect.any(TypeError) as Error,
    });
    class Broken extends Blob {
      override slice(): Blob {
        throw new RangeError('on purpose');
      }
    }
    expect(await rejectionOf(openSafetensors(new Broken([file])))).toMatchObject({ code: 'E_LOAD', got: 'on purpose' });
  });

  it('ends a response that it refuses or that is not read, and leaves its signal nothing to call', async () => {
    const bad = inPieces(withHeader('{', 100), 9);
    expect(await rejectionOf(openSafetensors(bad.response))).toMatchObject({ code: 'E_FORMAT' });
    expect(bad.state.cancelled).toBe(true);

    const missing = inPieces(file, 9);
    const response = new Response(missing.response.body, { status: 500 });
    expect(await rejectionOf(openSafetensors(response))).toMatchObject({ code: 'E_LOAD' });
    expect(missing.state.cancelled).toBe(true);

    const { signal } = new AbortController();
    const [added, removed] = [vi.spyOn(signal, 'addEventListener'), vi.spyOn(signal, 'removeEventListener')];
    const unread = inPieces(file, 9);
    const opened = await openSafetensors(unread.response, { signal });
    await opened.close();
    await opened.close();
    expect(unread.state.cancelled).toBe(true);
    expect(await rejectionOf(all(opened))).toMatchObject({ code: 'E_OPTION', argument: 'source' });
    expect(await all(await openSafetensors(inPieces(file, 9).response, { signal }))).toEqual({ ...expected.tensors });
    expect(added.mock.calls.length).toBeGreaterThan(1);
    const left = added.mock.calls.filter(([, listener]) => !removed.mock.calls.some(([, each]) => each === listener));
    expect(left).toEqual([]);

    const blob = await openSafetensors(new Blob([file]));
    await blob.close();
    expect(await all(blob)).toEqual({ ...expected.tensors });
  });

  it('can be aborted before and between reads, and while it waits', async () => {
    const aborted = { code: 'E_ABORTED', argument: 'signal' };
    expect(await rejectionOf(openSafetensors(new Blob([file]), { signal: AbortSignal.abort() }))).toMatchObject(aborted);
    const controller = new AbortController();
    const blob = await openSafetensors(new Blob([file]), { signal: controller.signal });
    const { response, state } = inPieces(file.slice(0, -2), 1e6, { endless: true });
    const stream = await openSafetensors(response, { signal: controller.signal });
    const waiting = rejectionOf(all(stream));
    setTimeout(() => controller.abort(), 20);
    expect(await waiting).toMatchObject(aborted);
    expect(state.cancelled).toBe(true);
    expect(await rejectionOf(blob.read('a'))).toMatchObject(aborted);
  });
});
