// The implementations that the speed section compares: this module on one thread and on all threads, plain JavaScript,
// and the requested peers.

import { load, type Multihead, type Tensor } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import poolWorker from 'multihead/pool_worker.js?worker&url';
import { inputsOf } from '../../../bindings/bench/inputs.mjs';
import { messageOf } from '../base/format.js';
import { createPolicy } from '../workers/trusted_types.js';
import type { Contender } from './measure.js';
import type { PeerName, Shape } from './messages.js';
import { peers } from './peers.js';
import { plainAttention } from './plain_attention.js';

const titles: Readonly<Record<PeerName, string>> = { onnxruntime: 'ONNX Runtime Web', tensorflow: 'TensorFlow.js' };

/** Gives the address of the pool's worker. The page's security policy lets a script start only from such an address. */
const addressOf = createPolicy('multihead', (name) => (name === 'pool' ? poolWorker : null));
const startWorker = (): Worker => new Worker(addressOf('pool'), { type: 'module' });

/** @param say receives a progress message before each part is loaded */
export async function makeContenders(shape: Shape, wanted: readonly PeerName[], say: (what: string) => void) {
  say('Loading the module');
  const [mh, pool] = await Promise.all([load(), createPool({ workers: 'all', worker: startWorker })]);
  /** All other outputs are compared with its output. */
  const plain = inPlainJavaScript(shape);
  /** All implementations in the order of the page; a message in place of each that failed. */
  const all: (Contender | { name: string; failure: string })[] = [oneThread(mh, shape), allWorkers(pool, shape), plain];
  for (const name of wanted) {
    say(`Loading ${titles[name]}`);
    all.push(await peerOf(name, shape));
  }
  return { mh, pool, plain, all };
}

function oneThread(mh: Multihead, shape: Shape): Contender {
  const [q, k, v] = inputsOf(shape).map((input) => mh.tensor(input.data, input.shape)) as [Tensor, Tensor, Tensor];
  const out = mh.zeros(q.shape);
  const prepared = mh.prepare({ q: q.shape, numKvHeads: shape.numKvHeads, causal: 'topLeft' });
  return {
    name: 'multihead, one worker',
    run: () => prepared.run(q, k, v, out),
    isAsync: false,
    output: () => out.toFloat32(),
  };
}

function allWorkers(pool: Pool, shape: Shape): Contender {
  const { workers, exchange } = pool.backend;
  // With shared memory, tensors in a SharedArrayBuffer are not copied, so use one as a program would.
  const store = ({ shape: extents, data }: { shape: readonly number[]; data: Float32Array }) => {
    const buffer = exchange === 'shared memory' ? new SharedArrayBuffer(data.byteLength) : new ArrayBuffer(data.byteLength);
    const own = new Float32Array(buffer);
    own.set(data);
    return { shape: extents, data: own };
  };
  const [q, k, v] = inputsOf(shape).map(store) as [Stored, Stored, Stored];
  const out = store({ shape: q.shape, data: new Float32Array(q.data.length) });
  return {
    name: 'multihead, all workers',
    note: `${workers} ${workers === 1 ? 'worker' : 'workers'}, ${exchange}`,
    run: () => pool.attention(q, k, v, { causal: 'topLeft', out }),
    isAsync: true,
    output: () => out.data.slice(),
  };
}
type Stored = { readonly shape: readonly number[]; readonly data: Float32Array };

function inPlainJavaScript(shape: Shape): Contender {
  const [q, k, v] = inputsOf(shape).map(({ data }) => data) as [Float32Array, Float32Array, Float32Array];
  const out = new Float32Array(q.length);
  return {
    name: 'Plain JavaScript',
    note: 'one thread',
    run: () => plainAttention(shape, q, k, v, out),
    isAsync: false,
    output: () => out.slice(),
  };
}

async function peerOf(name: PeerName, shape: Shape): Promise<Contender | { name: string; failure: string }> {
  const title = titles[name];
  try {
    const make = await peers[name]?.();
    if (!make) return { name: title, failure: 'not part of this page' };
    const peer = await make({ op: 'forward', shape, mask: 'causal', dtype: 'f32' });
    if (!peer) return { name: title, failure: 'does not offer this operation' };
    return { isAsync: false, ...peer, name: title, note: ['one thread', peer.note].filter(Boolean).join(', ') };
  } catch (error) {
    return { name: title, failure: firstLine(error) };
  }
}

export const firstLine = (error: unknown): string => messageOf(error).split('\n', 1)[0]!;
