// mh.alibiSlopes: the slopes of ALiBi, computed by the core and copied to the JavaScript heap.

import { call, type Runtime } from './operands.js';
import { checkCount } from './options.js';

export function alibiSlopes(runtime: Runtime, given: number): Float32Array {
  const heads = checkCount(given, 'heads');
  return call(runtime, (operands) => {
    const { address } = operands.alibiSlopes(heads);
    return runtime.heap.view('f32', address, heads).slice();
  });
}
