// Takes the weights of a model to a GPU: the core of this thread converts them, a few matrices at a time.

import { readGpuPiece, readGpuPlan } from '../../generated/gpu_wire.js';
import type { Storage } from '../../gpu/buffers.js';
import { call, type Runtime } from '../../runtime/operands.js';
import type { Int32 } from '../../types/wire.js';
import type { GpuPlace } from './device.js';

/** Bytes that may wait in the browser's memory for their copy to the GPU. */
const mostWaiting = 64 * 2 ** 20;

/** The buffers of a model, in the order of its plans. They are counted until release(). */
export class GpuWeights {
  readonly handle: Int32;
  readonly buffers: Storage[] = [];
  readonly #runtime: Runtime;
  readonly #place: GpuPlace;
  #waiting = 0;

  /** Throws `E_OPTION` for a model that a GPU does not compute, `E_MEMORY`. */
  constructor(runtime: Runtime, place: GpuPlace, loader: Int32) {
    const { raw, args } = runtime;
    this.#runtime = runtime;
    this.#place = place;
    this.handle = call(runtime, (operands) => {
      args.begin();
      return operands.make(() => raw.gpuModelCreate(loader));
    });
    try {
      raw.gpuModelBuffers(this.handle);
      for (const words of readGpuPlan(args.results()).words.slice()) this.buffers.push(place.allocate(4 * words, 'weights'));
    } catch (error) {
      this.release();
      throw error;
    }
  }

  /** Sends what is complete. `loader`: 0 once it has finished. */
  async send(loader: Int32): Promise<void> {
    const { raw } = this.#runtime;
    for (let buffer = raw.gpuModelReady(this.handle, loader); buffer > 0; buffer = raw.gpuModelReady(this.handle, loader)) {
      while (raw.gpuModelSend(this.handle, loader, buffer)) await this.#write(buffer);
    }
  }

  /** Sends the vectors, when the loader has finished. */
  async sendVectors(): Promise<void> {
    this.#runtime.raw.gpuModelSend(this.handle, 0 as Int32, 0 as Int32);
    await this.#write(0);
  }

  async #write(buffer: number): Promise<void> {
    const { queue } = this.#place.player.device;
    const { units, scales, firstUnit, firstScale } = readGpuPiece(this.#runtime.args.results());
    const to = (this.buffers[buffer] as Storage).buffer;
    queue.writeBuffer(to, 4 * firstUnit, units as Int32Array<ArrayBuffer>);
    if (scales.length > 0) queue.writeBuffer(to, 4 * firstScale, scales as Int32Array<ArrayBuffer>);
    this.#waiting += 4 * (units.length + scales.length);
    if (this.#waiting < mostWaiting) return;
    this.#waiting = 0;
    await this.#place.idle();
  }

  release(): void {
    for (const storage of this.buffers.splice(0)) this.#place.release(storage);
    if (!this.#runtime.raw.dead) this.#runtime.raw.gpuModelRelease(this.handle);
  }
}
