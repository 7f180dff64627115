// The peers that are separate programs: installs them on request, and times them alternately with multihead.
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { caseOf } from '../../../bindings/bench/cases.mjs';
import { largestDifference, median, peerRow } from '../../../bindings/bench/measure.mjs';
import { isOffered } from '../../../bindings/bench/peers/onnx_graphs.mjs';
import { operationsOf } from '../../../bindings/bench/work.mjs';
import { ROOT } from '../build.mjs';
import { run, step } from '../console.mjs';
import { npmProgram } from '../program.mjs';
import { buildFolder, completeFolder } from '../files.mjs';
import { threadsOf } from './document.mjs';
import { eventsOf, linesOf, nativeCommand } from './programs.mjs';

const FOLDER = join(ROOT, 'build', 'peers');
const VERSIONS = {
  'onnxruntime-node': '1.30.0',
  'onnxruntime-web': '1.30.0',
  '@tensorflow/tfjs-core': '4.22.0',
  '@tensorflow/tfjs-backend-wasm': '4.22.0',
};
const ROUNDS = 3;
const SECONDS_A_ROUND = 0.15;

/**
 * Installs these versions of the peers into build/peers, once; nothing else needs them.
 * @returns the folder
 */
export async function installPeers() {
  const packages = Object.entries(VERSIONS).map(([name, version]) => `${name}@${version}`);
  const recipe = packages.join(' ');
  await step('Peers', async (tell) => {
    if (completeFolder(FOLDER, recipe)) return tell('already there');
    tell('build/peers');
    // Run no install scripts: they would download GPU libraries, and the packages already contain the CPU's.
    await buildFolder(FOLDER, recipe, {}, (folder) =>
      run([...npmProgram(), 'install', '--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', ...packages], {
        cwd: folder,
        advice: `The peers come from the npm registry; without --peers nothing is downloaded.`,
      }),
    );
  });
  return FOLDER;
}

const floatsIn = async (file) => {
  const { buffer, byteOffset, length } = await readFile(file);
  return new Float32Array(buffer.slice(byteOffset, byteOffset + length));
};

async function outputOf(command) {
  let text = '';
  for await (const line of linesOf(command, { quiet: true })) text += line;
  return JSON.parse(text);
}

/** Runs multihead-bench once; returns microseconds per call. */
async function ourTurn(name, folder, { target }) {
  const exactly = nativeCommand({ filter: `^${name}$`, target });
  const how = ['--alone', `--benchmark_min_time=${SECONDS_A_ROUND}`, `--save=${folder}`];
  for await (const { benchmark } of eventsOf([...exactly, ...how], { quiet: true })) {
    if (benchmark?.message) throw new Error(benchmark.message);
    if (benchmark) return benchmark.us;
  }
}

/** Runs ONNX Runtime once; returns { us, way }, or { message }. */
const theirTurn = (name, folder, way) =>
  outputOf([
    process.execPath,
    join(ROOT, 'bindings', 'bench', 'peers', 'onnxruntime_node.mjs'),
    FOLDER,
    name,
    `--threads=${threadsOf(name)}`,
    `--seconds=${SECONDS_A_ROUND}`,
    `--save=${join(folder, 'theirs.f32')}`,
    ...(way ? [`--way=${way}`] : []),
  ]).catch((error) => ({ message: error.message.split('\n', 1)[0] })); // the program crashed

async function compared(name, which, folder, options) {
  const ours = [];
  const theirs = [];
  let way = null; // found in the first round
  for (let round = 0; round < ROUNDS; round += 1) {
    ours.push(await ourTurn(name, folder, options));
    const turn = await theirTurn(name, folder, way);
    if (turn.message) return { message: turn.message };
    theirs.push(turn.us);
    way = turn.way;
  }
  const [our, their] = [join(folder, `${name.replaceAll('/', '-')}.f32`), join(folder, 'theirs.f32')];
  const diff = largestDifference(await floatsIn(our), await floatsIn(their));
  const [seconds, ourSeconds] = [median(theirs) / 1e6, median(ours) / 1e6];
  return peerRow({ seconds, ours: ourSeconds, operations: operationsOf(which), diff, note: way });
}

/**
 * Adds ONNX Runtime to the results of multihead-bench. Both run alternately, in separate processes, because the waiting
 * threads of each spin and would take time from the other.
 */
export async function* nativePeers(benchmarks, options) {
  for (const benchmark of benchmarks) {
    const which = caseOf(benchmark.name);
    if (!which || !isOffered(which) || benchmark.message) continue;
    const folder = await mkdtemp(join(tmpdir(), 'multihead-bench-'));
    try {
      const onnxruntime = await compared(benchmark.name, which, folder, options);
      yield { ...benchmark, peers: { ...benchmark.peers, onnxruntime } };
    } finally {
      await rm(folder, { recursive: true });
    }
  }
}
