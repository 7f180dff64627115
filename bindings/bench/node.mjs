// Runs the benchmarks with one SIMD build of the package in Node. `npm run bench -- wasm` starts it once per build, so
// that the code of one build is not already compiled by runs of the other:
//
//   node bindings/bench/node.mjs --simd=relaxed|simd128 [--filter=REGEX] [--peers=FOLDER]
//
// Prints a line of JSON for the machine, and one per benchmark: { machine } and { benchmark }.

import { parseArgs } from 'node:util';
import { chosenCases } from './cases.mjs';
import { measureCase } from './measure.mjs';
import { machineOf } from './machine.mjs';
import { loadPeers } from './peers/in_node.mjs';

const { values } = parseArgs({
  options: {
    simd: { type: 'string', default: 'relaxed' },
    filter: { type: 'string', default: '' },
    peers: { type: 'string' },
  },
});
const tell = (line) => console.log(JSON.stringify(line));

const { load } = await import('../dist/index.js');
const mh = await load({ simd: values.simd });
const { default: loadPeak } = await import(`../../build/wasm/native/${values.simd}/multihead-peak.mjs`);
const peak = await loadPeak();
const { limits, machine } = machineOf(mh, peak);
tell({ machine: { runner: 'wasm', engine: `Node ${process.versions.node}, V8 ${process.versions.v8}`, ...machine } });
const peers = values.peers ? await loadPeers(values.peers) : {};
for (const which of chosenCases(values.filter)) tell({ benchmark: await measureCase(mh, which, limits, peers) });
