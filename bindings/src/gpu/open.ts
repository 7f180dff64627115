// Finds a device and learns what it has.

import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { checkChoice, type Names, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { GpuInfo, GpuOptions } from '../types/index.js';
import { usages } from './buffers.js';
import { inTime } from './device.js';
import { gpuError } from './errors.js';

const optionNames = { device: plain, adapter: plain, powerPreference: plain, signal: plain } satisfies Names<GpuOptions>;
/** Those that plans depend on. The others keep WebGPU's defaults, which every adapter has. */
const raisedLimits = [
  'maxStorageBuffersPerShaderStage',
  'maxStorageBufferBindingSize',
  'maxBufferSize',
  'maxComputeWorkgroupStorageSize',
  'maxComputeInvocationsPerWorkgroup',
  'maxComputeWorkgroupSizeX',
] as const;
const usedFeatures: readonly GPUFeatureName[] = ['subgroups', 'shader-f16'];

export interface OpenedDevice {
  readonly device: GPUDevice;
  /** False for a device of the caller. */
  readonly own: boolean;
  readonly info: GpuInfo;
}

/** `seconds`: how long a browser may take for its adapter and a device that computes, for who has something else; default two minutes. */
export async function openDevice(given: GpuOptions, seconds?: number): Promise<OpenedDevice> {
  const options = readOptions(given, optionNames, 'gpu');
  const { device, adapter, powerPreference, signal } = options;
  checkSignal(signal);
  if (powerPreference !== undefined) checkChoice(powerPreference, ['low-power', 'high-performance'], 'powerPreference');
  if (device !== undefined && (device as Partial<GPUDevice>)?.createComputePipelineAsync === undefined) {
    throw optionError('device', 'a GPUDevice', describe(device));
  }
  if (adapter !== undefined && (adapter as Partial<GPUAdapter>)?.requestDevice === undefined)
    throw optionError('adapter', 'a GPUAdapter', describe(adapter));
  if (signal?.aborted) throw abortedError(signal, 'gpu');
  const opened = (async () => {
    const made = device ?? (await deviceOf(adapter ?? (await findAdapter(powerPreference))));
    try {
      return { device: made, own: device === undefined, info: await infoOf(made) };
    } catch (error) {
      if (device === undefined) made.destroy();
      throw error;
    }
  })();
  try {
    return await abortable(inTime(opened, 'a device that computes', seconds), signal, 'gpu');
  } catch (error) {
    // A device that comes later is nobody's.
    void opened.then(
      ({ device: made, own }) => own && made.destroy(),
      () => {},
    );
    throw error;
  }
}

async function findAdapter(powerPreference: GPUPowerPreference | undefined): Promise<GPUAdapter> {
  const { navigator, process } = globalThis as { navigator?: { gpu?: GPU }; process?: { versions?: { node?: string } } };
  let { gpu } = navigator ?? {};
  if (gpu === undefined && process?.versions?.node !== undefined) gpu = await gpuOfNode();
  if (gpu === undefined) {
    throw gpuError('gpu', 'a browser with WebGPU, on a page under HTTPS or on localhost', 'none: navigator.gpu is missing');
  }
  const found = await gpu.requestAdapter(powerPreference === undefined ? {} : { powerPreference }).catch((cause: unknown) => {
    throw gpuError('gpu', 'an adapter', String((cause as Error).message), cause);
  });
  if (found !== null) return found;
  throw gpuError('gpu', 'an adapter', 'none: the browser knows no GPU here, or does not use it');
}

/** npm's webgpu, if it is installed. What create() gives must live as long as its devices. */
let ofNode: GPU | undefined;
async function gpuOfNode(): Promise<GPU> {
  // Not a literal, which bundlers would want to resolve.
  const name = ['web', 'gpu'].join('');
  try {
    const { create } = (await import(/* @vite-ignore */ name)) as { create(options: string[]): GPU };
    return (ofNode ??= create([]));
  } catch (cause) {
    throw gpuError('gpu', "npm's webgpu (npm install webgpu), by which Node has WebGPU", String((cause as Error).message), cause);
  }
}

async function deviceOf(adapter: GPUAdapter): Promise<GPUDevice> {
  const requiredFeatures = usedFeatures.filter((feature) => adapter.features.has(feature));
  const requiredLimits = Object.fromEntries(raisedLimits.map((name) => [name, adapter.limits[name]]).filter(([, limit]) => limit !== undefined));
  return adapter.requestDevice({ requiredFeatures, requiredLimits }).catch((cause: unknown) => {
    throw gpuError('gpu', "a device with the adapter's limits", String((cause as Error).message), cause);
  });
}

async function infoOf(device: GPUDevice): Promise<GpuInfo> {
  const { limits } = device;
  const adapter: Partial<GPUAdapterInfo> = device.adapterInfo ?? {};
  const { vendor, architecture, description } = adapter;
  return Object.freeze({
    description: description || [vendor, architecture].filter(Boolean).join(' '),
    software: adapter.isFallbackAdapter ?? false,
    subgroup: await subgroupOf(device, adapter),
    workgroupBytes: limits.maxComputeWorkgroupStorageSize,
    storageBuffers: limits.maxStorageBuffersPerShaderStage,
    bindingBytes: limits.maxStorageBufferBindingSize,
  });
}

/** Invocations of the kernel that asks for them: more than the largest subgroup. */
const asked = 256;

/**
 * The invocations of every subgroup, if all of them have as many, and if the invocations of a workgroup of one axis fill them in order,
 * which WebGPU does not promise (gpuweb#5416): a kernel says whether they do. 0 otherwise.
 */
async function subgroupOf(device: GPUDevice, { subgroupMinSize, subgroupMaxSize }: Partial<GPUAdapterInfo>): Promise<number> {
  const size = subgroupMinSize ?? 0;
  if (!device.features.has('subgroups') || size !== subgroupMaxSize || size < 4 || size > 64) return 0;
  const code = `enable subgroups;
@group(0) @binding(0) var<storage, read_write> right: array<u32>;
@compute @workgroup_size(64) fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) i: u32,
  @builtin(subgroup_invocation_id) lane: u32, @builtin(subgroup_size) size: u32) {
  let first = subgroupShuffle(i, 0u);
  right[group.x * 64u + i] = select(0u, 1u, size == ${size}u && lane == i % ${size}u && first == i - lane);
}`;
  device.pushErrorScope('validation');
  const right = device.createBuffer({ size: 4 * asked, usage: usages.storage | usages.copySrc });
  const copy = device.createBuffer({ size: 4 * asked, usage: usages.mapRead | usages.copyDst });
  try {
    const module = device.createShaderModule({ code });
    const pipeline = await device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
    const bindings = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource: { buffer: right } }] });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bindings);
    pass.dispatchWorkgroups(asked / 64);
    pass.end();
    encoder.copyBufferToBuffer(right, 0, copy, 0, 4 * asked);
    device.queue.submit([encoder.finish()]);
    await copy.mapAsync(1);
    return new Uint32Array(copy.getMappedRange()).every((each) => each === 1) ? size : 0;
  } catch {
    return 0; // kernels without subgroups do the same
  } finally {
    void device.popErrorScope().catch(() => {});
    right.destroy();
    copy.destroy();
  }
}
