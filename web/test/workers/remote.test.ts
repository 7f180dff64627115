// Tests both sides of a worker over a pair of connected ports.

import { afterEach, expect, test, vi } from 'vitest';
import type { Call, Message } from '../../src/workers/protocol.js';
import { connect, type Port } from '../../src/workers/remote.js';
import { serve } from '../../src/workers/serve.js';

interface Calls {
  add(a: number, b: number): number;
  wait(): string;
  fail(): void;
}

afterEach(() => void vi.unstubAllGlobals());

/** A worker in this thread. Messages are cloned, as between threads. */
function setUp(loading: Promise<unknown> = Promise.resolve()) {
  const log: string[] = [];
  const locks = new Map<string, () => void>();
  vi.stubGlobal('navigator', {
    locks: {
      request: async (name: string, got: () => unknown) => void (locks.has(name) ? locks.set(name, got) : (locks.set(name, got), got())),
    },
  });
  vi.stubGlobal('onmessage', null);
  vi.stubGlobal('postMessage', (message: Message, { transfer }: { transfer: Transferable[] }) => {
    const data = structuredClone(message, { transfer });
    queueMicrotask(() => port.onmessage?.({ data } as MessageEvent<Message>));
  });
  const port: Port = {
    postMessage: (call) => (globalThis as { onmessage?: (event: MessageEvent<Call>) => void }).onmessage?.({ data: call } as MessageEvent<Call>),
    terminate: () => log.push('terminated'),
    onmessage: null,
    onerror: null,
  };
  let finish = (_: string): void => {};
  const remote = connect<Calls, number>(port, {
    onEvent: (event) => log.push(`event ${event}`),
    onLost: (reason, ended) => log.push(`${ended ? 'ended' : 'broken'}: ${reason}`),
  });
  const functions = {
    add: (a: number, b: number) => a + b,
    wait: () => new Promise<string>((resolve) => (finish = resolve)),
    fail: () => {
      throw Object.assign(new Error('no'), { argument: 'heads' });
    },
  };
  const emit = serve<Calls, number>(loading.then(() => functions));
  return { log, locks, port, remote, emit, finish: (text: string) => finish(text) };
}

test('each call gets its own answer, in any order', async () => {
  const { remote, finish } = setUp();
  const slow = remote.call('wait');
  expect(await remote.call('add', 2, 3)).toBe(5);
  finish('now');
  expect(await slow).toBe('now');
});

test('an error keeps its message and the argument that it names', async () => {
  const { remote } = setUp();
  await expect(remote.call('fail')).rejects.toMatchObject({ message: 'no', argument: 'heads' });
  expect(await remote.call('add', 1, 1)).toBe(2);
});

test('a worker that cannot load reports it at each call, and answers pings while it loads', async () => {
  let fail = (_: Error): void => {};
  const { remote } = setUp(new Promise((_, reject) => (fail = reject)));
  const call = remote.call('add', 1, 1);
  await remote.ping();
  fail(new Error('no wasm'));
  await expect(call).rejects.toThrow('no wasm');
  await expect(remote.call('wait')).rejects.toThrow('no wasm');
});

test('events arrive', async () => {
  const { remote, emit, log } = setUp();
  emit(7);
  await remote.ping();
  expect(log).toEqual(['event 7']);
});

test('when the worker has ended, all pending and later calls are rejected', async () => {
  const { remote, locks, log } = setUp();
  const call = remote.call('wait');
  await remote.ping();
  for (const ended of locks.values()) ended();
  await expect(call).rejects.toThrow('has ended');
  await expect(remote.call('add', 1, 1)).rejects.toThrow('has ended');
  expect(log).toEqual(['terminated', 'ended: its worker has ended, perhaps for lack of memory.']);
});

test('a script that is missing is reported once', async () => {
  const { port, remote, log } = setUp();
  port.onerror?.({ message: '' } as ErrorEvent);
  port.onerror?.({ message: 'again' } as ErrorEvent);
  await expect(remote.call('add', 1, 1)).rejects.toThrow('could not be loaded');
  expect(log).toEqual(['terminated', 'broken: its worker script could not be loaded.']);
});

test('a worker that the page closes is not reported', async () => {
  const { remote, locks, log } = setUp();
  const call = remote.call('wait');
  await remote.ping();
  remote.close('it was stopped');
  for (const ended of locks.values()) ended();
  await expect(call).rejects.toThrow('it was stopped');
  expect(log).toEqual(['terminated']);
});
