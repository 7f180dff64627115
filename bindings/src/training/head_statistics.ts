// headStatistics() of multihead/lab: statistics of the attention weights of each head.

import * as wire from '../generated/wire.js';
import { bytesPerElement } from '../runtime/memory.js';
import { call, noSpan, reshaped, type Runtime } from '../runtime/operands.js';
import { plain, readOptions } from '../runtime/options.js';
import type { HeadStatistics, HeadStatisticsOptions, TensorLike } from '../types/index.js';
import type { Span, Uint32 } from '../types/wire.js';

export function statisticsOf(runtime: Runtime, weights: TensorLike, given: HeadStatisticsOptions = {}): HeadStatistics {
  const options = readOptions(given, { tokens: plain }, 'headStatistics');
  return call(runtime, (operands) => {
    const operand = operands.input(weights, ['f32'], 'weights');
    const { shape } = operand;
    const unbatched = shape.length === 3;
    const heads = shape[unbatched ? 0 : 1] ?? 0;
    const count = (unbatched ? 1 : (shape[0] ?? 0)) * (shape.at(-1) ?? 0);
    const tokens = operands.optionalSpan(options.tokens, 'i32', 'tokens', count);

    const bytes = heads * bytesPerElement('f32');
    const { address } = operands.temporary(4 * bytes, 'headStatistics');
    const span = (index: number): Span<'f32'> => ({
      address: (address + index * bytes) as Uint32,
      length: heads,
    });
    const asked = options.tokens !== undefined;
    const outputs = {
      entropy: span(0),
      previousToken: span(1),
      firstToken: span(2),
      induction: asked ? span(3) : noSpan,
    };

    const batched = reshaped(operand, unbatched ? [1, ...shape] : shape, 'weights');
    wire.headStatistics(runtime.args, batched, tokens, outputs);
    operands.run((raw) => raw.headStatistics());
    const copy = (name: keyof typeof outputs) => runtime.heap.view('f32', outputs[name].address, heads).slice();
    return {
      entropy: copy('entropy'),
      previousToken: copy('previousToken'),
      firstToken: copy('firstToken'),
      ...(asked && { induction: copy('induction') }),
    };
  });
}
