// Placeholders that a worker creates for values that a message cannot carry, so that invalid arguments cause the same
// errors as on one thread.

import type { Heap } from './memory.js';
import type { SentValue } from './pool_protocol.js';
import { copiedClasses, WasmTensor } from './tensor.js';

/** Returns the argument with placeholders for the values that a message cannot carry. */
export function restored(heap: Heap, { value, standIns }: SentValue): unknown {
  const root: Record<string, unknown> = { value };
  for (const standIn of standIns) {
    const path = ['value', ...standIn.path];
    const last = path.pop() as string;
    const holder = path.reduce((of, name) => of[name] as Record<string, unknown>, root);
    if (standIn.kind === 'class') copiedClasses.set(holder[last] as object, standIn.name);
    else if (standIn.kind === 'function') holder[last] = () => {};
    else if (standIn.kind === 'symbol') holder[last] = Symbol(standIn.text);
    else holder[last] = WasmTensor.disposed(heap, standIn.dtype, standIn.shape);
  }
  return root['value'];
}
