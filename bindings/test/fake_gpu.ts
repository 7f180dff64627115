// A GPUDevice that computes in JavaScript, for tests of what needs no GPU: kernels are functions of the bytes of their bindings.

type Scope = { readonly filter: string; error: Error | null };

/** A kernel: gets the words of its uniform block, of its bindings, and its workgroups. */
export type FakeKernel = (parameters: Uint32Array, bindings: Uint32Array[], groups: readonly number[]) => void;

export class FakeBuffer {
  readonly size: number;
  readonly usage: number;
  destroyed = false;
  readonly memory: Uint8Array<ArrayBuffer>;
  #mapped = false;
  readonly #device: FakeDevice;

  constructor(device: FakeDevice, { size, usage }: { size: number; usage: number }) {
    this.#device = device;
    this.size = size;
    this.usage = usage;
    this.memory = new Uint8Array(size);
  }

  words(offset = 0, bytes = this.size - offset): Uint32Array {
    if (this.destroyed) throw new Error('destroyed');
    return new Uint32Array(this.memory.buffer, offset, bytes >> 2);
  }

  async mapAsync(): Promise<void> {
    await Promise.resolve();
    if (this.#device.isLost) throw new Error('mapAsync: device is lost');
    this.#mapped = true;
  }

  getMappedRange(offset = 0, size = this.size): ArrayBuffer {
    if (!this.#mapped) throw new Error('not mapped');
    return this.memory.buffer.slice(offset, offset + size);
  }

  unmap(): void {
    this.#mapped = false;
  }

  destroy(): void {
    this.destroyed = true;
  }
}

export class FakeDevice {
  readonly kernels: Readonly<Record<string, FakeKernel>>;
  readonly limits = {
    maxBufferSize: 2 ** 20,
    maxStorageBufferBindingSize: 2 ** 20,
    maxStorageBuffersPerShaderStage: 8,
    maxComputeWorkgroupStorageSize: 16384,
    maxComputeWorkgroupsPerDimension: 65535,
    minUniformBufferOffsetAlignment: 256,
    minStorageBufferOffsetAlignment: 256,
  };
  readonly features = new Set<string>();
  readonly adapterInfo = { vendor: 'fake', architecture: 'javascript' };
  readonly buffers: FakeBuffer[] = [];
  readonly modules: string[] = [];
  /** Kernels that a driver refuses. */
  readonly refused = new Set<string>();
  readonly lost: Promise<{ message: string; reason: string }>;
  readonly queue;
  isLost = false;
  isDestroyed = false;
  /** Pipelines wait for this. */
  compiling: Promise<unknown> = Promise.resolve();
  submissions = 0;
  groupsMade = 0;
  pipelinesMade = 0;
  #loseIt: (info: { message: string; reason: string }) => void = () => {};
  readonly #scopes: Scope[] = [];

  constructor(kernels: Readonly<Record<string, FakeKernel>> = {}) {
    this.kernels = kernels;
    this.lost = new Promise((resolve) => (this.#loseIt = resolve));
    this.queue = {
      writeBuffer: (buffer: FakeBuffer, offset: number, data: ArrayBufferView) => {
        if (offset % 4 !== 0 || data.byteLength % 4 !== 0) this.fail('validation', 'writeBuffer: a multiple of 4');
        buffer.memory.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
      },
      submit: (lists: (() => void)[][]) => {
        this.submissions += 1;
        for (const run of lists.flat()) run();
      },
    };
  }

  lose(message: string): void {
    this.isLost = true;
    this.#loseIt({ message, reason: 'unknown' });
  }

  destroy(): void {
    this.isDestroyed = true;
    this.#loseIt({ message: 'destroyed', reason: 'destroyed' });
  }

  /** Reports an error to the innermost scope of its kind. */
  fail(filter: string, message: string): void {
    const scope = [...this.#scopes].reverse().find((each) => each.filter === filter);
    if (scope === undefined) throw new Error(`uncaptured: ${message}`);
    scope.error ??= new Error(message);
  }

  pushErrorScope(filter: string): void {
    this.#scopes.push({ filter, error: null });
  }

  popErrorScope(): Promise<Error | null> {
    const scope = this.#scopes.pop();
    if (scope === undefined) throw new Error('no scope');
    return Promise.resolve(scope.error);
  }

  get openScopes(): number {
    return this.#scopes.length;
  }

  createBuffer(given: { size: number; usage: number }): FakeBuffer {
    if (given.size > this.limits.maxBufferSize) this.fail('validation', 'buffer too large');
    if (given.size >= this.limits.maxBufferSize / 2) this.fail('out-of-memory', 'no memory left');
    const buffer = new FakeBuffer(this, given);
    this.buffers.push(buffer);
    return buffer;
  }

  createShaderModule({ code, label }: { code: string; label?: string }) {
    this.modules.push(code);
    const messages = [{ type: 'error', lineNum: 3, message: 'unknown word' }];
    return { label, getCompilationInfo: () => Promise.resolve({ messages: this.refused.has(label ?? '') ? messages : [] }) };
  }

  createPipelineLayout = (given: object): object => given;
  createBindGroupLayout = (given: object): object => given;

  async createComputePipelineAsync({ label }: { label?: string }): Promise<object> {
    this.pipelinesMade += 1;
    await this.compiling;
    if (this.refused.has(label ?? '')) throw new Error('refused');
    return { label };
  }

  createBindGroup({ entries }: { entries: { binding: number; resource: { buffer: FakeBuffer; offset: number; size: number } }[] }) {
    this.groupsMade += 1;
    for (const { binding, resource } of entries) {
      if (resource.offset % 256 !== 0 || resource.offset + resource.size > resource.buffer.size) this.fail('validation', `binding ${binding}`);
    }
    return entries.map(({ resource }) => resource);
  }

  createCommandEncoder() {
    const commands: (() => void)[] = [];
    let pipeline: { label: string };
    let group: { buffer: FakeBuffer; offset: number; size: number }[];
    let dynamic = 0;
    const pass = {
      setPipeline: (next: typeof pipeline) => (pipeline = next),
      setBindGroup: (_: number, next: typeof group, [offset = 0]: number[]) => {
        group = next;
        dynamic = offset;
      },
      dispatchWorkgroups: (...groups: number[]) => {
        const kernel = this.kernels[pipeline.label];
        const [uniforms, ...others] = group as [(typeof group)[0], ...typeof group];
        // A later write of the uniform buffer comes after this command, so its words are read now.
        commands.push(() => {
          const parameters = uniforms.buffer.words(dynamic, uniforms.size).slice();
          const bindings = others.map(({ buffer, offset, size }) => buffer.words(offset, size));
          kernel?.(parameters, bindings, groups);
        });
      },
      end: () => {},
    };
    return {
      beginComputePass: () => pass,
      copyBufferToBuffer: (from: FakeBuffer, fromOffset: number, to: FakeBuffer, toOffset: number, size: number) => {
        if (fromOffset % 4 !== 0 || size % 4 !== 0) this.fail('validation', 'copy: a multiple of 4');
        commands.push(() => to.memory.set(from.memory.subarray(fromOffset, fromOffset + size), toOffset));
      },
      finish: () => commands,
    };
  }
}

/** A FakeDevice in the place of a real one. */
export const asDevice = (device: FakeDevice): GPUDevice => device as unknown as GPUDevice;
