// ONNX Runtime as a peer; onnxruntime-node and onnxruntime-web have the same interface.

import { firstLine, roundOf } from '../measure.mjs';
import { onnxWays } from './onnx_graphs.mjs';

async function sessionOf(ort, { preallocate, ...options }, { way, model, feeds, outShape, toOurs }) {
  const session = await ort.InferenceSession.create(model(), options);
  const tensors = Object.fromEntries(
    Object.entries(feeds).map(([name, { type = 'float32', shape, data }]) => [name, new ort.Tensor(type, data, shape)]),
  );
  const place = () => new ort.Tensor('float32', new Float32Array(outShape.reduce((a, b) => a * b)), outShape);
  // Fetch only the output of GroupQueryAttention, without a copy of its new cache.
  const wanted = preallocate ? { out: place() } : ['out'];
  const run = () => session.run(tensors, wanted);
  return {
    way,
    run,
    output: async () => (toOurs ?? ((data) => data))((await run()).out.data),
    release: () => session.release(),
  };
}

/**
 * @param {object} ort the module of onnxruntime-node or onnxruntime-web
 * @param {object} options of InferenceSession.create; and `preallocate`, if a run can write to a given tensor
 *   (onnxruntime-node can; onnxruntime-web does not write to it)
 * @param {string} [onlyWay] use this way instead of searching for the fastest
 * @returns {(which: object) => Promise<object | null>} the peer for a case: its fastest way, named in `note`
 */
export function onnxruntime(ort, options, onlyWay) {
  return async (which) => {
    const ways = onnxWays(which).filter(({ way }) => !onlyWay || way === onlyWay);
    if (!ways.length) return null;
    let best = null;
    const failures = [];
    for (const way of ways) {
      let session = null;
      try {
        session = await sessionOf(ort, options, way);
        // The best of some runs is precise enough to choose the fastest way.
        session.milliseconds = onlyWay ? 0 : Math.min(...(await roundOf(session.run, 1, 100)));
      } catch (error) {
        failures.push(`${way.way}: ${firstLine(error)}`);
        await session?.release();
        continue;
      }
      const [kept, dropped] = !best || session.milliseconds < best.milliseconds ? [session, best] : [best, session];
      await dropped?.release();
      best = kept;
    }
    if (!best) throw new Error(failures.join('; '));
    return { run: best.run, output: best.output, isAsync: true, note: best.way, dispose: best.release };
  };
}
