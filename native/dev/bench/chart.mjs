// Results as an SVG of horizontal bars, with a panel per run, number of threads and unit. A line marks the machine's
// limit.
import { threadsText, titleOf } from '../../../bindings/bench/rows.mjs';
import { peersOf, threadsOf } from './document.mjs';

const WIDTH = 980;
const LEFT = 250; // where the bars begin; names are to the left
const RIGHT = 90; // space to the right of the bars, for figures
const BAR = 13;
const GROUP_GAP = 9;
const PANEL = { title: 44, axis: 46 };
// The palette of Okabe and Ito, which color-blind readers can distinguish; multihead's color comes first.
const COLORS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#d55e00'];

const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

const text = (x, y, content, attributes = '') => `<text x="${x}" y="${y}" ${attributes}>${escaped(content)}</text>`;
const rectangle = (x, y, width, height, fill) => `<rect x="${x}" y="${y}" width="${width.toFixed(1)}" height="${height}" fill="${fill}"/>`;
const vertical = (x, top, bottom, stroke) => `<line x1="${x}" y1="${top}" x2="${x}" y2="${bottom}" ${stroke}/>`;

/** Returns 0 and round numbers, up to the first that is at least `largest`. */
export function ticks(largest) {
  const rough = largest / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  return Array.from({ length: Math.ceil(largest / step - 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

/** The panels of a run: { title, unit, limit, groups: [{ name, bars: [{ series, value }] }] } */
function panelsOf({ machine, benchmarks }) {
  const measured = benchmarks.filter(({ message, GFLOPS }) => !message && GFLOPS !== undefined);
  const units = [
    {
      unit: 'GFLOP/s',
      of: ({ GBps }) => !GBps,
      value: 'GFLOPS',
      limit: (threads) => machine.fma_peak * threads,
      called: 'FMA peak',
    },
    {
      unit: 'GB/s of keys and values',
      of: ({ GBps }) => GBps,
      value: 'GBps',
      limit: (threads) => (threads > 1 ? machine.read_stream_all : machine.read_stream),
      called: 'read stream',
    },
  ];
  const threadCounts = [...new Set(measured.map(({ name }) => threadsOf(name)))];
  return threadCounts.flatMap((threads) =>
    units.flatMap(({ unit, of, value, limit, called }) => {
      const shown = measured.filter((benchmark) => of(benchmark) && threadsOf(benchmark.name) === threads);
      if (!shown.length) return [];
      const groups = shown.map((benchmark) => ({
        name: benchmark.name.replace(/\/threads:\d+$/, ''),
        bars: [
          { series: 'multihead', value: benchmark[value] },
          // Divide multihead's rate by the ratio of times to get a peer's rate, so that both were measured alternately.
          ...Object.entries(benchmark.peers)
            .filter(([, { ratio }]) => ratio)
            .map(([series, { ratio }]) => ({ series, value: benchmark[value] / ratio })),
        ],
      }));
      const title = [titleOf(machine), threadsText(threads), machine.engine].filter(Boolean).join(', ');
      return [{ title, unit, called, limit: limit(threads), groups }];
    }),
  );
}

const heightOf = ({ groups }) => PANEL.title + PANEL.axis + groups.reduce((sum, { bars }) => sum + bars.length * BAR + GROUP_GAP, 0);

function panel({ title, unit, called, limit, groups }, top, colorOf) {
  const values = groups.flatMap(({ bars }) => bars.map(({ value }) => value));
  const marks = ticks(Math.max(limit, ...values));
  const x = (value) => LEFT + ((WIDTH - LEFT - RIGHT) * value) / marks.at(-1);
  const bottom = top + heightOf({ groups }) - PANEL.axis;
  const parts = [text(16, top + 22, title, 'font-size="15" font-weight="600"')];
  for (const mark of marks) {
    parts.push(vertical(x(mark).toFixed(1), top + PANEL.title - 6, bottom, 'stroke="#e3e3e3"'));
    parts.push(text(x(mark).toFixed(1), bottom + 15, mark, 'text-anchor="middle" fill="#555"'));
  }
  parts.push(text(((LEFT + WIDTH - RIGHT) / 2).toFixed(1), bottom + 32, unit, 'text-anchor="middle" fill="#222"'));
  let y = top + PANEL.title;
  for (const { name, bars } of groups) {
    parts.push(text(LEFT - 8, y + (bars.length * BAR) / 2 + 4, name, 'text-anchor="end"'));
    for (const { series, value } of bars) {
      parts.push(rectangle(LEFT, y, x(value) - LEFT, BAR - 2, colorOf(series)));
      parts.push(text((x(value) + 4).toFixed(1), y + BAR - 4, value < 10 ? value.toFixed(1) : value.toFixed(0), 'font-size="10" fill="#333"'));
      y += BAR;
    }
    y += GROUP_GAP;
  }
  parts.push(vertical(x(limit).toFixed(1), top + PANEL.title - 6, bottom, 'stroke="#b00020" stroke-dasharray="5 3"'));
  parts.push(
    text(x(limit).toFixed(1), top + PANEL.title - 10, `${called} ${limit.toFixed(0)}`, 'text-anchor="middle" fill="#b00020" font-size="11"'),
  );
  return parts.join('\n');
}

/** @returns {string} the document as an SVG */
export function chart({ runs }) {
  const panels = runs.flatMap(panelsOf);
  const series = ['multihead', ...peersOf(runs.flatMap(({ benchmarks }) => benchmarks))];
  const colorOf = (name) => COLORS[series.indexOf(name) % COLORS.length];
  const legend = series.map((name, at) => rectangle(16 + at * 150, 14, 12, 12, colorOf(name)) + text(34 + at * 150, 24, name));
  let top = 38;
  const drawn = panels.map((one) => {
    const shown = panel(one, top, colorOf);
    top += heightOf(one);
    return shown;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${top}" viewBox="0 0 ${WIDTH} ${top}"`,
    `font-family="system-ui, sans-serif" font-size="12">`,
    `<title>Attention benchmarks</title>`,
    `<rect width="100%" height="100%" fill="#ffffff"/>`,
    ...legend,
    ...drawn,
    `</svg>\n`,
  ].join('\n');
}
