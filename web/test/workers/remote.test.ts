// Tests both sides of a worker over a pair of connected ports.

import { MultiheadError } from 'multihead';
import { afterEach, expect, test, vi } from 'vitest';
import { failureOf, type Call, type Message } from '../../src/workers/protocol.js';
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
    onLost: ({ message }, ended) => log.push(`${ended ? 'ended' : 'broken'}: ${message}`),
  });
  const functions = {
    add: (a: number, b: number) => a + b,
    wait: () => new Promise<string>((resolve) => (finish = resolve)),
    fail: () => {
      throw new MultiheadError('E_SHAPE', { argument: 'heads', expected: '4', got: '5' });
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

test('an error keeps its message, its code and its parts', async () => {
  const { remote } = setUp();
  await expect(remote.call('fail')).rejects.toMatchObject({
    message: 'heads: expected 4, got 5',
    code: 'E_SHAPE',
    argument: 'heads',
    expected: '4',
    got: '5',
  });
  expect(failureOf(new DOMException('no', 'DataCloneError'))).toEqual({ message: 'no' });
  expect(failureOf(undefined)).toEqual({ message: 'undefined' });
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

test.each([
  [
    'is on the server no more',
    async () => new Response('<script src="./assets/main-2.js">'),
    /^This page was updated\. Reload it: your choices are in its address\.$/,
  ],
  ['is missing on the server, or held back', async () => new Response('<script src="./assets/main-1.js">'), /^A file of this page did not arrive\. /],
  ['cannot be fetched', () => Promise.reject(new TypeError('Failed to fetch')), /^A file of this page could not be fetched\. /],
])('a script that %s is reported once', async (_, fetch, said) => {
  const { port, remote, log } = setUp();
  vi.stubGlobal('fetch', fetch);
  vi.stubGlobal('document', { scripts: [{ src: 'https://a.example/assets/main-1.js' }, { src: 'chrome-extension://x/y.js' }] });
  port.onerror?.({ message: '' } as ErrorEvent);
  port.onerror?.({ message: '' } as ErrorEvent);
  await vi.waitUntil(() => log.length > 0);
  await expect(remote.call('add', 1, 1)).rejects.toMatchObject({ message: expect.stringMatching(said), code: 'E_LOAD' });
  expect(log).toEqual(['terminated', expect.stringMatching(said.source.replace('^', 'broken: '))]);
});

test('a file of the page that a worker lacks is explained, and no other', async () => {
  const { port, remote } = setUp();
  let sent = 0;
  const lack = (argument: string): Promise<string> => {
    const call = remote.call('wait');
    port.onmessage?.({ data: { id: (sent += 1), failure: { code: 'E_LOAD', argument, message: 'raw' } } } as MessageEvent<Message>);
    return call.catch(({ message }: Error) => message);
  };
  expect(await lack('wasm')).toMatch(/^A file of this page/);
  expect(await lack('tokenizer')).toMatch(/^A file of this page/);
  expect(await lack('model.safetensors')).toBe('raw');
});

test('a call whose values cannot be cloned is rejected, and nothing waits for it', async () => {
  const { port, remote } = setUp();
  const post = port.postMessage;
  port.postMessage = (call) => post(structuredClone(call));
  await expect(remote.call('add', 1, (() => {}) as unknown as number)).rejects.toThrow(/clone/);
  expect(await remote.call('add', 1, 1)).toBe(2);
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

test('a worker that hangs while it starts workers of its own is replaced, and called again', async () => {
  vi.useFakeTimers();
  const started: { calls: Call[]; ended: boolean; port: Port }[] = [];
  const start = (): Port => {
    const worker = { calls: [] as Call[], ended: false };
    const port: Port = { postMessage: (call) => worker.calls.push(call), terminate: () => (worker.ended = true), onmessage: null, onerror: null };
    started.push(Object.assign(worker, { port }));
    return port;
  };
  const say = (worker: number, data: Message) => started[worker]!.port.onmessage?.({ data } as MessageEvent<Message>);
  const answer = (worker: number, name: string, value?: unknown) =>
    say(worker, { id: started[worker]!.calls.find((call) => call.name === name)!.id, value });
  const lost = vi.fn();
  const remote = connect<Calls>(start(), { onLost: lost, nested: { during: 'add', start } });
  const sum = remote.call('add', 1, 2);
  // A script that has not arrived yet is waited for.
  vi.advanceTimersByTime(30_000);
  expect(started.length).toBe(1);
  answer(0, 'ping');
  await Promise.resolve();
  vi.advanceTimersByTime(9_900);
  expect(started.length).toBe(1);
  vi.advanceTimersByTime(10_000);
  expect(started.map(({ ended }) => ended)).toEqual([true, false]);
  expect(started[1]!.calls).toContainEqual({ id: 1, name: 'add', values: [1, 2] });
  answer(1, 'add', 3);
  expect(await sum).toBe(3);
  vi.advanceTimersByTime(60_000);
  // Other calls may take any time.
  void remote.call('wait').catch(() => {});
  vi.advanceTimersByTime(60_000);
  expect(started.length).toBe(2);
  expect(lost).not.toHaveBeenCalled();
  vi.useRealTimers();
});
