// Results as Markdown.
import { machineLine, short, threadsText, time, titleOf } from '../../../bindings/bench/rows.mjs';
import { peersOf, threadsOf } from './document.mjs';

const markdownTable = (titles, rows) => [titles, titles.map(() => '---'), ...rows].map((cells) => `| ${cells.join(' | ')} |`).join('\n');

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
      title: [titleOf(machine), machine.engine?.split(',', 1)[0], machine.threads > 1 && threadsText(threads)].filter(Boolean).join(', '),
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
  const rows = compared.map((benchmark) => [`\`${benchmark.name}\``, time(benchmark.us), ...peers.map((name) => cell(benchmark.peers[name]))]);
  const title = `µs a call, ${titleOf(machine)}; in brackets, times as long as ours`;
  return `\n\n${title}\n\n${markdownTable(['benchmark', 'ours', ...peers], rows)}`;
}

/** All runs in one table, and a table per run with its peers. */
export function markdown({ runs }) {
  const machines = runs.map(({ machine }) => `- ${machineLine(machine)}`).join('\n');
  return `${machines}\n\n${ratesTable(runs)}${runs.map(peersTable).join('')}\n`;
}
