// `npm run train -- four-jobs --heads 4`: builds multihead-train and runs it with these arguments; --help lists them.
import { spawn } from 'node:child_process';
import { dirname, join } from 'node:path';
import { NATIVE_PROGRAM } from './bench/programs.mjs';
import { buildPreset } from './build.mjs';
import { runAsProgram } from './program.mjs';
import { setup } from './setup.mjs';

runAsProgram(import.meta.url, async (...args) => {
  await setup({ purpose: 'test' });
  await buildPreset('native', { target: 'multihead-train' });
  // Ctrl-C reaches both processes. This script ignores it, because multihead-train ends by itself after its step.
  process.on('SIGINT', () => {});
  const child = spawn(join(dirname(NATIVE_PROGRAM), 'multihead-train'), args, { stdio: 'inherit' });
  process.exitCode = await new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (status) => resolve(status ?? 1));
  });
});
