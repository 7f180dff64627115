// The order in which `npm test` builds and runs.
//
//   node --test tests/native/turns.test.mjs

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { inTurns } from '../../native/dev/turns.mjs';

const later = () => new Promise((resolve) => setTimeout(resolve, 5));

/** Tasks that record when they begin and end. */
function noted(...works) {
  const notes = [];
  return {
    notes,
    works: works.map((work) => ({
      ...work,
      async run() {
        notes.push(`${work.name} begins`);
        await later();
        if (work.fails) throw new Error(`${work.name} failed`);
        notes.push(`${work.name} ends`);
      },
    })),
  };
}

test('two works run at a time, in order, and wide ones alone at the end', async () => {
  let running = 0;
  const begun = [];
  const counted = (name, most, wide) => ({
    ...{ name, wide },
    async run() {
      begun.push(name);
      running += 1;
      assert.ok(running <= most, `${name}: ${running} at a time`);
      await later();
      running -= 1;
    },
  });
  await inTurns([counted('a', 2), counted('wide', 1, true), counted('b', 2), counted('c', 2), counted('wider', 1, true)]);
  assert.deepEqual(begun, ['a', 'b', 'c', 'wide', 'wider']);
});

test('a work begins when those before it have ended, and others overtake it', async () => {
  const { notes, works } = noted({ name: 'build' }, { name: 'test', after: ['build'] }, { name: 'other' }, { name: 'last', after: ['test', 'other'] });
  await inTurns(works);
  const at = (note) => notes.indexOf(note);
  assert.ok(at('test begins') > at('build ends'));
  assert.ok(at('other begins') < at('build ends'));
  assert.ok(at('last begins') > at('test ends') && at('last begins') > at('other ends'));
  assert.equal(notes.length, 8);
});

test('after a failure nothing begins', async () => {
  const { notes, works } = noted({ name: 'build', fails: true }, { name: 'other' }, { name: 'third' }, { name: 'wide', wide: true });
  await assert.rejects(inTurns(works), /build failed/);
  await later();
  await later();
  assert.deepEqual(notes, ['build begins', 'other begins', 'other ends']);
});

test('a work that waits for one that does not exist is an error', async () => {
  await assert.rejects(inTurns([{ name: 'a', after: ['b'], run: later }]), /a waits for .*b/);
});
