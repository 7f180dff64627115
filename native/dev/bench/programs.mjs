// The benchmark programs as streams of events: first { machine }, then each { benchmark }.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { join } from 'node:path';
import { ROOT } from '../build.mjs';
import { SetupError } from '../console.mjs';

export const NATIVE_PROGRAM = join(ROOT, 'build', 'native', 'native', 'multihead-bench');
const WASM_PROGRAM = join(ROOT, 'bindings', 'bench', 'node.mjs');
const RELAXED_FLAG = '--experimental-wasm-relaxed-simd'; // Node 20 and 21 need it, later versions refuse it

/** Yields the lines that a command prints; throws if it fails. Its errors go to the terminal. */
export async function* linesOf([program, ...args], { quiet = false } = {}) {
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', quiet ? 'pipe' : 'inherit'] });
  let complaint = '';
  child.stderr?.on('data', (text) => (complaint += text));
  const ended = new Promise((resolve) => {
    child.on('error', (error) => resolve(error.code));
    child.on('close', (status, signal) => resolve(status ?? signal));
  });
  try {
    yield* createInterface({ input: child.stdout });
    const code = await ended;
    if (code !== 0) throw new SetupError(`${program} ended with ${code}${complaint && `: ${complaint.trim()}`}`);
  } finally {
    child.kill(); // for a caller that stopped reading early
  }
}

export const nativeCommand = ({ filter, target }) => [
  NATIVE_PROGRAM,
  '--events',
  `--benchmark_filter=${filter || '.'}`,
  ...(target ? [`--target=${target}`] : []),
];

/** The events of a program that prints each as a line of JSON. */
export async function* eventsOf(command, how) {
  for await (const line of linesOf(command, how)) yield JSON.parse(line);
}

export async function* nativeRun(options) {
  yield* eventsOf(nativeCommand(options));
}

/** The flags that a version of Node needs. */
async function relaxedFlags(node) {
  let version = '';
  for await (const line of linesOf([node, '--version'])) version += line;
  return parseInt(version.slice(1), 10) < 22 ? [RELAXED_FLAG] : [];
}

export async function* wasmRun({ simd, filter, node = process.execPath, peersFolder, workers }) {
  const flags = await relaxedFlags(node);
  const peers = peersFolder ? [`--peers=${peersFolder}`] : [];
  const pools = workers ? [`--workers=${workers}`] : [];
  const command = [node, ...flags, WASM_PROGRAM, `--simd=${simd}`, `--filter=${filter}`, ...peers, ...pools];
  yield* eventsOf(command);
}
