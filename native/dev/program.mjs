// Helpers for scripts that are both run and imported.
import { existsSync, realpathSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { reportFailure } from './console.mjs';

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

/** The npm that started us, or the one on the PATH. */
export function npmProgram() {
  return process.env.npm_execpath?.endsWith('.js') ? [process.execPath, process.env.npm_execpath] : ['npm'];
}
