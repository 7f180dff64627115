// The guides: the blocks of each guide form one program, which passes a strict type check and prints the stated
// results.

import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { writeSafetensors } from 'multihead';
import { bindings, blocksOf, compile, printsWhatItStates, projectWith } from './examples.ts';

const folder = join(bindings, 'guides');
const names = (await readdir(folder)).map((file) => file.replace(/\.md$/, ''));
const guides = await Promise.all(
  names.map(async (name) => {
    const text = await readFile(join(folder, `${name}.md`), 'utf8');
    const blocks = blocksOf(text);
    return { name, text, blocks, code: blocks.map(({ code }) => code).join('\n') };
  }),
);

/** A safetensors file of a GPT-2 with two layers of 12 heads, and a vocabulary for the guide's token ids. */
function smallGpt2(): Uint8Array {
  const width = 96;
  const shapes: Record<string, number[]> = { 'wte.weight': [4000, width], 'wpe.weight': [64, width], 'ln_f.weight': [width], 'ln_f.bias': [width] };
  const layer = {
    ln_1: [width],
    'attn.c_attn': [width, 3 * width],
    'attn.c_proj': [width, width],
    ln_2: [width],
    'mlp.c_fc': [width, 4 * width],
    'mlp.c_proj': [4 * width, width],
  };
  for (const index of [0, 1]) {
    shapes[`h.${index}.attn.bias`] = [1, 1, 64, 64]; // a buffer in published files that is not a parameter
    for (const [name, shape] of Object.entries(layer)) {
      shapes[`h.${index}.${name}.weight`] = shape;
      shapes[`h.${index}.${name}.bias`] = shape.slice(-1);
    }
  }
  return randomWeights(shapes);
}

const smallAutoencoder = (): Uint8Array => randomWeights({ W_enc: [96, 256], W_dec: [256, 96], b_enc: [256], b_dec: [96] });

function randomWeights(shapes: Record<string, number[]>): Uint8Array {
  const random = (shape: number[]) => Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => Math.random() - 0.5);
  return writeSafetensors(Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, { shape, data: random(shape) }])));
}

describe('the guides', { timeout: 60_000 }, () => {
  let project: string;
  beforeAll(async () => {
    project = await projectWith(Object.fromEntries(guides.map(({ name, code }) => [`${name}.ts`, code])));
    await writeFile(join(project, 'model.safetensors'), smallGpt2());
    await mkdir(join(project, 'model'));
    await writeFile(join(project, 'model', 'model.safetensors'), smallGpt2());
    await mkdir(join(project, 'sae'));
    await writeFile(join(project, 'sae', 'sae_weights.safetensors'), smallAutoencoder());
    await writeFile(join(project, 'sae', 'cfg.json'), JSON.stringify({ d_in: 96, d_sae: 256, hook_name: 'blocks.1.hook_resid_pre' }));
    const config = { model_type: 'gpt2', n_layer: 2, n_head: 12, n_embd: 96, n_positions: 64, vocab_size: 4000 };
    await writeFile(join(project, 'model', 'config.json'), JSON.stringify(config));
  });
  afterAll(() => rm(project, { recursive: true }));

  it('are eight, each of one screen, in TypeScript', () => {
    expect(names.sort()).toEqual(['attention', 'copying', 'directions', 'gpt2', 'heads', 'masks', 'training', 'webgpu']);
    for (const { name, text, blocks } of guides) {
      expect(text.split('\n').length, name).toBeLessThan(95);
      expect(new Set(blocks.map(({ language }) => language)), name).toEqual(new Set(['ts']));
    }
  });

  it('have types that a strict project accepts', async () => {
    const files = names.map((name) => `${name}.ts`);
    await compile(project, 'run', files, ['--module', 'nodenext', '--noUncheckedIndexedAccess', '--types', 'node']);
  });

  it.each(guides)('run and print the results that they state: $name', async ({ name, code }) => {
    await printsWhatItStates(project, join('run', `${name}.js`), code);
  });
});
