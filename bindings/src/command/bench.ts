// multihead bench: how fast the package is on this machine, as a share of the machine's own limits.

import { quoted } from '../runtime/text.js';
import { flag, type Option, parse, text, UsageError } from './arguments.js';
import { showLine } from './output.js';
import type { Session } from './session.js';

function isPattern(value: string): boolean {
  try {
    new RegExp(value);
    return true;
  } catch {
    return false;
  }
}

export const benchOptions = {
  filter: text('REGEX', 'cases whose names match, of all and not of a report', 'a regular expression', isPattern),
  json: flag('prints one JSON document instead of a table, to send or to compare'),
  help: flag('prints this'),
} satisfies Record<string, Option<unknown>>;

export const benchHelp = `Measures one thread. Names are op/shape/mask/type/threads. % peak is the share of the multiply-adds that one thread can do here,
% stream that of the speed at which it reads memory, both measured in the same run; err is the largest difference from float64.
onnxruntime-web and @tensorflow/tfjs-core with @tensorflow/tfjs-backend-wasm are measured in turns with multihead if the current
folder has them in node_modules. Nothing is fetched. Other programs should be idle: the first line has the load.
`;

export async function bench(args: readonly string[], { loadBench, version, output, messages }: Session): Promise<void> {
  const { values, positionals } = parse(args, benchOptions);
  const { filter, json } = values;
  if (positionals[0] !== undefined) throw new UsageError('bench', 'options alone', quoted(positionals[0]));
  const { header, load, machineLine, namesFor, report, row } = await loadBench();
  const names = namesFor(filter);
  if (names.length === 0)
    throw new UsageError('--filter', 'a regular expression that some name matches, such as forward/gpt2', quoted(String(filter)));
  const show = (line: string): void => showLine(messages, line);
  const run: { machine?: object; benchmarks: object[] } = { benchmarks: [] };
  show('measuring the limits of this machine');
  const mh = await load();
  for await (const { machine, benchmark } of report(mh, { filter, version })) {
    show('');
    if (machine) run.machine = machine;
    else run.benchmarks.push(benchmark);
    if (!json) await output.write(machine ? `${machineLine(machine)}\n${header()}\n` : `${row(benchmark)}\n`);
    const next = run.benchmarks.length;
    if (next < names.length) show(`${next + 1} of ${names.length}: ${names[next]}`);
  }
  if (json) await output.json({ runs: [run] });
}
