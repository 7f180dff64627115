// Runs one case in ONNX Runtime, in a separate process like multihead-bench:
//
//     node onnxruntime_node.mjs PEERS CASE --threads=N --seconds=S [--way=NAME] --save=FILE
//
// PEERS is the folder where onnxruntime-node is installed. Prints { us, way }, or { message } if it fails.

import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { caseOf } from '../cases.mjs';
import { firstLine, median, roundOf } from '../measure.mjs';
import { onnxruntime } from './onnxruntime.mjs';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    threads: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '0.3' },
    way: { type: 'string' },
    save: { type: 'string' },
  },
});
const [folder, name] = positionals;

async function measure() {
  const ort = createRequire(join(folder, 'package.json'))('onnxruntime-node');
  const options = {
    preallocate: true,
    executionProviders: ['cpu'],
    graphOptimizationLevel: 'all',
    executionMode: 'sequential',
    intraOpNumThreads: Number(values.threads),
    interOpNumThreads: 1,
    logSeverityLevel: 4,
  };
  const peer = await onnxruntime(ort, options, values.way)(caseOf(name));
  if (!peer) return {};
  const samples = await roundOf(peer.run, 3, Number(values.seconds) * 1000, 3);
  if (values.save) writeFileSync(values.save, await peer.output());
  return { us: 1000 * median(samples), way: peer.note };
}

console.log(JSON.stringify(await measure().catch((error) => ({ message: firstLine(error) }))));
