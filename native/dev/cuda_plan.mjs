// Prints how long FlashAttention-3's shapes (arXiv:2407.08608: 16k tokens, 2048 numbers each, bf16) would take on an H100
// if each step of Hopper's kernels took only what its slowest unit needs, and which unit that is. From the machine code,
// without a GPU:
//
//   node native/dev/cuda_plan.mjs        needs nvcc and cuobjdump; prints a Markdown table for native/BENCHMARKS.md
//
// It is a bound, not a forecast: it has no waits, and the clock of a cool GPU. FlashAttention-3 reaches 54 to 87 % of it.
import { SetupError, say } from './console.mjs';
import { assemble, cuda } from './cuda_assembly.mjs';
import { runAsProgram } from './program.mjs';

// An H100 SXM: per multiprocessor and cycle.
const PROCESSORS = 132;
const GHZ = 1.755;
const FLOP = 4096; // of 16-bit products
const EXPONENTIALS = 16;
const SCHEDULERS = 4; // each issues one instruction of a warp
const TERABYTES = 3.35; // a second, of all multiprocessors
// Cycles of a tile outside its loop. The backward has a block for each tile: 800 instructions before the first load, its
// latency, and the epilogue take about 3 µs (estimated), and a multiprocessor holds one block, so nothing overlaps them. A
// block of the forward computes tiles one after the other, without a pause between their products; its epilogue takes 1.7 µs
// (an H200, from samples of the instructions at d 128).
const FIXED = { forward: 3000, backward: 5300 };

const TOKENS = 16384;
const NUMBERS = 2048;

/** Cycles that a step of a block takes in each unit. `rows` × `columns` scores, `products` matrix products of depth d. */
export function cyclesOf({ rows, columns, d, products, instructions }) {
  const warps = rows / 16;
  return {
    'tensor cores': (2 * products * rows * columns * d) / FLOP,
    instructions: (instructions * warps) / SCHEDULERS,
    exponentials: (rows * columns) / EXPONENTIALS,
  };
}

/** The slowest unit: [its name, its cycles]. */
export const slowest = (cycles) => Object.entries(cycles).reduce((most, one) => (one[1] > most[1] ? one : most));

/** The cycles after which the last multiprocessor has ended blocks that start in this order. */
export function schedule(blocks, processors = PROCESSORS) {
  const ends = new Float64Array(processors);
  for (const cycles of blocks) {
    let first = 0;
    for (let i = 1; i < processors; i += 1) if (ends[i] < ends[first]) first = i;
    ends[first] += cycles;
  }
  return Math.max(...ends);
}

/**
 * Microseconds of a kernel with one tile for each `rows` rows of each head. `fixed`: cycles of a tile outside its loop.
 * @param {{ backward?: boolean, rows: number, columns: number, d: number, products: number, step: { instructions: number, masks: number } }} kernel
 */
export function microseconds(kernel, tokens, causal, fixed = kernel.backward ? FIXED.backward : FIXED.forward) {
  const { rows, columns, step } = kernel;
  const cycles = (instructions) => slowest(cyclesOf({ ...kernel, instructions }))[1];
  const usual = cycles(step.instructions - step.masks);
  const masked = cycles(step.instructions);
  const heads = (TOKENS / tokens) * (NUMBERS / kernel.d);
  const blocks = [];
  for (let first = Math.ceil(tokens / rows - 1) * rows; first >= 0; first -= rows) {
    const seen = causal ? Math.min(tokens, first + rows) : tokens;
    const steps = Math.ceil(seen / columns);
    const whole = causal ? Math.floor(first / columns) : Math.floor(tokens / columns);
    blocks.push(fixed + whole * usual + (steps - whole) * masked);
  }
  const all = blocks.flatMap((block) => Array(heads).fill(block));
  return schedule(all) / GHZ / 1000;
}

const gradients = { 0: 3, 1: 3, 2: 2, 3: 4 }; // products of a step, by HopperSums
/** The shape of a Hopper kernel, from its name: { backward, causal, sums, rows, columns, d, products }; null for others. */
export function shapeOf(name) {
  const forward = name
    .match(/^forward_hopper<BFloat16, HopperTile<(\d+), (\d+), (\d), \w+(?:, false)?>/) // not with options
    ?.slice(1)
    .map(Number);
  if (forward) {
    const [d, columns, warpgroups] = forward;
    return { backward: false, rows: 64 * warpgroups, columns, d, products: 2 };
  }
  const backward = name.match(/^backward_hopper<BFloat16, HopperBackwardTile<\(?[\w: ]*\)?(\d), (\d+), (\d+)/);
  if (!backward) return null;
  const [sums, d, columns] = backward.slice(1).map(Number);
  return { backward: true, sums, rows: 128, columns, d, products: gradients[sums] };
}

// TFLOP/s of FlashAttention-3 on an H100 in its paper, by d and tokens: full and causal.
const PUBLISHED = {
  '64 16384': [497, 473],
  '128 512': [467, 292],
  '128 2048': [625, 521],
  '128 16384': [648, 616],
  '256 16384': [756, 642],
};
const PUBLISHED_BACKWARD = { '128 512': [316], '128 16384': [561] };

/** One row of the table. `kernels`: shapeOf() each kernel, with its step. */
export function rowOf(kernels, d, tokens, causal, backward) {
  const heads = (TOKENS / tokens) * (NUMBERS / d);
  const own = kernels.filter((kernel) => kernel.backward === backward && kernel.d === d);
  // Forward d 128 has a tile for causal masks and one without; all backward kernels run.
  const widest = Math.max(...own.map(({ columns }) => columns));
  const run = backward ? own : own.filter(({ columns }) => own.length === 1 || (columns === widest) === !causal);
  const sum = (...fixed) => run.reduce((all, kernel) => all + microseconds(kernel, tokens, causal, ...fixed), 0);
  const time = sum();
  const flop = ((backward ? 10 : 4) * tokens * tokens * d * heads) / (causal ? 2 : 1);
  const bytes = TOKENS * NUMBERS * (backward ? 4 * 2 + 3 * 4 : 4 * 2);
  const units = run.map((kernel) => cyclesOf({ ...kernel, instructions: kernel.step.instructions - kernel.step.masks }));
  const memory = bytes / TERABYTES / 1e6;
  const limits = [...new Set(units.map((cycles) => slowest(cycles)[0]))];
  if (memory > time) limits.splice(0, limits.length, 'memory');
  const steps = units.map((cycles) => Object.values(cycles).map(Math.round).join(' / '));
  const bound = flop / Math.max(time, memory) / 1e6;
  const published = (backward ? PUBLISHED_BACKWARD : PUBLISHED)[`${d} ${tokens}`]?.[causal ? 1 : 0];
  return [
    `${backward ? 'backward' : 'forward'} d ${d}, ${tokens}${causal ? ', causal' : ''}`,
    steps.join('; '),
    limits.join(', '),
    `${Math.round(100 - (100 * sum(0)) / time)} %`,
    Math.max(time, memory).toFixed(0),
    bound.toFixed(0),
    published ?? '–',
  ];
}

runAsProgram(import.meta.url, async () => {
  const nvcc = await cuda();
  if (!nvcc) throw new SetupError('No nvcc was found', 'npm run setup -- cuda gets one');
  const kernels = [];
  for (const file of ['hopper/forward.cu', 'hopper/backward.cu']) {
    for (const { kernel, step } of await assemble(nvcc, file)) {
      const shape = shapeOf(kernel);
      if (shape && step) kernels.push({ ...shape, step });
    }
  }
  if (kernels.length === 0) throw new SetupError('No machine code was read', 'Is cuobjdump installed?');
  const line = (cells) => say(`| ${cells.join(' | ')} |`);
  const cycles = 'cycles of a step: tensor cores / instructions / exponentials';
  const titles = ['case', cycles, 'limited by', 'outside the loop', 'µs', 'TFLOP/s', 'FlashAttention-3'];
  line(titles);
  line(titles.map(() => '---'));
  for (const backward of [false, true]) {
    for (const d of [64, 128, 256]) {
      for (const tokens of [512, 2048, 16384]) {
        for (const causal of [false, true]) line(rowOf(kernels, d, tokens, causal, backward));
      }
    }
  }
});
