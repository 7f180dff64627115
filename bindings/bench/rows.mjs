// Results as lines of text, for the terminal.

/** "native AVX2", "wasm relaxed", "firefox simd128" */
export const titleOf = ({ runner, simd }) => `${runner} ${simd}`;

/** "1 thread", "2 threads" */
export const threadsText = (threads) => `${threads} thread${threads > 1 ? 's' : ''}`;

/** A number with `digits` after the point. */
export const short = (value, digits = 1) => (value === undefined ? '' : value.toFixed(digits));
/** A number with at least three significant figures. */
export const time = (us) => (us === undefined ? '' : us < 100 ? us.toPrecision(3) : us.toFixed(0));
const tiny = (value) => (value === undefined ? '' : value.toExponential(1));

const COLUMNS = [
  ['us', 9, ({ us }) => time(us)],
  ['cold us', 9, ({ cold_us: us }) => time(us)],
  ['GFLOPS', 7, ({ GFLOPS }) => short(GFLOPS)],
  ['% peak', 7, ({ pct_peak: share }) => short(share)],
  ['GB/s', 6, ({ GBps }) => short(GBps)],
  ['% stream', 9, ({ pct_stream: share }) => short(share)],
  ['kB', 6, ({ scratch_kB: kB }) => short(kB, 0)],
  ['err', 8, ({ err }) => tiny(err)],
];
const NAME_WIDTH = 44;

export function machineLine(machine) {
  const { cpu, compiler, engine, threads, load, fma_peak: peak, read_stream: one, read_stream_all: all } = machine;
  const made = [cpu, compiler, engine, threadsText(threads)].filter(Boolean).join(', ');
  const streams = `read stream ${short(one)} GB/s${all ? ` (all threads ${short(all)})` : ''}`;
  // Show the load average, because surprising results are most often caused by other programs.
  const busy = load > 0.5 ? `; load average ${short(load)}` : '';
  return `${titleOf(machine)}: ${made}; FMA peak ${short(peak)} GFLOP/s a thread, ${streams}${busy}`;
}

const line = (name, cells, peers) =>
  `${name.padEnd(NAME_WIDTH)}${cells.map((cell, at) => cell.padStart(COLUMNS[at][1])).join('')}  ${peers}`.trimEnd();

export const header = () =>
  line(
    'name',
    COLUMNS.map(([title]) => title),
    'peers: times as long as ours',
  );

/** Returns "eigen 2.1×", or why the peer failed. Reports a difference that is too large for rounding. */
function peerText([name, { ratio, diff, note, message }]) {
  if (message) return `${name}: ${message}`;
  return `${name} ${ratio.toFixed(2)}×${note ? ` (${note})` : ''}${diff < 1e-4 ? '' : ` DIFFERS BY ${tiny(diff)}`}`;
}

export function row(benchmark) {
  if (benchmark.message) return `${benchmark.name.padEnd(NAME_WIDTH)} ${benchmark.message}`;
  const cells = COLUMNS.map(([, , text]) => text(benchmark));
  const spread = benchmark.pages ? [`${time(benchmark.least_us)} to ${time(benchmark.most_us)} us in ${benchmark.pages} pages`] : [];
  return line(benchmark.name, cells, [...spread, ...Object.entries(benchmark.peers).map(peerText)].join(', '));
}
