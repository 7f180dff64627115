// The format of all results: { runs: [{ machine, benchmarks }] }. A test and `--from` check files against it.

const FIELDS = {
  machine: 'runner version cpu compiler engine simd date threads fma_peak read_stream read_stream_all wasmBytes load'.split(' '),
  benchmark: 'name message us cold_us GFLOPS pct_peak GBps pct_stream err scratch_kB least_us most_us pages peers'.split(' '),
  peer: 'us GFLOPS ratio diff message note'.split(' '),
};

function complaintsAbout(kind, object, where) {
  const unknown = Object.keys(object).filter((name) => !FIELDS[kind].includes(name));
  const isTimed = kind === 'machine' || object.message || object.us;
  return [...unknown.map((name) => `${where}: ${name} is unknown`), ...(isTimed ? [] : [`${where}: us is missing`])];
}

/** @returns {string[]} the problems of a document; empty if there are none */
export function complaintsOf(document) {
  if (!Array.isArray(document?.runs)) return ['runs: expected a list'];
  return document.runs.flatMap(({ machine = {}, benchmarks = [] }) => [
    ...complaintsAbout('machine', machine, 'machine'),
    ...benchmarks.flatMap((benchmark) => [
      ...complaintsAbout('benchmark', benchmark, benchmark.name),
      ...Object.entries(benchmark.peers ?? {}).flatMap(([name, peer]) => complaintsAbout('peer', peer, `${benchmark.name}, ${name}`)),
    ]),
  ]);
}

export const threadsOf = (name) => Number(/threads:(\d+)$/.exec(name)?.[1] ?? 1);

/** The peers of all benchmarks, in order of appearance. */
export const peersOf = (benchmarks) => [...new Set(benchmarks.flatMap(({ peers }) => Object.keys(peers)))];
