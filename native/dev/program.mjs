// What the scripts share that are both a program and a module.
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { reportFailure } from './console.mjs';

/** Calls `main` with the command line if `url` is the file that Node was started with; a failure sets the exit code. */
export function runAsProgram(url, main) {
  if (!process.argv[1] || url !== pathToFileURL(resolve(process.argv[1])).href) return;
  main(...process.argv.slice(2)).catch((error) => {
    reportFailure(error);
    process.exitCode = 1;
  });
}
