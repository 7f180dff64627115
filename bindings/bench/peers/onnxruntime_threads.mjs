// Runs onnxruntime-web with several threads, in a separate process, because a process can set their number only once.
// onnxruntimeWithThreads() starts it and sends it commands:
//
//     node onnxruntime_threads.mjs PEERS CASE THREADS

import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { caseOf } from '../cases.mjs';
import { firstLine, roundOf } from '../measure.mjs';
import { onnxruntimeWeb } from './in_node.mjs';

const here = fileURLToPath(import.meta.url);

/**
 * @param {string} folder where onnxruntime-web is installed
 * @returns {Promise<object | null>} the peer for a case, with `round` instead of `run`; null if onnxruntime-web has no
 * counterpart
 */
export async function onnxruntimeWithThreads(folder, which, threads) {
  const child = fork(here, [folder, which.name, String(threads)], { serialization: 'advanced' });
  const answer = () =>
    new Promise((resolve, reject) => {
      child.once('message', resolve);
      child.once('exit', (code) => reject(new Error(`onnxruntime-web ended with code ${code}`)));
    }).finally(() => child.removeAllListeners());
  const ask = async (question) => {
    const answered = answer();
    child.send(question);
    const reply = await answered;
    if (reply.failure) throw new Error(reply.failure);
    return reply;
  };
  const dispose = async () => void child.kill();
  try {
    const { way, used } = await ask({ kind: 'start' });
    if (way === undefined) return (await dispose(), null);
    return {
      note: `${used} ${used === 1 ? 'thread' : 'threads'}, ${way}`,
      round: async (untimed, milliseconds) => (await ask({ kind: 'round', untimed, milliseconds })).samples,
      output: async () => (await ask({ kind: 'output' })).output,
      dispose,
    };
  } catch (error) {
    await dispose();
    throw error;
  }
}

async function serve([folder, name, threads]) {
  let peer;
  const answers = {
    async start() {
      const { ort, peerOf } = await onnxruntimeWeb(folder, Number(threads));
      peer = await peerOf(caseOf(name));
      // onnxruntime-web falls back to one thread if it cannot start several, so report the number in use.
      return { way: peer?.note, used: ort.env.wasm.numThreads };
    },
    round: async ({ untimed, milliseconds }) => ({ samples: await roundOf(peer.run, untimed, milliseconds) }),
    output: async () => ({ output: Float32Array.from(await peer.output()) }),
  };
  process.on('message', async (question) => {
    const reply = await answers[question.kind](question).catch((error) => ({ failure: firstLine(error) }));
    process.send(reply);
  });
  process.on('disconnect', () => process.exit());
}

if (process.argv[1] === here) await serve(process.argv.slice(2));
