import { expect, test } from 'vitest';
import { WorkerCalls } from '../../src/workers/worker_calls.js';

test('an answer settles the call that has its number, in any order', async () => {
  const calls = new WorkerCalls();
  const ids: number[] = [];
  const [first, second] = [calls.start((id) => ids.push(id)), calls.start((id) => ids.push(id))];
  expect(calls.waiting).toBe(2);
  calls.reject(ids[1]!, 'no');
  calls.resolve(ids[0]!, 'yes');
  calls.resolve(99, 'nobody waits for it');
  await expect(first).resolves.toBe('yes');
  await expect(second).rejects.toThrow('no');
  expect(calls.waiting).toBe(0);
});

test('when the worker has ended, all that wait are rejected', async () => {
  const calls = new WorkerCalls();
  const both = Promise.allSettled([calls.start(() => {}), calls.start(() => {})]);
  calls.rejectAll('it ended');
  expect(await both).toMatchObject([{ reason: new Error('it ended') }, { reason: new Error('it ended') }]);
  expect(calls.waiting).toBe(0);
});
