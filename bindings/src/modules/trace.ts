// Traces: reads which steps a call requests, and copies the steps that the core lists, under JavaScript names.

import { traceNames } from '../generated/trace_names.js';
import { onJavaScriptHeap } from '../runtime/memory.js';
import { readListed, type Runtime } from '../runtime/operands.js';
import { checkNames } from '../runtime/options.js';
import { elements } from '../runtime/shape.js';
import type { TraceName, TraceStep } from '../types/index.js';
import type { Uint32 } from '../types/wire.js';

/** The JavaScript name of a step of the core: "xKey" for "x_key". */
const nameOf = (step: string): TraceName =>
  step === 'per_head_output' ? 'headShares' : (step.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()) as TraceName);

/** Converts the `trace` option to bits, bit i for traceNames[i]; throws `E_OPTION`. */
export function traceBits(option: unknown): Uint32 {
  if (option === undefined || option === false) return 0;
  const wanted = option === true ? traceNames : checkNames(option, traceNames, 'trace');
  return wanted.reduce<number>((bits, name) => bits | (1 << traceNames.indexOf(name)), 0) as Uint32;
}

/** A copy of a tensor from the core's list, on the JavaScript heap. */
export interface NamedTensor {
  readonly name: string;
  readonly shape: number[];
  readonly data: Float32Array;
}

/** Copies the tensors that the last call listed, and releases the core's list. */
export function takeListed(runtime: Runtime): NamedTensor[] {
  return readListed(runtime, ({ name, address, shape, byColumns }) => {
    const view = runtime.heap.view('f32', address, elements(shape));
    const data = onJavaScriptHeap(4 * view.length, name, () => (byColumns ? transposed(view, shape) : view.slice()));
    return { name, shape, data };
  });
}

/** The row-major copy of a column-major matrix of shape (rows, width). */
function transposed(columns: Float32Array, [rows = 0, width = 0]: readonly number[]): Float32Array {
  const data = new Float32Array(columns.length);
  for (let row = 0, at = 0; row < rows; row += 1) {
    for (let c = 0; c < width; c += 1, at += 1) data[at] = columns[c * rows + row] as number;
  }
  return data;
}

export type Trace = Partial<Record<TraceName, TraceStep>>;

/** Copies of the steps that the last call listed, by layer. Those of a transformer have the layer before the name: "3.weights". */
export function takeTraces(runtime: Runtime, layers = 1): Trace[] {
  const traces = Array.from({ length: layers }, (): Trace => ({}));
  for (const { name: numbered, shape, data } of takeListed(runtime)) {
    const [step = '', layer = '0'] = numbered.split('.').reverse();
    const name = nameOf(step);
    const trace = traces[Number(layer)];
    if (trace !== undefined) trace[name] = { name, shape, data };
  }
  return traces;
}
