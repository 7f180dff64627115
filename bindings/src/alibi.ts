// mh.alibiSlopes: the slopes of ALiBi, computed by the core and copied to the JavaScript heap.

import { call, type Runtime } from './operands.js';
import { checkCount } from './options.js';

export function alibiSlopes(runtime: Runtime, heads: number): Float32Array {
  checkCount(heads, 'heads');
  return call(runtime, (operands) => {
    const { address } = operands.alibiSlopes(heads);
    return runtime.heap.view('f32', address, heads).slice();
  });
}
