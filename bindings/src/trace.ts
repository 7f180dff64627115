// The steps of a forward pass: copied out of the module's own memory, under JavaScript names.

import type { Heap } from './memory.js';
import { camelCase } from './operands.js';
import { checkNames } from './options.js';
import type { RawModule } from './raw.js';
import { elements } from './tensor.js';
import type { TraceName, TraceStep } from './types.js';

export const traceNames: readonly TraceName[] = [
  'x',
  'q',
  'k',
  'v',
  'qHeads',
  'kHeads',
  'vHeads',
  'scores',
  'scaledScores',
  'maskedScores',
  'weights',
  'headsOut',
  'merged',
  'output',
];

/** The names that a `trace` option asks for; throws `E_OPTION`. */
export function checkTrace(option: unknown): readonly TraceName[] {
  if (option === undefined || option === false) return [];
  return option === true ? traceNames : checkNames(option, traceNames, 'trace');
}

/** To be followed by releaseTrace(). */
export function readTrace(
  raw: RawModule,
  heap: Heap,
  wanted: readonly TraceName[],
): Partial<Record<TraceName, TraceStep>> {
  const trace: Partial<Record<TraceName, TraceStep>> = {};
  const count = wanted.length > 0 ? raw.traceCount() : 0;
  for (let index = 0; index < count; index += 1) {
    const name = camelCase(raw.traceName(index)) as TraceName;
    if (!wanted.includes(name)) continue;
    const axes = Array.from({ length: raw.traceRank(index) });
    const shape = axes.map((_, axis) => raw.traceExtent(index, axis));
    const data = heap.view('f32', raw.traceAddress(index), elements(shape)).slice();
    trace[name] = { name, shape, data };
  }
  return trace;
}
