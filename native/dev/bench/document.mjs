// The format of all results: { runs: [{ machine, benchmarks }] }. A test and `--from` check files against it.

const NUMBERS = {
  machine: ['threads', 'fma_peak', 'read_stream', 'read_stream_all', 'wasmBytes', 'load'],
  benchmark: ['us', 'cold_us', 'GFLOPS', 'pct_peak', 'GBps', 'pct_stream', 'err', 'scratch_kB', 'least_us', 'most_us', 'pages'],
  peer: ['us', 'GFLOPS', 'ratio', 'diff'],
};
const TEXTS = {
  machine: ['runner', 'cpu', 'compiler', 'engine', 'simd', 'date'],
  benchmark: ['name', 'message'],
  peer: ['message', 'note'],
};
const NEEDED = {
  machine: ['runner', 'simd', 'threads', 'fma_peak', 'read_stream'],
  benchmark: ['name', 'peers'],
  peer: [],
};
const OWN = { machine: [], benchmark: ['peers'], peer: [] };

/** Lists everything that is wrong with an object of kind `kind`. */
function complaintsAbout(kind, object, where) {
  const complaints = [];
  for (const name of NEEDED[kind]) if (!(name in object)) complaints.push(`${where}: ${name} is missing`);
  for (const [name, value] of Object.entries(object)) {
    if (OWN[kind].includes(name)) continue;
    const expected = NUMBERS[kind].includes(name) ? 'number' : TEXTS[kind].includes(name) ? 'string' : null;
    if (!expected) complaints.push(`${where}: ${name} is unknown`);
    else if (typeof value !== expected) complaints.push(`${where}: ${name}: expected a ${expected}, got ${value}`);
  }
  return complaints;
}

/** @returns {string[]} the problems of a document; empty if there are none */
export function complaintsOf(document) {
  if (!Array.isArray(document?.runs)) return ['runs: expected a list'];
  return document.runs.flatMap(({ machine = {}, benchmarks = [] }, run) => [
    ...complaintsAbout('machine', machine, `runs[${run}].machine`),
    ...benchmarks.flatMap((benchmark) => [
      ...complaintsAbout('benchmark', benchmark, benchmark.name),
      ...(benchmark.message || benchmark.us ? [] : [`${benchmark.name}: us is missing`]),
      ...Object.entries(benchmark.peers ?? {}).flatMap(([name, peer]) => [
        ...complaintsAbout('peer', peer, `${benchmark.name}, ${name}`),
        ...(peer.message || peer.us ? [] : [`${benchmark.name}, ${name}: us is missing`]),
      ]),
    ]),
  ]);
}

/** "native AVX2", "wasm relaxed", "firefox simd128" */
export const titleOf = ({ runner, simd }) => `${runner} ${simd}`;

/** "1 thread", "2 threads" */
export const threadsText = (threads) => `${threads} thread${threads > 1 ? 's' : ''}`;

export const threadsOf = (name) => Number(/threads:(\d+)$/.exec(name)?.[1] ?? 1);

/** The peers of all benchmarks, in order of appearance. */
export const peersOf = (benchmarks) => [...new Set(benchmarks.flatMap(({ peers }) => Object.keys(peers)))];
