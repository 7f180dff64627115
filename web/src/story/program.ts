// Writes the programs that compute the numbers of a scene.

import type { AttendInput } from '../attention/attend.js';
import type { Matrix } from '../attention/matrix.js';

const whole = (value: number): string => String(Number(value.toPrecision(7)));
const listOf = ({ data }: Matrix): string => Array.from(data, whole).join(', ');
const rows = ({ shape }: Matrix): number => shape[0]!;
const columns = ({ shape }: Matrix): number => shape[1]!;

/** One call of attention in JavaScript and in C++, which print its weights. */
export const programsOf = (input: AttendInput): readonly string[] => [javaScript(input), cPlusPlus(input)];

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

/** Trains the heads of the scene about jobs: a program in JavaScript, and the command of the native program. */
export const jobPrograms = (seed: number): readonly string[] => [
  `import { load } from 'multihead';
import { createExperiment } from 'multihead/lab';

const experiment = createExperiment(await load(), { kind: 'fourJobs', seed: ${seed} });
while (!experiment.finished) experiment.step();
console.log(experiment.evaluate().accuracy.toFixed(3));
`,
  `multihead-train four-jobs --seed ${seed}\n`,
];

/** Trains the two models of the scene about the mask. A test compares the shares that it prints with the shares of peek.ts. */
export const maskProgram = (steps: number): string => `import { load } from 'multihead';

const mh = await load();
const [letters, length, batch, tests] = [8, 17, 16, 96];
let seed = 7;
const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32;
// Most letters repeat the one three before; one in five is drawn.
function texts(count) {
  const tokens = new Int32Array(count * length);
  tokens.forEach((_, at) => {
    const repeats = at % length >= 3 && random() >= 0.2;
    tokens[at] = repeats ? tokens[at - 3] : Math.floor(random() * letters);
  });
  return tokens;
}
const size = { numLayers: 1, numHeads: 2, embedDim: 32, mlpDim: 64, vocabSize: letters, norm: 'rmsNorm', rope: { style: 'half' } };
const learners = [true, false].map((causal) => {
  const model = mh.transformer({ ...size, causal });
  model.initialize({ seed: 1 });
  return { model, trainer: mh.trainer(model, { learningRate: 1e-2 }) };
});
const heldOut = texts(tests);
for (let step = 0; step < ${steps}; step += 1) {
  const tokens = texts(batch);
  const targets = tokens.map((_, at) => (at % length < length - 1 ? tokens[at + 1] : -1));
  for (const { trainer } of learners) trainer.step(tokens, targets, { batch });
}
// With the mask, and without it: the share of right guesses of the letter after each text of 16 letters.
const known = heldOut.filter((_, at) => at % length < length - 1);
for (const { model } of learners) {
  const logits = model.forward(known, { batch: tests }).logits.toFloat32();
  const right = Array.from({ length: tests }, (_, text) => {
    const scores = logits.subarray((16 * text + 15) * letters, (16 * text + 16) * letters);
    return scores.indexOf(Math.max(...scores)) === heldOut[length * text + 16];
  });
  console.log((right.filter(Boolean).length / tests).toFixed(3));
}
`;
