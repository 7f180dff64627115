// Helpers for scripts that are both run and imported.
import { existsSync, realpathSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { reportFailure } from './console.mjs';
import { findProgram } from './find.mjs';

/**
 * Runs `main` with the command line if `url` is the script that Node was started with. A failure sets the exit code.
 */
export function runAsProgram(url, main) {
  const started = process.argv[1]; // may be a symbolic link
  if (!started || !existsSync(started) || url !== pathToFileURL(realpathSync(started)).href) return;
  main(...process.argv.slice(2)).catch((error) => {
    reportFailure(error);
    process.exitCode = error.exitCode ?? 1;
  });
}

/**
 * The program and first arguments that run npm: Node with npm's script, which is the one that started us, Node's own, or the
 * one on the PATH. Without a script, as with Volta, the program on the PATH.
 */
export function npmProgram() {
  const beside = (folder) => join(folder, 'node_modules', 'npm', 'bin', 'npm-cli.js');
  const bin = dirname(process.execPath);
  const found = findProgram('npm');
  const onPath = found ? [beside(dirname(found)), realpathSync(found)] : [];
  const scripts = [process.env.npm_execpath ?? '', beside(bin), beside(join(bin, '..', 'lib')), ...onPath];
  const script = scripts.find((path) => path.endsWith('npm-cli.js') && existsSync(path));
  return script ? [process.execPath, script] : [found ?? 'npm'];
}
