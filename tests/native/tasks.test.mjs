// The order in which `npm test` builds and runs.
//
//   node --test tests/native/tasks.test.mjs

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { runTasks } from '../../native/dev/tasks.mjs';

const later = () => new Promise((resolve) => setTimeout(resolve, 5));

/** Tasks that record when they begin and end. */
function noted(...tasks) {
  const notes = [];
  return {
    notes,
    tasks: tasks.map((task) => ({
      ...task,
      async run() {
        notes.push(`${task.name} begins`);
        await later();
        if (task.fails) throw new Error(`${task.name} failed`);
        notes.push(`${task.name} ends`);
      },
    })),
  };
}

test('two tasks run at a time, in order, and one that waits beside them', async () => {
  const running = { busy: 0, waits: 0 };
  const begun = [];
  const most = { busy: 0, waits: 0 };
  const counted = (name, kind = 'busy') => ({
    ...{ name, waits: kind === 'waits' },
    async run() {
      begun.push(name);
      running[kind] += 1;
      most[kind] = Math.max(most[kind], running[kind]);
      await later();
      running[kind] -= 1;
    },
  });
  await runTasks([counted('a'), counted('browser', 'waits'), counted('b'), counted('other browser', 'waits'), counted('c')]);
  assert.deepEqual(begun.slice(0, 3), ['a', 'b', 'browser']);
  assert.deepEqual(begun.slice(3).sort(), ['c', 'other browser']);
  assert.deepEqual(most, { busy: 2, waits: 1 });
});

test('a task begins when those before it have ended, and others overtake it', async () => {
  const { notes, tasks } = noted(
    { name: 'build' },
    { name: 'test', after: ['build'] },
    { name: 'other' },
    { name: 'last', after: ['test', 'other'] },
  );
  await runTasks(tasks);
  const at = (note) => notes.indexOf(note);
  assert.ok(at('test begins') > at('build ends'));
  assert.ok(at('other begins') < at('build ends'));
  assert.ok(at('last begins') > at('test ends') && at('last begins') > at('other ends'));
  assert.equal(notes.length, 8);
});

test('after a failure nothing begins', async () => {
  const { notes, tasks } = noted(
    { name: 'build', fails: true },
    { name: 'other' },
    { name: 'third' },
    { name: 'waiting', waits: true, after: ['third'] },
  );
  await assert.rejects(runTasks(tasks), /build failed/);
  await later();
  await later();
  assert.deepEqual(notes, ['build begins', 'other begins', 'other ends']);
});

test('a task that waits for one that does not exist is an error', async () => {
  await assert.rejects(runTasks([{ name: 'a', after: ['b'], run: later }]), /a waits for .*b/);
});
