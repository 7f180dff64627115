// Running commands and reporting on them: one line per step, and a failure that can be acted on.
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';

/** A failure that the person at the terminal can do something about; shown without a stack. */
export class SetupError extends Error {
  /** @param {string} message what went wrong @param {string} [advice] one sentence on what to do */
  constructor(message, advice) {
    super(message);
    this.advice = advice;
  }
}

/** Arguments that make no sense: 2, as with the native programs. */
export class UsageError extends SetupError {
  exitCode = 2;
}

// console.log() says nothing of what it could not write. A reader that has seen enough is no loss.
let lost = null;
process.stdout.on('error', (error) => (lost = lost ?? error));
process.on('exit', () => {
  if (!lost || lost.code === 'EPIPE') return;
  process.exitCode = 3;
  console.error(`standard output: ${lost.message}`);
});

const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;
const shown = (command) => command.map((part) => (/[\s'"$]/.test(part) ? JSON.stringify(part) : part)).join(' ');

// Commands get a process group each, so that stopping us ends what they started, too; and so that Ctrl-C reaches us
// only, and not a package manager in the middle of its work.
const ownGroup = process.platform !== 'win32';
const children = new Set(); // the ones that end with us
export const stopCommands = () => children.forEach(({ pid }) => signalTo(ownGroup ? -pid : pid, 'SIGKILL'));
const stop = (signal) => {
  clearLine();
  console.error('Stopped. Run this again: it continues where it stopped.');
  process.exit(signal === 'SIGINT' ? 130 : 143); // which calls stopCommands
};

// Listens only while commands run: a program that uses this module has signals of its own to handle.
function watch(child) {
  if (children.size === 0) process.on('exit', stopCommands).on('SIGINT', stop).on('SIGTERM', stop);
  children.add(child);
}

function unwatch(child) {
  if (!children.delete(child) || children.size > 0) return;
  process.off('exit', stopCommands).off('SIGINT', stop).off('SIGTERM', stop);
}

function signalTo(pid, signal) {
  try {
    return process.kill(pid, signal);
  } catch (error) {
    return error.code === 'EPERM'; // there, and another user's
  }
}

export const isRunning = (pid) => pid > 0 && signalTo(pid, 0);

const running = new Map(); // the steps under way, by name, with their start: shown on terminals only
let ticker;

function redraw() {
  if (!process.stdout.isTTY) return;
  const names = [...running].map(([name, start]) => `${name} (${seconds(start)})`).join(', ');
  process.stdout.write(`\r\x1b[K${names && `… ${names}`.slice(0, (process.stdout.columns || 80) - 1)}`);
}

/** Clears what `redraw` shows, so that other output starts on an empty line. */
export function clearLine() {
  if (process.stdout.isTTY) process.stdout.write('\r\x1b[K');
}

export function say(line) {
  clearLine();
  console.log(line);
  redraw();
}

/**
 * Does one step and prints one line for it: its name, what `work` says it did, its seconds.
 * @template T
 * @param {string} name
 * @param {(tell: (detail: string) => void) => Promise<T> | T} work
 * @returns {Promise<T>}
 */
export async function step(name, work) {
  const start = performance.now();
  let detail = '';
  running.set(name, start);
  if (!ticker && process.stdout.isTTY) ticker = setInterval(redraw, 500).unref();
  try {
    const result = await work((text) => (detail = text));
    running.delete(name);
    say(`  ${name.padEnd(24)} ${detail.padEnd(46)} ${seconds(start).padStart(7)}`);
    return result;
  } catch (error) {
    running.delete(name);
    detail = error.stopped ? 'stopped' : 'failed';
    say(`  ${name.padEnd(24)} ${detail.padEnd(46)} ${seconds(start).padStart(7)}`);
    throw error;
  }
}

/** Prints a failure the way a person wants to read it. */
export function reportFailure(error) {
  clearLine();
  if (!(error instanceof SetupError)) return console.error(error);
  console.error(`\n${error.message}`);
  if (error.advice) console.error(`\n${error.advice}`);
}

/** Waits for the command that a killed run left behind: two at the same work would disturb each other. */
async function waitForLeftBehind(pidFile) {
  const pid = Number(await readFile(pidFile, 'utf8').catch(() => 0));
  const patience = performance.now() + 120e3; // by then the number may be another process's
  while (isRunning(pid) && performance.now() < patience) await new Promise((resolve) => setTimeout(resolve, 200));
}

/**
 * Runs a command to its end and returns what it printed (both streams); throws a SetupError with its last lines.
 * @param {string[]} command
 * @param {object} [options]
 * @param {string} [options.cwd]
 * @param {NodeJS.ProcessEnv} [options.env]
 * @param {boolean} [options.shell]
 * @param {boolean} [options.detached] false: in our process group, and with our terminal
 * @param {string} [options.advice] what to do when it fails
 * @param {string} [options.pidFile] where its process id is kept, for a later run of the same to wait for
 * @param {boolean} [options.mayOutliveUs] whether it goes on when we are stopped, as a package manager had better do
 */
export async function run([program, ...args], { advice, pidFile, mayOutliveUs, ...options } = {}) {
  if (pidFile) await waitForLeftBehind(pidFile);
  let output = '';
  const code = await new Promise((resolve) => {
    const child = spawn(program, args, { detached: ownGroup, ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    if (pidFile && child.pid) writeFileSync(pidFile, String(child.pid));
    if (!mayOutliveUs) watch(child);
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text) => (output += text));
    child.on('error', (error) => resolve(error.code));
    child.on('close', (status, signal) => {
      unwatch(child);
      resolve(status ?? signal);
    });
  });
  if (pidFile) await rm(pidFile, { force: true });
  if (code === 0) return output;
  if (code === 'ENOENT') throw new SetupError(`${program} was not found`, `Install ${program}, then run this again.`);
  const said = output.trimEnd().split('\n').slice(-20).join('\n');
  const error = new SetupError(`${shown([program, ...args])}\nended with ${code}${said && `:\n${said}`}`, advice);
  error.output = output; // all of it, for who wants more
  error.stopped = code === 'SIGKILL'; // most likely by stopCommands
  throw error;
}

/** Like `run`, but gives null where the command is missing or fails: for asking, not for doing. */
export async function ask(command, options = {}) {
  try {
    return (await run(command, options)).trim();
  } catch {
    return null;
  }
}
