// The kernels' texts for a device, and their pipelines. A pipeline is made once for a kernel and its constants, because compiling takes
// up to a second on a GPU.

import { kept } from './buffers.js';
import { gpuError } from './errors.js';
import type { MultiheadError } from '../runtime/errors.js';

/** A kernel as it is built into the package: the constants that its text needs, in the order of a plan, and the text. */
export interface KernelSource {
  readonly name: string;
  readonly constants: readonly string[];
  readonly text: string;
}

/** A pipeline, or why there is none. */
export interface Pipeline {
  /** The access of each binding, which determines the layout: 'r' read, 'w' read and write. */
  readonly access: string;
  readonly layout: GPUBindGroupLayout;
  readonly compute: GPUComputePipeline | undefined;
  readonly failure: MultiheadError | undefined;
}

/** A pipeline that may still be compiled. */
export interface Compiling {
  ready: Pipeline | undefined;
  readonly done: Promise<Pipeline>;
}

/**
 * The text for some constants. Lines between `//#if NAME` and `//#else` or `//#end` are left out where the constant is 0, those after
 * `//#else` where it is not; `//#if NAME == 3` compares. Extensions stand first, as WGSL wants it.
 */
export function kernelText({ constants, text }: KernelSource, values: readonly number[]): string {
  const valueOf = (name: string): number => values[constants.indexOf(name)] ?? 0;
  const enabled: string[] = [];
  const lines: string[] = [];
  const open: boolean[] = [];
  for (const line of text.split('\n')) {
    const [, word, name, number] = /^\s*\/\/#(if|else|end) ?(\w*)(?: == (\d+))?/.exec(line) ?? [];
    if (word === 'if') open.push(number === undefined ? valueOf(name as string) !== 0 : valueOf(name as string) === Number(number));
    else if (word === 'else') open.push(!open.pop());
    else if (word === 'end') open.pop();
    else if (open.every(Boolean)) (/^\s*enable /.test(line) ? enabled : lines).push(line);
  }
  return [...enabled, ...constants.map((name) => `const ${name} = ${valueOf(name)}u;`), ...lines].join('\n');
}

/** 'r' or 'w' for each storage buffer, @binding(1) and following. */
export function accessOf(text: string): string {
  const found: string[] = [];
  for (const [, binding, access] of text.matchAll(/@binding\((\d+)\)\s*var<storage,?\s*(\w*)>/g))
    found[Number(binding) - 1] = access === 'read_write' ? 'w' : 'r';
  return found.join('');
}

const compute = 4;

export class Pipelines {
  readonly #device: GPUDevice;
  readonly #kernels: readonly KernelSource[];
  readonly #made = new Map<string, Compiling>();
  readonly #layouts = new Map<string, GPUBindGroupLayout>();

  constructor(device: GPUDevice, kernels: readonly KernelSource[]) {
    this.#device = device;
    this.#kernels = kernels;
  }

  nameOf(kernel: number): string {
    return this.#kernels[kernel]?.name ?? `kernel ${kernel}`;
  }

  get(kernel: number, constants: readonly number[]): Compiling {
    return kept(this.#made, `${kernel} ${constants.join(' ')}`, () => {
      const made: Compiling = { ready: undefined, done: this.#compile(kernel, constants).then((pipeline) => (made.ready = pipeline)) };
      return made;
    });
  }

  async #compile(kernel: number, constants: readonly number[]): Promise<Pipeline> {
    const source = this.#kernels[kernel];
    const name = this.nameOf(kernel);
    const code = source === undefined ? '' : kernelText(source, constants);
    const access = accessOf(code);
    const layout = this.#layoutOf(access);
    // A text that a driver refuses shall not reach the caller's own handler of errors.
    this.#device.pushErrorScope('validation');
    const module = this.#device.createShaderModule({ code, label: name });
    const pipelineLayout = this.#device.createPipelineLayout({ bindGroupLayouts: [layout] });
    void this.#device.popErrorScope().catch(() => {});
    try {
      const pipeline = await this.#device.createComputePipelineAsync({
        layout: pipelineLayout,
        compute: { module, entryPoint: 'main' },
        label: name,
      });
      return { access, layout, compute: pipeline, failure: undefined };
    } catch (cause) {
      const messages = await module.getCompilationInfo().then(
        ({ messages: all }) => all.filter(({ type }) => type === 'error').map(({ lineNum, message }) => `line ${lineNum}: ${message}`),
        () => [],
      );
      const why = messages.length > 0 ? messages.join('; ') : String((cause as Error).message);
      const failure = gpuError('gpu', `a driver that compiles the kernel "${name}" for ${constants.join(', ')}`, why, cause);
      return { access, layout, compute: undefined, failure };
    }
  }

  #layoutOf(access: string): GPUBindGroupLayout {
    const types = { u: 'uniform', w: 'storage', r: 'read-only-storage' } as const;
    const entries = [...`u${access}`].map((each, binding) => {
      const buffer = { type: types[each as keyof typeof types], hasDynamicOffset: each === 'u' };
      return { binding, visibility: compute, buffer };
    });
    return kept(this.#layouts, access, () => this.#device.createBindGroupLayout({ entries }));
  }
}
