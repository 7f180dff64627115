import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { unbent } from '../../src/attention/bend.js';
import { connect, type Port } from '../../src/attention/client.js';
import type { Answer, ForwardResult, Request } from '../../src/attention/messages.js';

function setUp() {
  const sent: Request[] = [];
  const results: string[] = [];
  const troubles: string[] = [];
  const times: number[] = [];
  const ended: Port[] = [];
  const ports: Port[] = [];
  const start = () => {
    const port: Port = {
      postMessage: (request) => sent.push(request),
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
    onTrouble: (trouble) => troubles.push(trouble.kind === 'failed' ? trouble.reason : trouble.kind),
  });
  const ask = (text: string) =>
    client.request({ tokens: text.split(' '), heads: ['first'], causal: false, bend: unbent, splitHeads: 8 });
  const reply = (answer: Answer) => ports.at(-1)!.onmessage?.({ data: answer } as MessageEvent<Answer>);
  const finish = (request: Request) =>
    reply({ kind: 'result', id: request.id, result: request as unknown as ForwardResult });
  return { sent, results, troubles, times, ended, ports, client, ask, reply, finish };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe('attention client', () => {
  it('sends one request at a time and skips those that are replaced', () => {
    const { sent, results, ask, finish } = setUp();
    for (const text of ['a', 'a b', 'a b c']) ask(text);
    expect(sent.map(({ tokens }) => tokens.length)).toEqual([1]);
    finish(sent[0]!);
    expect(sent.map(({ tokens }) => tokens.length)).toEqual([1, 3]);
    expect(results).toEqual([]);
    finish(sent[1]!);
    expect(results).toEqual(['a b c']);
  });

  it('drops the answer of a canceled request', () => {
    const { sent, results, client, ask, finish } = setUp();
    ask('a');
    client.cancel();
    finish(sent[0]!);
    expect(results).toEqual([]);
    ask('b');
    finish(sent[1]!);
    expect(results).toEqual(['b']);
  });

  it('passes failures on and recovers', () => {
    const { sent, results, troubles, ask, reply, finish } = setUp();
    ask('a');
    reply({ kind: 'failed', id: sent[0]!.id, message: 'no wasm' });
    expect(troubles).toEqual(['no wasm']);
    ask('b');
    finish(sent[1]!);
    expect(results).toEqual(['b']);
  });

  it('reports that the worker cannot be started', () => {
    const { troubles, ports, ask } = setUp();
    ask('a');
    ports[0]!.onerror?.({ message: '' } as ErrorEvent);
    expect(troubles[0]).toMatch(/worker/);
    ask('b');
    vi.advanceTimersByTime(20_000);
    expect(troubles).toHaveLength(1);
  });

  it('waits for a first answer that is late, and says so once', () => {
    const { sent, results, troubles, ended, ask, finish } = setUp();
    ask('a');
    vi.advanceTimersByTime(20_000);
    expect([troubles, ended]).toEqual([['late'], []]);
    finish(sent[0]!);
    expect(results).toEqual(['a']);
  });

  it('replaces a worker that stops answering, and gives it the latest request', () => {
    const { sent, results, troubles, ended, ports, ask, finish } = setUp();
    ask('a');
    finish(sent[0]!);
    vi.advanceTimersByTime(20_000);
    expect(troubles).toEqual([]);
    ask('b');
    ask('c');
    vi.advanceTimersByTime(4000);
    expect([troubles, ended, sent.at(-1)?.tokens]).toEqual([['restarted'], [ports[0]], ['c']]);
    finish(sent.at(-1)!);
    expect(results).toEqual(['a', 'c']);
    ask('d');
    vi.advanceTimersByTime(8000);
    expect(troubles).toEqual(['restarted', 'restarted', 'silent']);
    ask('e');
    finish(sent.at(-1)!);
    expect(results).toEqual(['a', 'c', 'e']);
  });

  it('passes on the time of the latest request only', () => {
    const { sent, times, ask, reply, finish } = setUp();
    ask('a');
    finish(sent[0]!);
    ask('b');
    reply({ kind: 'timed', id: sent[0]!.id, milliseconds: 9 });
    finish(sent[1]!);
    reply({ kind: 'timed', id: sent[1]!.id, milliseconds: 2 });
    expect(times).toEqual([2]);
  });

  it('starts another worker at once where one ends at work, and on demand where one ends with nothing to do', () => {
    const locks: Record<string, () => void> = {};
    vi.stubGlobal('navigator', { locks: { request: async (name: string, got: () => void) => void (locks[name] = got) } });
    const { sent, results, troubles, ports, ask, reply, finish } = setUp();
    reply({ kind: 'lock', lock: 'first' });
    ask('a');
    locks['first']!();
    expect([troubles, ports.length, sent.length]).toEqual([['restarted'], 2, 2]);
    reply({ kind: 'lock', lock: 'second' });
    finish(sent[1]!);
    expect(results).toEqual(['a']);
    locks['first']!(); // the lock of a worker that was replaced
    locks['second']!();
    expect([troubles.length, ports.length]).toEqual([1, 2]);
    ask('b');
    finish(sent[2]!);
    expect([results, ports.length]).toEqual([['a', 'b'], 3]);
    vi.unstubAllGlobals();
  });
});
