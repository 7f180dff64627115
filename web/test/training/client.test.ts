import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { connect } from '../../src/training/client.js';
import type { Progress } from '../../src/training/messages.js';
import type { Call, Message } from '../../src/workers/protocol.js';
import type { Port } from '../../src/workers/remote.js';

function setUp() {
  const sent: Call[] = [];
  const lost: string[] = [];
  const reports: [Progress, () => void][] = [];
  let ended = false;
  const port: Port = {
    postMessage: (request) => sent.push(request),
    terminate: () => (ended = true),
    onmessage: null,
    onerror: null,
  };
  const client = connect(port, {
    onReport: (progress, seen) => reports.push([progress, seen]),
    onLost: ({ message }) => lost.push(message),
  });
  const reply = (data: Message) => port.onmessage?.({ data } as MessageEvent<Message>);
  /** Answers the last message. */
  const answer = () => reply({ id: sent.at(-1)!.id, value: null });
  return { sent, lost, reports, port, client, reply, answer, ended: () => ended };
}

describe('training client', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it('gives each call its own answer', async () => {
    const { sent, client, reply } = setUp();
    const [first, second] = [client.call('pause'), client.call('goTo', 7)];
    expect(sent).toEqual([
      { name: 'pause', id: 1, values: [] },
      { name: 'goTo', id: 2, values: [7] },
    ]);
    reply({ id: 2, failure: { message: 'no such moment' } });
    reply({ id: 1, value: null });
    await expect(first).resolves.toBeNull();
    await expect(second).rejects.toThrow('no such moment');
  });

  it('confirms a report only when told', () => {
    const { sent, reports, reply } = setUp();
    reply({ event: { step: 3 } as Progress });
    expect(reports[0]?.[0].step).toBe(3);
    expect(sent).toEqual([]);
    reports[0]![1]();
    expect(sent).toEqual([{ name: 'seen', id: 1, values: [] }]);
  });

  it('takes a worker that no longer answers for lost', async () => {
    const { lost, client, answer, ended } = setUp();
    const run = client.call('run', 600);
    const failed = expect(run).rejects.toThrow('stopped answering');
    for (let second = 0; second < 60; second += 1) {
      await vi.advanceTimersByTimeAsync(1000);
      answer();
    }
    expect(lost).toEqual([]);
    await vi.advanceTimersByTimeAsync(6000);
    expect(lost.length).toBe(1);
    expect(ended()).toBe(true);
    await failed;
    await expect(client.call('step')).rejects.toThrow('stopped answering');
  });

  it('waits longer for the first answer, which comes over the network', async () => {
    const { lost, client } = setUp();
    const failed = expect(client.call('pause')).rejects.toThrow();
    vi.advanceTimersByTime(15_000);
    expect(lost).toEqual([]);
    vi.advanceTimersByTime(10_000);
    expect(lost.length).toBe(1);
    await failed;
  });

  it('learns at once that the worker has ended, and leaves a slow one its time', async () => {
    const locks: Record<string, () => void> = {};
    vi.stubGlobal('navigator', { locks: { request: async (name: string, got: () => void) => void (locks[name] = got) } });
    const { lost, client, reply, ended } = setUp();
    const failed = expect(client.call('pause')).rejects.toThrow('lack of memory');
    reply({ lock: 'worker 1' });
    vi.advanceTimersByTime(15_000);
    expect(lost).toEqual([]);
    locks['worker 1']!();
    expect([lost, ended()]).toEqual([['its worker has ended, perhaps for lack of memory.'], true]);
    await failed;
    vi.unstubAllGlobals();
  });

  it('says that the script is missing', async () => {
    const { lost, client, port } = setUp();
    const failed = expect(client.call('pause')).rejects.toThrow('could not be fetched');
    port.onerror?.({ message: '' } as ErrorEvent);
    await failed;
    expect(lost).toEqual(['A file of this page could not be fetched. Is there a network?']);
  });

  it('leaves a worker alone that has nothing to do', async () => {
    const { sent, client, answer, lost } = setUp();
    const done = client.call('pause');
    answer();
    await done;
    await vi.advanceTimersByTimeAsync(60_000);
    expect([sent.length, lost.length]).toEqual([1, 0]);
  });
});
