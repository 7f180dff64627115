// `multihead bench` measures the cases of a report, or all cases whose names match, in turns with the peers that are installed here.

import os from 'node:os';
import { chosenCases, reportCases } from './cases.mjs';
import { eventsOf } from './measure.mjs';
import { loadPeers } from './peers/in_node.mjs';
export { header, machineLine, row } from './rows.mjs';

/** The names of the cases: of a report, or those that match a filter. */
const casesFor = (filter) => (filter === undefined ? reportCases() : chosenCases(filter));
export const namesFor = (filter) => casesFor(filter).map(({ name }) => name);

/** Yields { machine }, then { benchmark } of each case. */
export async function* report(mh, { filter, version }) {
  const { node, v8 } = process.versions;
  for await (const event of eventsOf(mh, casesFor(filter), await loadPeers(process.cwd()))) {
    if (!event.machine) yield event;
    else {
      const cpu = os.cpus()[0]?.model.trim() || os.arch();
      const engine = `Node ${node}, V8 ${v8}, ${os.platform()} ${os.arch()}`;
      yield { machine: { runner: 'wasm', version, cpu, engine, ...event.machine, load: os.loadavg()[0], date: new Date().toISOString() } };
    }
  }
}
