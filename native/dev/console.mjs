// Runs commands and reports on them: one line per step, and failures with advice.
import { AsyncLocalStorage } from 'node:async_hooks';
import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { readFile, rm } from 'node:fs/promises';

/** A failure that the user can fix; printed without a stack trace. */
export class SetupError extends Error {
  /** @param {string} message what went wrong @param {string} [advice] one sentence on what to do */
  constructor(message, advice) {
    super(message);
    this.advice = advice;
  }
}

/** Invalid arguments: exit code 2, as in the native programs. */
export class UsageError extends SetupError {
  exitCode = 2;
}

// console.log() does not report write errors. EPIPE is not an error: the reader closed the pipe.
let lost = null;
process.stdout.on('error', (error) => (lost = lost ?? error));
process.on('exit', () => {
  if (!lost || lost.code === 'EPIPE') return;
  process.exitCode = 3;
  console.error(`standard output: ${lost.message}`);
});

/** Kernel's ticks a second in /proc, on every processor that Linux has. */
const TICKS = 100;

/**
 * Processor time in core-seconds, user and system: of this program, and of the commands that have ended with all that they
 * waited for. Unlike the time on the clock, it is about the same on a busy machine. null where there is no /proc.
 */
function processorTime() {
  try {
    const [user, system, ...ofChildren] = readFileSync('/proc/self/stat', 'utf8')
      .replace(/^.*\) /s, '')
      .split(' ')
      .slice(11, 15)
      .map((ticks) => Number(ticks) / TICKS);
    return { own: user + system, children: ofChildren[0] + ofChildren[1] };
  } catch {
    return null;
  }
}

/** Core-seconds since this program began, such as "1234 core-seconds"; "" where they are not known. */
export function coreSeconds() {
  const used = processorTime();
  return used === null ? '' : `${(used.own + used.children).toFixed(0)} core-seconds`;
}

/** The core-seconds of the commands that ended, by step: commands end one after the other. */
const stepOf = new AsyncLocalStorage();
let counted = 0;
function countProcessorTime() {
  const children = processorTime()?.children ?? 0;
  const step = stepOf.getStore();
  if (step) step.used += children - counted;
  counted = children;
}

const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;
const shown = (command) => command.map((part) => (/[\s'"$]/.test(part) ? JSON.stringify(part) : part)).join(' ');

// Every command gets its own process group. So stopping this program also stops the processes that a command started,
// and Ctrl-C reaches only this program, not a package manager in the middle of its work.
const ownGroup = process.platform !== 'win32';
const children = new Set(); // the commands to stop when this program ends
export const stopCommand = ({ pid }) => signalTo(ownGroup ? -pid : pid, 'SIGKILL');
export const stopCommands = () => children.forEach(stopCommand);
const stop = (signal) => {
  clearLine();
  console.error('Stopped. Run this again: it continues where it stopped.');
  process.exit(signal === 'SIGINT' ? 130 : 143); // the exit handler calls stopCommands
};

// Install signal handlers only while commands run, because a program that uses this module may have its own.
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
    return error.code === 'EPERM'; // EPERM: it exists, but belongs to another user
  }
}

export const isRunning = (pid) => pid > 0 && signalTo(pid, 0);

/** The running steps, by name: when each began, and how far it has come. */
const running = new Map();
/** Milliseconds after which a program that prints into a file says what runs. A terminal shows it all the time. */
const MOST_SILENCE = 15e3;
let ticker;
let lastLine = 0;

const nowRunning = () => [...running].map(([name, { start, done }]) => `${name} (${done && `${done}, `}${seconds(start)})`).join(', ');

function redraw() {
  if (!process.stdout.isTTY) return;
  const names = nowRunning();
  process.stdout.write(`\r\x1b[K${names && `… ${names}`.slice(0, (process.stdout.columns || 80) - 1)}`);
}

function tick() {
  if (process.stdout.isTTY) redraw();
  else if (running.size && performance.now() - lastLine >= MOST_SILENCE) say(`  … ${nowRunning()}`);
}

/** Clears the line that `redraw` printed, so that other output starts on an empty line. */
export function clearLine() {
  if (process.stdout.isTTY) process.stdout.write('\r\x1b[K');
}

export function say(line) {
  lastLine = performance.now();
  clearLine();
  console.log(line);
  redraw();
}

/**
 * Runs one step and prints one line for it: its name, the detail that `work` passes to `tell`, its seconds.
 * @template T
 * @param {string} name
 * @param {(tell: (detail: string) => void, progress: (done: string) => void) => Promise<T> | T} work `progress` sets
 *   what is shown while the step runs
 * @returns {Promise<T>}
 */
export async function step(name, work) {
  const start = performance.now();
  let detail = '';
  const state = { start, done: '', used: 0 };
  running.set(name, state);
  ticker = ticker ?? setInterval(tick, 500).unref(); // not ??=, so that an old Node.js can parse this
  try {
    const result = await stepOf.run(state, () =>
      work(
        (text) => (detail = text),
        (done) => (state.done = done),
      ),
    );
    running.delete(name);
    const used = state.used >= 1 ? `, ${state.used.toFixed(0)} core-seconds` : '';
    say(`  ${name.padEnd(24)} ${detail.padEnd(46)} ${seconds(start).padStart(7)}${used}`);
    return result;
  } catch (error) {
    running.delete(name);
    detail = error.stopped ? 'stopped' : 'failed';
    say(`  ${name.padEnd(24)} ${detail.padEnd(46)} ${seconds(start).padStart(7)}`);
    throw error;
  }
}

/** Prints a failure and its advice. */
export function reportFailure(error) {
  clearLine();
  if (!(error instanceof SetupError)) return console.error(error);
  console.error(`\n${error.message}`);
  if (error.advice) console.error(`\n${error.advice}`);
}

/** Waits for a command that a killed run left running, because two commands would disturb each other. */
async function waitForLeftBehind(pidFile) {
  const pid = Number(await readFile(pidFile, 'utf8').catch(() => 0));
  const patience = performance.now() + 120e3; // by then the process id may have been reused
  while (isRunning(pid) && performance.now() < patience) await new Promise((resolve) => setTimeout(resolve, 200));
}

/**
 * Starts a command, in a process group of its own except on Windows. Runs no shell, which would split paths at spaces.
 * Only the interpreter of commands can run a batch file of Windows, such as emcc.bat; it gets the parts in quotation marks.
 */
export function start([program, ...args], options) {
  const group = { detached: ownGroup, ...options };
  if (!/\.(bat|cmd)$/i.test(program)) return spawn(program, args, group);
  const line = [program, ...args].map((part) => `"${part}"`).join(' ');
  return spawn(process.env.ComSpec ?? 'cmd.exe', ['/d', '/s', '/c', `"${line}"`], { ...group, windowsVerbatimArguments: true });
}

/**
 * Runs a command and returns its output (both streams); throws a SetupError with its last lines.
 * @param {string[]} command
 * @param {object} [options]
 * @param {string} [options.cwd]
 * @param {NodeJS.ProcessEnv} [options.env]
 * @param {boolean} [options.detached] false: in this program's process group, and with its terminal
 * @param {string} [options.advice] what to do if it fails
 * @param {string} [options.pidFile] file for its process id, so that a later run of the same step can wait for it
 * @param {boolean} [options.mayOutliveUs] true: not stopped with this program; for package managers
 * @param {(text: string) => void} [options.onOutput] called with each part of the output
 */
export async function run([program, ...args], { advice, pidFile, mayOutliveUs, onOutput, ...options } = {}) {
  if (pidFile) await waitForLeftBehind(pidFile);
  let output = '';
  const code = await new Promise((resolve) => {
    const child = start([program, ...args], { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
    if (pidFile && child.pid) writeFileSync(pidFile, String(child.pid));
    if (!mayOutliveUs) watch(child);
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        output += text;
        onOutput?.(text);
      });
    }
    child.on('error', (error) => resolve(error.code));
    child.on('close', (status, signal) => {
      unwatch(child);
      countProcessorTime();
      resolve(status ?? signal);
    });
  });
  if (pidFile) await rm(pidFile, { force: true });
  if (code === 0) return output;
  if (code === 'ENOENT') throw new SetupError(`${program} was not found`, `Install ${program}, then run this again.`);
  const said = output.trimEnd().split('\n').slice(-20).join('\n');
  const error = new SetupError(`${shown([program, ...args])}\nended with ${code}${said && `:\n${said}`}`, advice);
  error.output = output; // the whole output
  error.stopped = code === 'SIGKILL'; // most likely stopped by stopCommands
  throw error;
}

/** Runs a command like `run`, but returns null if it is missing or fails: for queries. */
export async function ask(command, options = {}) {
  try {
    return (await run(command, options)).trim();
  } catch {
    return null;
  }
}
