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

const KEPT = ['us', 'cold_us', 'GFLOPS', 'pct_peak', 'GBps', 'pct_stream', 'err', 'scratch_kB'];

/** Converts a result of Google Benchmark to this project's format. */
export function benchmarkFrom(result) {
  if (result.error_occurred) return { name: result.name, peers: {}, message: result.error_message };
  const own = Object.fromEntries(KEPT.filter((key) => key in result).map((key) => [key, result[key]]));
  const peer = (name) => ['us', 'GFLOPS', 'ratio', 'diff'].map((key) => [key, result[`${name}_${key}`]]);
  const there = ['eigen', 'openblas'].filter((name) => result[`${name}_us`]);
  return {
    name: result.name,
    ...own,
    peers: Object.fromEntries(there.map((name) => [name, Object.fromEntries(peer(name))])),
  };
}

export function machineFrom(context) {
  return {
    runner: 'native',
    compiler: context.compiler,
    simd: context.simd_target,
    threads: Number(context.threads),
    fma_peak: Number(context.fma_peak_gflops_per_thread),
    read_stream: Number(context.read_stream_gbps_one_thread),
    read_stream_all: Number(context.read_stream_gbps_all_threads),
  };
}

/** Parses Google Benchmark's JSON while it is written. Each of its objects is on separate lines. */
export async function* eventsFrom(lines) {
  let object = null;
  for await (const line of lines) {
    if (/^ {2}"context": \{$/.test(line) || /^ {4}\{$/.test(line)) object = ['{'];
    else if (object && /^ {2,4}\},?$/.test(line)) {
      const parsed = JSON.parse([...object, '}'].join('\n'));
      object = null;
      yield 'name' in parsed ? { benchmark: benchmarkFrom(parsed) } : { machine: machineFrom(parsed) };
    } else object?.push(line);
  }
}

export const nativeCommand = ({ filter, target }) => [
  NATIVE_PROGRAM,
  '--benchmark_format=json',
  `--benchmark_filter=${filter || '.'}`,
  ...(target ? [`--target=${target}`] : []),
];

export async function* nativeRun(options) {
  yield* eventsFrom(linesOf(nativeCommand(options)));
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
  for await (const line of linesOf(command)) yield JSON.parse(line);
}
