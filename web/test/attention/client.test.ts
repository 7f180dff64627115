import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { unbent } from '../../src/attention/bend.js';
import { connect } from '../../src/attention/client.js';
import type { ForwardInput } from '../../src/attention/messages.js';
import type { Call, Message } from '../../src/workers/protocol.js';
import type { Port } from '../../src/workers/remote.js';

function setUp() {
  const calls: Call[] = [];
  const results: string[] = [];
  const troubles: string[] = [];
  const times: number[] = [];
  const ended: Port[] = [];
  const ports: Port[] = [];
  const start = () => {
    const port: Port = {
      postMessage: (call) => calls.push(call),
      terminate: () => ended.push(port),
      onmessage: null,
      onerror: null,
    };
    ports.push(port);
    return port;
  };
  const client = connect(start, {
    onResult: ({ tokens }) => results.push(tokens.join(' ')),
    onTimed: (milliseconds) => times.push(milliseconds),
    onTrouble: (trouble) => troubles.push(trouble.kind === 'failed' ? trouble.why.message : trouble.kind),
  });
  const ask = (text: string) => client.request({ tokens: text.split(' '), heads: ['first'], causal: false, bend: unbent });
  /** The sentences of the requests so far. */
  const sent = () => calls.filter(({ name }) => name === 'forward').map(({ values }) => (values[0] as ForwardInput).tokens.join(' '));
  const callOf = (name: string, index = -1) => calls.filter((call) => call.name === name).at(index)!;
  /** Lets the worker that was started last send a message, and waits until the page has handled it. */
  const reply = async (message: Message) => {
    ports.at(-1)!.onmessage?.({ data: message } as MessageEvent<Message>);
    await vi.advanceTimersByTimeAsync(0);
  };
  /** Answers a request, by default the last; its result is its input. */
  const finish = ({ id, values } = callOf('forward')) => reply({ id, value: values[0] });
  return { sent, results, troubles, times, ended, ports, client, ask, callOf, reply, finish };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe('attention client', () => {
  it('sends one request at a time and skips those that are replaced', async () => {
    const { sent, results, ask, finish } = setUp();
    for (const text of ['a', 'a b', 'a b c']) ask(text);
    expect(sent()).toEqual(['a']);
    await finish();
    expect(sent()).toEqual(['a', 'a b c']);
    expect(results).toEqual([]);
    await finish();
    expect(results).toEqual(['a b c']);
  });

  it('drops the answer of a cancelled request', async () => {
    const { results, client, ask, finish } = setUp();
    ask('a');
    client.cancel();
    await finish();
    expect(results).toEqual([]);
    ask('b');
    await finish();
    expect(results).toEqual(['b']);
  });

  it('passes failures on and recovers', async () => {
    const { results, troubles, ask, callOf, reply, finish } = setUp();
    ask('a');
    await reply({ id: callOf('forward').id, failure: { message: 'no wasm' } });
    expect(troubles).toEqual(['no wasm']);
    ask('b');
    await finish();
    expect(results).toEqual(['b']);
  });

  it('reports that the worker cannot be started', async () => {
    const { troubles, ports, ask } = setUp();
    ask('a');
    ports[0]!.onerror?.({ message: '' } as ErrorEvent);
    await vi.advanceTimersByTimeAsync(0);
    expect(troubles[0]).toMatch(/^A file of this page could not be fetched/);
    ask('b');
    vi.advanceTimersByTime(20_000);
    expect([troubles.length, ports.length]).toEqual([1, 1]);
  });

  it('starts another worker after one that threw between two requests', async () => {
    const { results, troubles, ports, ask, finish } = setUp();
    ask('a');
    await finish();
    ports[0]!.onerror?.({ message: 'it threw' } as ErrorEvent);
    expect(troubles).toEqual(['it threw']);
    ask('b');
    await finish();
    expect([results, ports.length]).toEqual([['a', 'b'], 2]);
  });

  it('waits for a first answer that is late, and says so once', async () => {
    const { results, troubles, ended, ask, finish } = setUp();
    ask('a');
    vi.advanceTimersByTime(20_000);
    expect([troubles, ended]).toEqual([['late'], []]);
    await finish();
    expect(results).toEqual(['a']);
  });

  it('replaces a worker that stops answering, and gives it the latest request', async () => {
    const { sent, results, troubles, ended, ports, ask, finish } = setUp();
    ask('a');
    await finish();
    vi.advanceTimersByTime(20_000);
    expect(troubles).toEqual([]);
    ask('b');
    ask('c');
    vi.advanceTimersByTime(4000);
    expect([troubles, ended, sent().at(-1)]).toEqual([['restarted'], [ports[0]], 'c']);
    await finish();
    expect(results).toEqual(['a', 'c']);
    ask('d');
    vi.advanceTimersByTime(8000);
    expect(troubles).toEqual(['restarted', 'restarted', 'silent']);
    ask('e');
    await finish();
    expect(results).toEqual(['a', 'c', 'e']);
  });

  it('leaves a worker alone whose answer waits while the tab was frozen, however long', async () => {
    const { results, troubles, ended, ask, finish } = setUp();
    ask('a');
    await finish();
    ask('b');
    vi.setSystemTime(Date.now() + 3_600_000);
    // After an hour, browsers run one check that is due, before or after the answer.
    vi.advanceTimersByTime(1000);
    await finish();
    expect([results, troubles, ended]).toEqual([['a', 'b'], [], []]);
  });

  it('passes on the time of the latest request only', async () => {
    const { times, ask, callOf, reply, finish } = setUp();
    ask('a');
    await finish();
    const first = callOf('time');
    ask('b');
    await reply({ id: first.id, value: 9 });
    await finish();
    await reply({ id: callOf('time').id, value: 2 });
    ask('c');
    await finish();
    await reply({ id: callOf('time').id, value: undefined });
    expect(times).toEqual([2]);
  });

  it('starts another worker at once where one ends at work, and on demand where one ends with nothing to do', async () => {
    const locks: Record<string, () => void> = {};
    vi.stubGlobal('navigator', { locks: { request: async (name: string, got: () => void) => void (locks[name] = got) } });
    const { sent, results, troubles, ports, ask, reply, finish } = setUp();
    await reply({ lock: 'first' });
    ask('a');
    locks['first']!();
    expect([troubles, ports.length, sent().length]).toEqual([['restarted'], 2, 2]);
    await reply({ lock: 'second' });
    await finish();
    expect(results).toEqual(['a']);
    locks['first']!(); // the lock of a worker that was replaced
    locks['second']!();
    expect([troubles.length, ports.length]).toEqual([1, 2]);
    ask('b');
    await finish();
    expect([results, ports.length]).toEqual([['a', 'b'], 3]);
    vi.unstubAllGlobals();
  });
});
