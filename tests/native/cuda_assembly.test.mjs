// Every CUDA kernel assembles, Hopper kernels for sm_90a and all others for sm_80. It spills no more registers than
// MAY_SPILL, and leaves a multiprocessor room for the planned number of blocks. node native/dev/cuda_assembly.mjs
// checks all architectures, which takes twice as long.
//
//   node --test tests/native/cuda_assembly.test.mjs        on a machine with nvcc; no GPU is needed

import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  architecturesOf,
  assemble,
  cuda,
  kernelFiles,
  readMachineCode,
  readPtxas,
  readStep,
  withOccupancy,
} from '../../native/dev/cuda_assembly.mjs';
import { launchesOf, occupancy, plannedBlocks, readLaunches, shortName } from '../../native/dev/cuda_occupancy.mjs';

const nvcc = await cuda();
const skip = nvcc ? false : 'no nvcc was found';
const launches = readLaunches(); // null without multihead-cuda-launches, which needs Boost.Context

/**
 * Bytes that a kernel of a file may spill; kernels of other files spill none. scores.cu captures scores for inspection,
 * so its speed does not matter.
 */
const MAY_SPILL = { 'rows/scores.cu': 64 };

/**
 * The most instructions of a warp in a step, by a pattern of the kernel's name: what nvcc 13.0 emits for bf16, and 3 %.
 * With descriptors that the compiler does not know to be the same in all lanes, Hopper's forward had 676 at d 256 and 947
 * with 176 keys. With tests of the width between products and masks in every tile, mma.sync's forward had 1850 at d 128;
 * with an address computed for each load of a fragment, it had 1017, and d_k and d_v had 1547.
 */
const MOST_INSTRUCTIONS = [
  [/^forward_hopper<\w+, HopperTile<256, 80,/, 641], // 622, with 162 for masks; the products take 2560 cycles of a multiprocessor
  [/^forward_hopper<\w+, HopperTile<128, 128,/, 751], // 729, with 234 for masks; 2048 cycles
  [/^forward_hopper<\w+, HopperTile<128, 176,/, 935], // 908, with 306 for masks; 2816 cycles
  [/^forward_hopper<\w+, HopperTile<128, 80,/, 2895], // 2811 with the passes of all options, of which a bias takes 707; 1280 cycles
  [/^forward_hopper<\w+, HopperTile<64, 80,/, 2848], // 2765, and 663; 640 cycles
  [/^forward_hopper<\w+, HopperTile<64, 128,/, 707], // 686, with 234 for masks; 1536 cycles
  [/^forward_mma<false, \w+, 128>/, 914], // 888, with 149 for masks; 1024 cycles on compute capability 8.0
  [/^forward_mma<true, \w+, 128>/, 3542], // 3439 with the passes of all options; on 9.0, where it has 3546, 12170 with tests for each score
  [/^backward_keys<false, true, true, \w+, 128>/, 1011], // 982, with 167 for masks; 1024 cycles
  [/^backward_queries<false, \w+, 128>/, 584], // 554, with 93 for masks; 768 cycles
  [/^backward_keys<true, true, true, \w+, 128>/, 2669], // 2591; on 9.0 2808, and 5351 with tests for each score
  [/^backward_queries<true, \w+, 128>/, 2507], // 2434; on 9.0 2575 and 4571
  [/^decode_mma<false, \w+, \w+, 128>/, 737], // 715 for 16 keys, with 72 for masks; 3201 before options had kernels of their own
];

for (const file of kernelFiles()) {
  test(`${file} assembles, and spills no more registers than it may`, { skip }, async () => {
    const kernels = await assemble(nvcc, file, architecturesOf(file).slice(0, 1));
    assert.ok(kernels.length > 0);
    for (const built of kernels) {
      const { kernel, architecture, registers, spills, hgmma, slowed } = built;
      const which = `${kernel} for ${architecture}`;
      assert.ok(registers > 0 && registers <= 255, which);
      assert.ok(spills <= (MAY_SPILL[file] ?? 0), `${which} spills ${spills} bytes`);
      assert.ok(!slowed, `${which}: ptxas serializes products of wgmma, or adds a fence`);
      if (/^\w+_hopper</.test(kernel)) assert.ok(hgmma === undefined || hgmma > 0, `${which} has no wgmma`);
      const most = MOST_INSTRUCTIONS.find(([name]) => name.test(kernel))?.[1];
      if (!built.step || !most) continue;
      assert.ok(built.step.instructions <= most, `${which} has ${built.step.instructions} instructions a step`);
      // The exponentials of a step run under the product of weights and values.
      if (kernel.startsWith('forward_hopper<')) assert.equal(built.step.order, 'W1 E W0', which);
      if (!launches) continue;
      const places = withOccupancy(built, launches);
      assert.ok(places.length > 0, `${kernel}: tests/cuda/kernel_launches.cc does not launch it`);
      for (const { blocks, limit } of places) {
        const planned = plannedBlocks(kernel);
        assert.ok(blocks >= planned, `${which}: ${limit} allows ${blocks} blocks a multiprocessor, planned are ${planned}`);
      }
    }
  });
}

test("ptxas's words are read", () => {
  const text = `ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... the function '_Z1wv'
ptxas info    : Compiling entry function '_Z1kv' for 'sm_80'
ptxas info    : Function properties for _Z1kv
    16 bytes stack frame, 40 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]`;
  const [only] = readPtxas(text, 'k.cu', 'sm_80');
  const expected = { file: 'k.cu', architecture: 'sm_80', kernel: '_Z1kv', registers: 64, stack: 16, spills: 40, shared: 1024 };
  assert.deepEqual(only, { ...expected, slowed: false });
  assert.equal(readPtxas(text.replace('_Z1wv', '_Z1kv'), 'k.cu', 'sm_80')[0].slowed, true);
});

test('occupancy is that of the rules of CUDA', () => {
  const of = (architecture, registers, threads, shared) => {
    const { blocks, warps, percent, limit } = occupancy(architecture, { registers, threads, shared });
    return [blocks, warps, percent, limit];
  };
  // Expected blocks are from the toolkit's cuda_occupancy.h. Registers are allocated to a warp in units of 256.
  assert.deepEqual(of('sm_80', 32, 1024, 0), [2, 64, 100, 'warps']);
  assert.deepEqual(of('sm_80', 33, 1024, 0), [1, 32, 50, 'registers']);
  assert.deepEqual(of('sm_80', 40, 256, 0), [6, 48, 75, 'registers']);
  assert.deepEqual(of('sm_80', 64, 256, 0), [4, 32, 50, 'registers']);
  assert.deepEqual(of('sm_80', 168, 128, 0), [3, 12, 18.75, 'registers']);
  assert.deepEqual(of('sm_80', 255, 128, 0), [2, 8, 12.5, 'registers']);
  assert.deepEqual(of('sm_80', 16, 32, 0), [32, 32, 50, 'blocks']);
  // Registers belong to a quarter of a multiprocessor: 3 warps with 168 registers a thread fit in each, so 12 in all.
  assert.deepEqual(of('sm_90a', 168, 384, 0), [1, 12, 18.75, 'registers']);
  assert.deepEqual(of('sm_90a', 168, 416, 0), [0, 0, 0, 'registers']);
  // The system reserves 1 kB of shared memory for each block.
  assert.deepEqual(of('sm_80', 32, 128, 81 * 1024), [2, 8, 12.5, 'shared memory']);
  assert.deepEqual(of('sm_80', 32, 128, 81 * 1024 + 1), [1, 4, 6.25, 'shared memory']);
  assert.deepEqual(of('sm_90a', 32, 128, 113 * 1024), [2, 8, 12.5, 'shared memory']);
  assert.deepEqual(of('sm_80', 32, 128, 163 * 1024), [1, 4, 6.25, 'shared memory']);
  assert.deepEqual(of('sm_80', 32, 128, 163 * 1024 + 1), [0, 0, 0, 'shared memory']);
});

test('launches are read: the widest rows of each amount of shared memory', () => {
  const symbols = [
    '0000000000001000 T multihead_launches_origin',
    '0000000000000f00 t void multihead::cuda::(anonymous namespace)::k<2>(multihead::cuda::ForwardParams)',
    '0000000000000f00 t .hidden',
    '0000000000001100 W void multihead::cuda::mma::wide<multihead::Float16>(HopperCall)',
  ].join('\n');
  const read = launchesOf('-256 128 64 64\n256 384 0 64\n-256 128 64 128\n-256 128 96 256\n', symbols);
  assert.deepEqual([...read.keys()], ['k<2>', 'wide<Float16>']);
  assert.deepEqual(read.get('k<2>'), [
    { threads: 128, shared: 64, width: 128 },
    { threads: 128, shared: 96, width: 256 },
  ]);
  const kernel = { kernel: 'k<2>', architecture: 'sm_80', registers: 32, shared: 1024 };
  assert.deepEqual(
    withOccupancy(kernel, read).map(({ bytes, blocks }) => [bytes, blocks]),
    [
      [1088, 16],
      [1120, 16],
    ],
  );
  assert.deepEqual(withOccupancy({ ...kernel, kernel: 'other' }, read), []);
  assert.equal(shortName('multihead::cuda::merge_rows(multihead::cuda::MergeParams)'), 'merge_rows');
});

test("cuobjdump's words are read", () => {
  const text = `\t\tFunction : _Z1av
        /*0000*/  HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0010*/  STL [R1], R2 ;
        /*0020*/  LDL.64 R4, [R1+0x8] ;
\t\tFunction : _Z1bv
        /*0000*/  HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0010*/  LDS R1, [R2] ;
`;
  const read = readMachineCode(text);
  assert.deepEqual(read.get('_Z1av'), { hgmma: 1, hmma: 0, local: 2, step: null });
  assert.deepEqual(read.get('_Z1bv'), { hgmma: 0, hmma: 1, local: 0, step: null });
  assert.equal(readMachineCode('').size, 0);
});

const listing = (lines) => lines.map((line, i) => `        /*${(16 * i).toString(16).padStart(4, '0')}*/                   ${line} ;`).join('\n');

test('the step of a kernel is its densest loop', () => {
  const loop = ['HGMMA.64x8x16.F32 R1, gdesc[UR8], R1', 'WARPGROUP.DEPBAR.LE gsb0, 0x1', 'MUFU.EX2 R2, R2', 'MUFU.EX2 R3, R3'];
  const text = listing(['MOV R1, R2', ...loop, 'WARPGROUP.DEPBAR.LE gsb0, 0x0', '@P0 BRA 0x10', 'NOP', 'BRA 0x0', 'BRA 0x80']);
  assert.deepEqual(readStep(text), { instructions: 6, masks: 0, products: 1, order: 'W1 E W0' });
  assert.equal(readStep(text.replace(/HGMMA/, 'IMAD')), null);
});

test('masks of a step are what a branch skips and what does no other work', () => {
  const mask = ['ISETP.GE.AND P1, PT, R1, R2, PT', 'FSEL R3, R3, -INF , !P1'];
  const step = (skipped) => readStep(listing(['HMMA.16816.F32 R4, R8, R12, R4', '@P0 BRA 0x50', ...skipped, 'NOP', '@P2 BRA 0x0']));
  assert.equal(step([...mask, 'NOP']).masks, 3);
  assert.equal(step([...mask, 'LDGSTS.E.128 [R1], [R2.64]']).masks, 0);
  assert.equal(step(['NOP', 'NOP', 'NOP']).masks, 0);
});
