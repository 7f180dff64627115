// TypeScript and scripts: oxlint for mistakes (.oxlintrc.json), oxfmt for their form (.oxfmtrc.json), knip for files and exports that
// nothing uses (knip.json). None of them needs a network.
//
//   node --test tests/native/lint.test.mjs

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { test } from 'node:test';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** Runs a program of an npm package in the root. Fails with the program's output. */
async function passes(file, ...args) {
  const program = join(root, 'node_modules', file);
  const said = await new Promise((done) => {
    execFile(process.execPath, [program, ...args], { cwd: root }, (error, stdout, stderr) =>
      done(error ? `${stdout}${stderr}` || String(error) : ''),
    );
  });
  assert.equal(said, '', `${dirname(file)} ${args.join(' ')}`);
}

test('oxlint finds no mistake', () => passes('oxlint/bin/oxlint', '--deny-warnings', '--format', 'unix', '.'));

test('every file is formatted as `npm run format` does it', () => passes('oxfmt/bin/oxfmt', '--list-different', '.'));

test('every file and every export is used', () => passes('knip/bin/knip.js', '--no-progress', '--no-config-hints'));
