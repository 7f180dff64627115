// Every CUDA kernel assembles, for sm_90a if it is Hopper's and else for sm_80, and keeps its numbers in registers.
// node native/dev/cuda_assembly.mjs does so for all architectures; that takes twice as long.
//
//   node --test tests/native/cuda_assembly.test.mjs        on a machine with nvcc; no GPU is needed

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { architecturesOf, assemble, cuda, kernelFiles, readPtxas } from '../../native/dev/cuda_assembly.mjs';

const nvcc = await cuda();
const skip = nvcc ? false : 'no nvcc was found';

/** Bytes that a kernel may spill; others spill none. Captures are for looking at a call, not for speed. */
const MAY_SPILL = { 'scores.cu': 64, 'forward_half.cu': 128 };

for (const file of kernelFiles()) {
  test(`${file} assembles, and spills no more registers than it may`, { skip }, async () => {
    const kernels = await assemble(nvcc.path, file, architecturesOf(file).slice(0, 1));
    assert.ok(kernels.length > 0);
    for (const { kernel, architecture, registers, spills } of kernels) {
      const which = `${kernel} for ${architecture}`;
      assert.ok(registers > 0 && registers <= 255, which);
      assert.ok(spills <= (MAY_SPILL[file] ?? 0), `${which} spills ${spills} bytes`);
    }
  });
}

test("ptxas's words are read", () => {
  const text = `ptxas info    : Compiling entry function '_Z1kv' for 'sm_80'
ptxas info    : Function properties for _Z1kv
    16 bytes stack frame, 40 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]`;
  const [only] = readPtxas(text, 'k.cu', 'sm_80');
  const expected = { file: 'k.cu', architecture: 'sm_80', kernel: '_Z1kv', registers: 64, stack: 16, spills: 40, shared: 1024 };
  assert.deepEqual(only, expected);
});
