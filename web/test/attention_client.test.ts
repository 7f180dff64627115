import { describe, expect, it } from 'vitest';
import { connect, type Port } from '../src/attention_client.js';
import { unbent } from '../src/bend.js';
import type { Answer, ForwardResult, Request } from '../src/messages.js';

function setUp() {
  const sent: Request[] = [];
  const results: string[] = [];
  const failures: string[] = [];
  const port: Port = { postMessage: (request) => sent.push(request), onmessage: null, onerror: null };
  const client = connect(port, {
    onResult: ({ tokens }) => results.push(tokens.join(' ')),
    onFailure: (message) => failures.push(message),
  });
  const ask = (text: string) =>
    client.request({ tokens: text.split(' '), heads: ['first'], causal: false, bend: unbent, splitHeads: 8 });
  const reply = (answer: Answer) => port.onmessage?.({ data: answer } as MessageEvent<Answer>);
  const finish = (request: Request) =>
    reply({ kind: 'result', id: request.id, result: request as unknown as ForwardResult });
  return { sent, results, failures, client, port, ask, reply, finish };
}

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

  it('drops the answer of a cancelled request', () => {
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
    const { sent, results, failures, ask, reply, finish } = setUp();
    ask('a');
    reply({ kind: 'failed', id: sent[0]!.id, message: 'no wasm' });
    expect(failures).toEqual(['no wasm']);
    ask('b');
    finish(sent[1]!);
    expect(results).toEqual(['b']);
  });

  it('reports that the worker cannot be started', () => {
    const { failures, port, ask } = setUp();
    ask('a');
    port.onerror?.({ message: '' } as ErrorEvent);
    expect(failures[0]).toMatch(/worker/);
  });
});
