// The object that load() gives: the operations bound to one module and its memory.

import { attention } from './attention.js';
import { linear } from './linear.js';
import { Heap } from './memory.js';
import { WasmMultiHeadAttention } from './multi_head_attention.js';
import type { Runtime } from './operands.js';
import type { RawModule } from './raw.js';
import { ScopeStack } from './scope.js';
import { checkData, checkShape, WasmTensor } from './tensor.js';
import type { Backend, DType, Multihead, Shape, Tensor } from './types.js';

/** Methods are closures, so that they can be taken out of the object. */
export function createMultihead(raw: RawModule, backend: Backend): Multihead {
  const heap = new Heap(raw);
  const scopes = new ScopeStack();
  const runtime: Runtime = { raw, heap, scopes };

  function makeTensor(shape: Shape, data?: Float32Array | Uint8Array): WasmTensor {
    const extents = checkShape(shape, 'shape');
    if (data === undefined) {
      const zeros = WasmTensor.allocate(heap, 'f32', extents, 'tensor');
      zeros.data.fill(0);
      return zeros;
    }
    const checked = checkData<DType>(data, extents, ['f32', 'bool'], 'data');
    return WasmTensor.copy(heap, checked.dtype, extents, checked.data, 'tensor');
  }
  function tensor(shape: Shape, data?: Float32Array): Tensor;
  function tensor(shape: Shape, data: Uint8Array): Tensor<'bool'>;
  function tensor(shape: Shape, data?: Float32Array | Uint8Array): Tensor<DType> {
    return scopes.track(makeTensor(shape, data));
  }

  const multihead: Multihead = {
    backend: Object.freeze(backend),
    tensor,
    attention: (q, k, v, options) => attention(runtime, q, k, v, options),
    linear: (x, weight, options) => linear(runtime, x, weight, options),
    multiHeadAttention: (config) => scopes.track(new WasmMultiHeadAttention(runtime, config)),
    scope: (fn) => scopes.run(fn),
    memory: () => heap.info(),
  };
  return Object.freeze(multihead);
}
