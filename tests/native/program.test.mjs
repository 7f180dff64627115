// Tests how the scripts start npm and batch files.

import assert from 'node:assert/strict';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { after, test } from 'node:test';
import { ask, run } from '../../native/dev/console.mjs';
import { npmProgram } from '../../native/dev/program.mjs';

const folder = mkdtempSync(join(tmpdir(), 'multihead program files '));
const before = { ...process.env };
const { execPath } = process;
after(() => rmSync(folder, { recursive: true }));

/** Runs `work` with these environment variables, and with this program as Node. */
async function inEnvironment({ node = execPath, ...variables }, work) {
  Object.assign(process.env, variables);
  process.execPath = node;
  try {
    return await work();
  } finally {
    process.execPath = execPath;
    for (const name of Object.keys(variables)) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
}

/** An npm-cli.js that prints its arguments as JSON, and the name `who`. */
function fakeNpm(path, who) {
  mkdirSync(join(path, '..'), { recursive: true });
  writeFileSync(path, `console.log(JSON.stringify([${JSON.stringify(who)}, ...process.argv.slice(2)]));`);
  return path;
}

test("npm runs from a folder with a space in its name: the one that started the script, Node's own, the one on the PATH", async () => {
  const words = ['ci', '--loglevel=error', 'a b'];
  const said = () => run([...npmProgram(), ...words]).then(JSON.parse);

  const starter = fakeNpm(join(folder, 'starter', 'npm-cli.js'), 'starter');
  assert.deepEqual(await inEnvironment({ npm_execpath: starter }, said), ['starter', ...words]);

  // Windows has node.exe, npm.cmd and node_modules in one folder.
  const nodes = join(folder, 'nodejs');
  fakeNpm(join(nodes, 'node_modules', 'npm', 'bin', 'npm-cli.js'), 'own');
  const node = join(nodes, 'node');
  symlinkSync(execPath, node);
  // Yarn and pnpm set npm_execpath to their own scripts.
  const yarn = fakeNpm(join(folder, 'yarn', 'yarn.js'), 'yarn');
  assert.deepEqual(await inEnvironment({ node, npm_execpath: yarn }, said), ['own', ...words]);

  const others = join(folder, 'manager');
  fakeNpm(join(others, 'node_modules', 'npm', 'bin', 'npm-cli.js'), 'path');
  writeFileSync(join(others, 'npm'), '#!/bin/sh\nexit 1\n');
  chmodSync(join(others, 'npm'), 0o755);
  const alone = join(folder, 'alone', 'node');
  mkdirSync(join(folder, 'alone'));
  symlinkSync(execPath, alone);
  const PATH = `${others}${delimiter}${process.env.PATH}`;
  assert.deepEqual(await inEnvironment({ node: alone, npm_execpath: '', PATH }, said), ['path', ...words]);
});

test(
  'a batch file gets its arguments from the interpreter of commands, each in quotation marks',
  { skip: process.platform === 'win32' && 'needs a program in place of cmd.exe' },
  async () => {
    const interpreter = join(folder, 'cmd.exe');
    writeFileSync(
      interpreter,
      `#!/bin/sh
printf '[%s]\\n' "$@"
`,
    );
    chmodSync(interpreter, 0o755);
    const emcc = 'C:\\Program Files\\emsdk\\emcc.bat';
    const said = await inEnvironment({ ComSpec: interpreter }, () => ask([emcc, '--version']));
    assert.deepEqual(said.split('\n'), ['[/d]', '[/s]', '[/c]', `[""${emcc}" "--version""]`]);
  },
);
