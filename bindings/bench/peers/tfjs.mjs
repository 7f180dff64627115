// TensorFlow.js with its WebAssembly backend: products and softmax, as its users write attention.

import { inputsOf } from '../inputs.mjs';
import { additiveMask } from './onnx_graphs.mjs';

/** @param {object} tf @tensorflow/tfjs-core with its backend already chosen */
export function tfjs(tf) {
  return async ({ op, shape, mask, dtype }) => {
    if (!['forward', 'decode'].includes(op) || dtype !== 'f32') return null;
    if (!['full', 'causal', 'boolean', 'bias'].includes(mask)) return null;
    const { batch, heads, numKvHeads, queries, keys, width } = shape;
    const added = additiveMask(shape, mask);
    if (added === undefined) throw new Error(`a mask of ${queries} × ${keys} would be needed`);
    if (added && heads !== numKvHeads) throw new Error('a masked group of heads has no product of its own');
    const [q, k, v] = inputsOf(shape).map(({ shape: extents, data }) => tf.tensor(data, extents));
    const rows = tf.reshape(q, [batch, numKvHeads, (heads / numKvHeads) * queries, width]);
    const hidden = added && tf.tensor(added, [queries, keys]);
    const scale = tf.scalar(1 / Math.sqrt(width));
    const attention = () =>
      tf.tidy(() => {
        const scores = tf.mul(tf.matMul(rows, k, false, true), scale);
        return tf.matMul(tf.softmax(hidden ? tf.add(scores, hidden) : scores), v);
      });
    return {
      run: () => attention().dispose(), // the backend computes synchronously; the result is not read back
      output: () => {
        const out = attention();
        const data = out.dataSync();
        out.dispose();
        return data;
      },
      dispose: () => [q, k, v, rows, scale, hidden].forEach((tensor) => tensor?.dispose()),
    };
  };
}
