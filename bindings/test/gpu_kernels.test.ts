// The texts of the kernels, for what a driver may do with them.

import { readdir, readFile } from 'node:fs/promises';
import { describe, expect, it } from 'vitest';
import { kernels } from '../src/generated/kernels.ts';
import { accessOf, kernelText } from '../src/gpu/pipelines.ts';

const folder = new URL('../../src/webgpu/kernels/', import.meta.url);
const files = (await readdir(folder)).filter((name) => name.endsWith('.wgsl'));
const withoutComments = (text: string) => text.replaceAll(/\/\/.*/g, '');

/** Declarations of a `var` of a function that has no initial value. */
const uninitialized = (text: string): string[] => withoutComments(text).match(/\bvar\s+\w+\s*(:[^=;]*)?;/g) ?? [];

describe('the kernels', () => {
  it('give every variable of a function a value: in a loop drivers would keep that of the last iteration', async () => {
    expect(uninitialized('for (;;) { var s: f32; var t = 0.0; var u: u32 = 1u; }')).toEqual(['var s: f32;']);
    expect(files.length).toBeGreaterThan(5);
    for (const name of files) expect(uninitialized(await readFile(new URL(name, folder), 'utf8')), name).toEqual([]);
  });

  it('have no infinity and no NaN in their text, which WGSL lets a driver leave out', async () => {
    for (const name of files) {
      const text = withoutComments(await readFile(new URL(name, folder), 'utf8'));
      expect(text.match(/\b(inf|infinity|nan)\(|1(\.0)?\s*\/\s*0(\.0)?\b/gi) ?? [], name).toEqual([]);
    }
  });

  it.each(kernels)('resolve their lines for any constants: $name', (kernel) => {
    for (let choice = 0; choice < 2 ** kernel.constants.length; choice += 1) {
      const text = kernelText(
        kernel,
        kernel.constants.map((_, at) => (choice >> at) & 1),
      );
      expect(text).not.toMatch(/\/\/|\$/);
      expect(text).toMatch(/^(enable \w+;\n)*(const|struct|@|fn|var)/);
      expect(text.match(/\bfn main\(/g)).toHaveLength(1);
      // Bindings are 1, 2, 3 and so on, and a call has no more than WebGPU's smallest limit.
      expect(accessOf(text)).toMatch(/^[rw]{1,8}$/);
      expect(text.match(/@binding\(\d+\)/g)).toHaveLength(accessOf(text).length + 1);
      expect([...text].filter((each) => each === '{').length).toBe([...text].filter((each) => each === '}').length);
    }
  });
});
