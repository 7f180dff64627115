// Writes the programs, in JavaScript and C++, that compute the weights of a scene.

import type { AttendInput } from '../attention/attend.js';
import type { Matrix } from '../attention/matrix.js';

const whole = (value: number): string => String(Number(value.toPrecision(7)));
const listOf = ({ data }: Matrix): string => Array.from(data, whole).join(', ');
const rows = ({ shape }: Matrix): number => shape[0]!;
const columns = ({ shape }: Matrix): number => shape[1]!;

export function javaScript({ q, k, v, scale, causal }: AttendInput): string {
  const tensor = (name: string, matrix: Matrix): string =>
    `const ${name} = { data: Float32Array.of(${listOf(matrix)}), shape: [1, 1, ${matrix.shape.join(', ')}] };`;
  const options = [scale !== undefined && `scale: ${whole(scale)}`, causal && "causal: 'bottomRight'", "return: ['weights']"].filter((part) => part);
  return [
    "import { load } from 'multihead';",
    '',
    'const mh = await load();',
    '// Batch 1, one head, rows, columns.',
    tensor('q', q),
    tensor('k', k),
    tensor('v', v),
    `const { weights } = mh.attention(q, k, v, { ${options.join(', ')} });`,
    "console.log(Array.from(weights.data, (weight) => weight.toFixed(4)).join(' '));",
    '',
  ].join('\n');
}

const float = (value: number): string => `${/[.e]/.test(whole(value)) ? whole(value) : `${whole(value)}.0`}F`;

export function cPlusPlus({ q, k, v, scale, causal }: AttendInput): string {
  const data = (name: string, matrix: Matrix): string => `  std::vector<float> ${name} = {${Array.from(matrix.data, float).join(', ')}};`;
  const dims = ({ shape }: Matrix): string => `{1, 1, ${shape.join(', ')}}`;
  const options = [causal && '.causal = mh::Causal::bottom_right()', scale !== undefined && `.scale = ${float(scale)}`].filter((part) => part);
  return [
    '#include <multihead/multihead.h>',
    '',
    '#include <cstdio>',
    '#include <vector>',
    '',
    'namespace mh = multihead;',
    '',
    'int main() {',
    '  // Batch 1, one head, rows, columns.',
    data('q', q),
    data('k', k),
    data('v', v),
    `  std::vector<float> out(${rows(q) * columns(v)}), weights(${rows(q) * rows(k)});`,
    '  mh::Context context;',
    '  const mh::Status status =',
    `      mh::attention({q.data(), ${dims(q)}}, {k.data(), ${dims(k)}}, {v.data(), ${dims(v)}}, {${options.join(', ')}},`,
    `                    {.out = {out.data(), {1, 1, ${rows(q)}, ${columns(v)}}},`,
    `                     .weights = {weights.data(), {1, 1, ${rows(q)}, ${rows(k)}}}}, context);`,
    '  if (!status.ok()) return std::puts(status.message().c_str()), 1;',
    '  for (float weight : weights) std::printf("%.4f ", weight);',
    '  std::puts("");',
    '}',
    '',
  ].join('\n');
}
