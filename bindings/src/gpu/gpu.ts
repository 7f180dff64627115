// mh.gpu(): the calls on one device. The package loads this file, and the kernels with it, when it is first called.

import { kernels } from '../generated/kernels.js';
import { optionError } from '../runtime/errors.js';
import type { Runtime } from '../runtime/operands.js';
import { plain, readOptions } from '../runtime/options.js';
import { makeDisposable } from '../runtime/symbol_dispose.js';
import { coreOf, describe, makeTensor, nameObject } from '../runtime/tensor.js';
import type { Gpu, GpuOptions } from '../types/index.js';
import { explain, gpuAttention, gpuAttentionVarlen, gpuLinear, gpuRotate, gpuScores } from './attention.js';
import { GpuKVCache } from './cache.js';
import { Player } from './device.js';
import { openDevice } from './open.js';
import { uploaded } from './operands.js';
import { loadPlanner } from './planner.js';
import { GpuRuntime } from './runtime.js';
import { WebGpuTensor, wrapBuffer } from './tensor.js';

/** Opens a device for an instance. Rejects with `E_GPU`, `E_OPTION`, `E_ABORTED`, `E_DISPOSED`. */
export async function openGpu(runtime: Runtime, given: GpuOptions = {}): Promise<Gpu> {
  const { heap, scopes } = runtime;
  heap.assertAlive();
  makeDisposable(WebGpuTensor);
  const [{ device, own, info }, planner] = await Promise.all([openDevice(given), loadPlanner()]);
  const player = new Player(device, kernels);
  const gpu = new GpuRuntime(planner, runtime, player, info);

  const dispose = (): void => {
    heap.ends.delete(dispose);
    gpu.close(() => own && device.destroy());
  };
  heap.ends.add(dispose);
  const track = <R extends Parameters<typeof scopes.track>[0]>(resource: R): R => scopes.track(resource);

  const tensor = (data: unknown, shape?: unknown, options: { readonly dtype?: unknown } = {}): WebGpuTensor => {
    gpu.assertLive();
    const { dtype } = readOptions(options, { dtype: plain }, 'tensor');
    const held = coreOf(data);
    const made = held === undefined ? makeTensor(heap, data, shape, dtype) : undefined;
    const core = held ?? coreOf(made);
    if (core === undefined) throw optionError('data', 'a tensor or numbers', describe(data));
    try {
      core.assertLive('data');
      return track(new WebGpuTensor(uploaded(gpu, core.dtype, core.shape, core.view(), 'tensor')));
    } finally {
      made?.dispose();
    }
  };
  const api = {
    device,
    info,
    tensor,
    wrap: (buffer: GPUBuffer, options: never) => {
      gpu.assertLive();
      return track(wrapBuffer(gpu, buffer, options));
    },
    attention: (q: unknown, k: unknown, v: unknown, options?: object) => gpuAttention(gpu, [q, k, v], options),
    attentionVarlen: (q: unknown, k: unknown, v: unknown, options: object) => gpuAttentionVarlen(gpu, [q, k, v], options),
    attentionScores: (q: unknown, k: unknown, options: never) => gpuScores(gpu, [q, k], options),
    rotate: (x: unknown, positions: unknown, rope: never) => gpuRotate(gpu, x, positions, rope),
    linear: (x: unknown, weight: unknown, options?: object) => gpuLinear(gpu, x, weight, options),
    explain: (q: unknown, k: unknown, v: unknown, options?: object) => explain(gpu, [q, k, v], options),
    cache: (config: never) => {
      gpu.assertLive();
      return track(new GpuKVCache(gpu, config));
    },
    submitted: () => player.submitted(),
    dispose,
  };
  Object.defineProperty(api, 'disposed', { get: () => gpu.disposed });
  Object.defineProperty(api, Symbol.dispose, { value: dispose });
  nameObject(api, 'a GPU');
  return Object.freeze(api) as unknown as Gpu;
}
