// Locks of the set-up.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { withLock } from '../../native/dev/files.mjs';

/** The process id of a program that has ended. */
const ended = spawnSync(process.execPath, ['--version']).pid;

/** Runs `work` in an empty folder with the lock of a set-up that was killed. */
async function withAbandoned(work, suffixes = ['']) {
  const folder = mkdtempSync(join(tmpdir(), 'multihead-lock-'));
  for (const suffix of suffixes) writeFileSync(join(folder, `.lock${suffix}`), String(ended));
  try {
    await work(folder);
    assert.deepEqual(fs.readdirSync(folder), [], 'no lock is left');
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('two set-ups that both find the lock of a killed one run one after the other', () =>
  withAbandoned(async (folder) => {
    const { rm } = fs.promises;
    let working = 0;
    let done = 0;
    let waits = false;
    let removals = 0;
    const until = async (holds) => {
      while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    // A second removal of the lock comes when the first waiter has its own.
    fs.promises.rm = async (path, options) => {
      if (path.endsWith('.lock') && (removals += 1) === 2) await until(() => working > 0 || done > 0);
      return rm(path, options);
    };
    syncBuiltinESMExports();
    const work = async () => {
      working += 1;
      assert.equal(working, 1, 'one works at a time');
      // The first works until the other waits, or wrongly works, too.
      await until(() => waits || working > 1 || done > 0);
      working -= 1;
      done += 1;
    };
    try {
      await Promise.all([withLock(folder, () => (waits = true), work), withLock(folder, () => (waits = true), work)]);
    } finally {
      fs.promises.rm = rm;
      syncBuiltinESMExports();
    }
    assert.equal(done, 2);
  }));

test('a set-up that was killed while it removed an abandoned lock keeps no other waiting', () =>
  withAbandoned(
    async (folder) => {
      assert.equal(
        await withLock(
          folder,
          () => assert.fail('waits'),
          () => 'done',
        ),
        'done',
      );
    },
    ['', '-removing'],
  ));

test('a set-up waits for one that runs, also if its work fails', async () => {
  await withAbandoned(async (folder) => {
    let told = 0;
    let ran = false;
    const failing = withLock(
      folder,
      () => {},
      async () => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        throw new Error('broken');
      },
    );
    const second = withLock(
      folder,
      () => (told += 1),
      async () => (ran = true),
    );
    await assert.rejects(failing, /broken/);
    await second;
    assert.ok(ran && told <= 1);
  });
});
