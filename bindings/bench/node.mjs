// Runs the benchmarks with one SIMD build of the package in Node. `npm run bench -- wasm` starts it once per build, so
// that runs of one build do not compile the code of the other.
//
//     node bindings/bench/node.mjs --simd=relaxed|simd128 [--filter=REGEX] [--peers=FOLDER] [--workers=1,2]
//
// With --workers it measures pools with these numbers of workers, with shared memory and with messages, instead of one
// thread. With --peers as well, it compares them with onnxruntime-web with the same number of threads. Prints a line of
// JSON for the machine, and one per benchmark: { machine } and { benchmark }.

import { parseArgs } from 'node:util';
import { chosenCases } from './cases.mjs';
import { machineOf } from './limits.mjs';
import { eventsOf } from './measure.mjs';
import { isPooled, measurePools } from './pool_work.mjs';
import { loadPeers } from './peers/in_node.mjs';

const { values } = parseArgs({
  options: {
    simd: { type: 'string', default: 'relaxed' },
    filter: { type: 'string', default: '' },
    peers: { type: 'string' },
    workers: { type: 'string' },
  },
});
const tell = (line) => console.log(JSON.stringify(line));

const { load } = await import('../dist/index.js');
const mh = await load({ simd: values.simd });
/** Adds the runner to the facts about the machine. */
const named = (event) =>
  event.machine ? { machine: { runner: 'wasm', engine: `Node ${process.versions.node}, V8 ${process.versions.v8}`, ...event.machine } } : event;
if (values.workers) {
  const { limits, machine } = await machineOf(mh);
  tell(named({ machine }));
  const { createPool } = await import('../dist/pool_node.js');
  const counts = values.workers.split(',').map(Number);
  for (const which of chosenCases(values.filter).filter(isPooled)) {
    for (const exchange of which.op === 'step' ? ['auto'] : ['auto', 'messages']) {
      const pools = [];
      for (const workers of counts) {
        const pool = await createPool({ workers, exchange, simd: values.simd });
        if (pool.backend.workers !== workers) throw new Error(pool.backend.why);
        pools.push({ workers, pool });
      }
      for (const benchmark of await measurePools(mh, pools, which, limits, values.peers)) tell({ benchmark });
      for (const { pool } of pools) pool.dispose();
    }
  }
} else {
  const peers = values.peers ? await loadPeers(values.peers) : {};
  for await (const event of eventsOf(mh, chosenCases(values.filter), peers)) tell(named(event));
}
