// A small GPT-2 as a safetensors file, for tests.

import { writeSafetensors } from 'multihead';

/** Numbers that look random and are the same in every run. */
function noise(count: number, seed: number): Float32Array {
  let state = seed >>> 0;
  return Float32Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32 - 0.5;
  });
}

export function gpt2File(options: { vocabSize?: number; layers?: number; metadata?: Record<string, string> } = {}) {
  const { vocabSize = 20, layers = 2, metadata = {} } = options;
  const width = 12;
  const shapes: Record<string, number[]> = {
    'wte.weight': [vocabSize, width],
    'wpe.weight': [40, width],
    'ln_f.weight': [width],
    'ln_f.bias': [width],
  };
  const matrices: [string, number, number][] = [
    ['attn.c_attn', width, 3 * width],
    ['attn.c_proj', width, width],
    ['mlp.c_fc', width, 48],
    ['mlp.c_proj', 48, width],
  ];
  for (let layer = 0; layer < layers; layer += 1) {
    for (const [name, from, to] of matrices) {
      shapes[`h.${layer}.${name}.weight`] = [from, to];
      shapes[`h.${layer}.${name}.bias`] = [to];
    }
    for (const name of ['ln_1', 'ln_2']) {
      shapes[`h.${layer}.${name}.weight`] = [width];
      shapes[`h.${layer}.${name}.bias`] = [width];
    }
  }
  const tensors = Object.fromEntries(
    Object.entries(shapes).map(([name, shape], i) => [
      name,
      { shape, data: noise(shape.reduce((a, b) => a * b), i + 1).map((value) => 4 * value) },
    ]),
  );
  return { bytes: writeSafetensors(tensors, { metadata }), tensors, vocabSize, width, layers };
}
