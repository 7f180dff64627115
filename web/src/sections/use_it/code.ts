// Writes the JavaScript and C++ programs that compute the numbers on the screen.

import type { RopeRotation } from 'multihead';
import type { Bend } from '../../attention/bend.js';

/** The pass that the programs compute, and the row of weights that they print. */
export interface Shown {
  readonly tokens: number;
  readonly heads: number;
  readonly embedDim: number;
  readonly headDim: number;
  readonly bias: boolean;
  readonly rope?: RopeRotation | undefined;
  readonly causal: boolean;
  readonly bend: Bend;
  readonly head: number;
  readonly query: number;
}

/** RoPE's base if a model gives none. */
const usualBase = 10000;

/** The file with the sentence as numbers and the weights; see sentence_file.ts. */
export const fileName = 'sentence.safetensors';

const lines = (...parts: (string | false)[]): string => `${parts.filter((part) => part !== false).join('\n')}\n`;
const scalesOf = ({ muted }: Bend, heads: number): string => Array.from({ length: heads }, (_, head) => (muted.includes(head) ? 0 : 1)).join(', ');
const nothingByHand = ({ edits }: Bend): boolean => edits.length === 0;

export function javaScript({ tokens, heads, embedDim, headDim, bias, rope, causal, bend, head, query }: Shown): string {
  const { window, temperature, divisor, muted, withoutOutput } = bend;
  const interventions = [
    temperature !== 1 && `temperature: ${temperature}`,
    divisor === 'model' && 'scaleByEmbedDim: true',
    muted.length > 0 && `scales: Float32Array.of(${scalesOf(bend, heads)})`,
    withoutOutput && 'skipOutProj: true',
  ].filter((part) => part !== false);
  const options = [
    causal && "causal: 'topLeft'",
    window >= 0 && `window: { left: ${window}, right: ${window} }`,
    divisor === 'none' && 'scale: 1',
    interventions.length > 0 && `heads: { ${interventions.join(', ')} }`,
    "return: ['weights']",
  ].filter((part) => part !== false);
  const first = (head * tokens + query) * tokens;
  return lines(
    "import { readFile } from 'node:fs/promises';",
    "import { load, readSafetensors } from 'multihead';",
    '',
    '// The sentence as numbers, and the weights: the file that this page saves.',
    `const { x, ...weights } = readSafetensors(await readFile('${fileName}')).tensors;`,
    'const mh = await load();',
    `const mha = mh.multiHeadAttention({ embedDim: ${embedDim}, numHeads: ${heads}, headDim: ${headDim}, bias: ${bias}${rope ? `, rope: { style: '${rope.style}', base: ${rope.base ?? usualBase} }` : ''} });`,
    'mha.loadStateDict(weights);',
    '',
    !nothingByHand(bend) && '// The weights that were set by hand on the page are not set here.',
    `// Head ${head + 1}, query ${query + 1}: its weight on each of the ${tokens} keys.`,
    'const row = mh.scope(() => {',
    '  const result = mha.forward(x, {',
    ...options.map((option) => `    ${option},`),
    '  });',
    `  return result.weights.data.slice(${first}, ${first + tokens});`,
    '}); // frees the results',
    "console.log(Array.from(row, (weight) => weight.toFixed(4)).join(' '));",
  );
}

const float = (value: number): string => `${Number.isInteger(value) ? value.toFixed(1) : value}F`;

export function cPlusPlus({ tokens, heads, embedDim, headDim, bias, rope, causal, bend, head, query }: Shown): string {
  const { window, temperature, divisor, muted, withoutOutput } = bend;
  const width = withoutOutput ? heads * headDim : embedDim;
  const needsLab = divisor === 'model' || withoutOutput;
  return lines(
    `// Link with multihead::multihead${needsLab ? ', multihead::lab' : ''} and multihead::safetensors.`,
    needsLab && '#include <multihead/lab.h>',
    '#include <multihead/multihead.h>',
    '#include <multihead/safetensors.h>',
    '',
    '#include <cstdio>',
    '#include <cstdlib>',
    '#include <vector>',
    '',
    'int main() {',
    '  namespace mh = multihead;',
    '  const auto check = [](const mh::Status& status) {',
    '    if (status.ok()) return;',
    '    std::puts(status.message().c_str());',
    '    std::exit(1);',
    '  };',
    '',
    '  // The sentence as numbers, and the weights: the file that this page saves.',
    '  mh::Safetensors file;',
    `  check(mh::Safetensors::read("${fileName}", file));`,
    '  mh::StateDict weights;',
    '  check(file.state_dict(weights));',
    `  const mh::ConstTensor x{static_cast<const float*>(weights.at("x").data), {1, ${tokens}, ${embedDim}}};`,
    '  weights.erase("x");',
    '',
    '  mh::MultiHeadAttention mha;',
    '  check(mh::MultiHeadAttention::create(',
    `      {.embed_dim = ${embedDim}, .num_heads = ${heads}, .head_dim = ${headDim}, .bias = ${bias}${rope ? `, .rope = mh::Rope{.style = mh::Rope::Style::${rope.style === 'half' ? 'kHalf' : 'kInterleaved'}, .base = ${(rope.base ?? usualBase).toFixed(1)}}` : ''}}, mha));`,
    '  check(mha.load_state_dict(weights));',
    '',
    muted.length > 0 && `  const std::vector<float> scales = {${scalesOf(bend, heads)}};`,
    '  mh::MultiHeadAttentionOptions options;',
    causal && '  options.attention.causal = mh::Causal::top_left();',
    window >= 0 && `  options.attention.window = {.left = ${window}, .right = ${window}};`,
    divisor === 'none' && '  options.attention.scale = 1.0F;',
    temperature !== 1 && `  options.heads.temperature = ${float(temperature)};`,
    divisor === 'model' && '  options.attention.scale = mh::embed_dim_scale(mha.config());',
    muted.length > 0 && '  options.heads.head_scales = scales;',
    withoutOutput && '  mha = mh::without_out_proj(mha);',
    '',
    `  std::vector<float> output(${tokens} * ${width}), attention(${heads} * ${tokens} * ${tokens});`,
    '  mh::Context context;',
    '  check(mha.forward({.query = x}, options,',
    `                      {.out = {output.data(), {1, ${tokens}, ${width}}},`,
    `                       .weights = {attention.data(), {1, ${heads}, ${tokens}, ${tokens}}}},`,
    '                      nullptr, context));',
    '',
    !nothingByHand(bend) && '  // The weights that were set by hand on the page are not set here.',
    `  // Head ${head + 1}, query ${query + 1}: its weight on each of the ${tokens} keys.`,
    `  const float* row = attention.data() + ${(head * tokens + query) * tokens};`,
    `  for (int key = 0; key < ${tokens}; ++key) std::printf("%.4f ", row[key]);`,
    '  std::puts("");',
    '}',
  );
}
