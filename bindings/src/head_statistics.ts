// mh.headStatistics: statistics of the attention weights of each head.

import { bytesPerElement } from './memory.js';
import { call, noSpan, type Runtime } from './operands.js';
import { readOptions } from './options.js';
import type { SpanArg } from './raw.js';
import type { HeadStatistics, HeadStatisticsOptions, TensorLike } from './types.js';

export function headStatistics(
  runtime: Runtime,
  weights: TensorLike,
  given: HeadStatisticsOptions = {},
): HeadStatistics {
  const options = readOptions(given, ['tokens'], 'headStatistics');
  return call(runtime, (operands) => {
    const operand = operands.input(weights, ['f32'], 'weights');
    const { shape } = operand;
    const unbatched = shape.length === 3;
    const heads = shape[unbatched ? 0 : 1] ?? 0;
    const count = (unbatched ? 1 : (shape[0] ?? 0)) * (shape.at(-1) ?? 0);
    const tokens = operands.optionalSpan(options.tokens, 'i32', 'tokens', count);

    const bytes = heads * bytesPerElement('f32');
    const { address } = operands.temporary(4 * bytes, 'headStatistics');
    const span = (index: number): SpanArg => ({ address: address + index * bytes, length: heads });
    const asked = options.tokens !== undefined;
    const spans = [span(0), span(1), span(2), asked ? span(3) : noSpan];

    const { args, raw, heap } = runtime;
    args
      .begin()
      .tensor(operand, unbatched ? [1, ...shape] : shape)
      .span(tokens);
    for (const each of spans) args.span(each);
    operands.run(() => raw.headStatistics());
    const copy = (index: number) => heap.view('f32', span(index).address, heads).slice();
    return {
      ...{ entropy: copy(0), previousToken: copy(1), firstToken: copy(2) },
      ...(asked && { induction: copy(3) }),
    };
  });
}
