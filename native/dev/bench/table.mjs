// Results as text for the terminal, and as Markdown.
import { peersOf, threadsOf, threadsText, titleOf } from './document.mjs';

const short = (value, digits = 1) => (value === undefined ? '' : value.toFixed(digits));
/** A number with at least three significant figures. */
const time = (us) => (us === undefined ? '' : us < 100 ? us.toPrecision(3) : us.toFixed(0));
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

const markdownTable = (titles, rows) =>
  [titles, titles.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');

const withoutThreads = (name) => name.replace(/\/threads:\d+$/, '');
const milliseconds = (us) => short(us / 1000, us < 10_000 ? 1 : 0);
function rate({ us, least_us: least, most_us: most, pages, GFLOPS, pct_peak: peak, GBps, pct_stream: stream }) {
  if (pages) return `${milliseconds(us)} ms (${milliseconds(least)} to ${milliseconds(most)})`;
  if (GBps) return `${short(GBps)} GB/s (${short(stream, 0)} %)`;
  return `${short(GFLOPS, GFLOPS < 10 ? 1 : 0)} (${short(peak, 0)} %)`;
}

/** A row per benchmark, a column per run and number of threads. */
function ratesTable(runs) {
  const columns = runs.flatMap(({ machine, benchmarks }) =>
    [...new Set(benchmarks.map(({ name }) => threadsOf(name)))].map((threads) => ({
      title: [titleOf(machine), machine.engine?.split(',', 1)[0], machine.threads > 1 && threadsText(threads)]
        .filter(Boolean)
        .join(', '),
      find: (name) => benchmarks.find((one) => one.name === `${name}/threads:${threads}`),
    })),
  );
  const names = [...new Set(runs.flatMap(({ benchmarks }) => benchmarks.map(({ name }) => withoutThreads(name))))];
  const cell = (benchmark) => (!benchmark ? '–' : benchmark.message ? benchmark.message : rate(benchmark));
  return markdownTable(
    ['benchmark', ...columns.map(({ title }) => title)],
    names.map((name) => [`\`${name}\``, ...columns.map(({ find }) => cell(find(name)))]),
  );
}

/** A row per benchmark with peers: both times, and the peer's time divided by multihead's. */
function peersTable({ machine, benchmarks }) {
  const peers = peersOf(benchmarks);
  const compared = benchmarks.filter((benchmark) => Object.keys(benchmark.peers).length);
  if (!compared.length) return '';
  const cell = (peer) => {
    if (!peer) return '–';
    return peer.message ?? `${time(peer.us)} (${peer.ratio.toFixed(2)}×)${peer.note ? ` ${peer.note}` : ''}`;
  };
  const rows = compared.map((benchmark) => [
    `\`${benchmark.name}\``,
    time(benchmark.us),
    ...peers.map((name) => cell(benchmark.peers[name])),
  ]);
  const title = `µs a call, ${titleOf(machine)}; in brackets, times as long as ours`;
  return `\n\n${title}\n\n${markdownTable(['benchmark', 'ours', ...peers], rows)}`;
}

/** All runs in one table, and a table per run with its peers. */
export function markdown({ runs }) {
  const machines = runs.map(({ machine }) => `- ${machineLine(machine)}`).join('\n');
  return `${machines}\n\n${ratesTable(runs)}${runs.map(peersTable).join('')}\n`;
}
