// Assembles the CUDA kernels and prints for each: ptxas's figures (registers, spills, stack); its tensor-core and
// local-memory instructions and those of a step, if cuobjdump is found; and the numbers of blocks that fit in a
// multiprocessor and that are planned.
//
//   node native/dev/cuda_assembly.mjs [f32/decode.cu …]      needs nvcc, no GPU; exit code 1 if a kernel has fewer blocks than planned
//
// The program multihead-cuda-launches prints the threads and the shared memory that the host code requests per block.
// This script builds the program if the preset native is configured; it needs Boost.Context.
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { ROOT } from './build.mjs';
import { SetupError, ask, run, say } from './console.mjs';
import { findCuda } from './cuda.mjs';
import { occupancy, plannedBlocks, readLaunches, shortName } from './cuda_occupancy.mjs';
import { atLeast, findProgram } from './find.mjs';
import { runAsProgram } from './program.mjs';

const folder = join(ROOT, 'src', 'cuda');
const GENERIC = ['sm_80', 'sm_86', 'sm_89', 'sm_90a'];
/** Returns the architectures of a file, which depend on nvcc's version. Only compute capability 9.0 has wgmma. */
export function architecturesOf(file, version = '12.0') {
  if (file.startsWith('hopper/')) return ['sm_90a'];
  return atLeast(version, '12.8') ? [...GENERIC, 'sm_100', 'sm_120'] : GENERIC;
}

export const cuda = () => findCuda(join(ROOT, 'build', 'toolchain', 'cuda'));
export const kernelFiles = () => readdirSync(folder, { recursive: true }).filter((name) => name.endsWith('.cu'));

/**
 * Parses the output of `nvcc -Xptxas -v`: [{ file, architecture, kernel, registers, stack, spills, shared, slowed }].
 * `slowed`: ptxas serializes wgmma products, or adds a fence that the source lacks.
 */
export function readPtxas(text, file, architecture) {
  const kernels = [];
  const slowed = new Set([...text.matchAll(/\(C75\d\d\).* function '(\w+)'/g)].map(([, kernel]) => kernel));
  for (const part of text.split(/Compiling entry function '/).slice(1)) {
    const number = (pattern) => Number(part.match(pattern)?.[1] ?? 0);
    kernels.push({
      file,
      architecture,
      kernel: part.slice(0, part.indexOf("'")),
      registers: number(/Used (\d+) registers/),
      stack: number(/(\d+) bytes stack frame/),
      spills: number(/(\d+) bytes spill stores/),
      shared: number(/(\d+) bytes smem/),
      slowed: slowed.has(part.slice(0, part.indexOf("'"))),
    });
  }
  return kernels;
}

/**
 * Returns the step of a kernel: its loop with the largest share of tensor-core instructions, as { instructions, masks,
 * products, order }. `masks`: those of `instructions` that hide keys, which a branch skips in most steps. `order`: the waits
 * for wgmma (W1, W0: at most so many groups still run) and the exponentials (E) in it, as a string such as 'W1 E W0'. Null
 * without such a loop.
 */
export function readStep(code) {
  const lines = [...code.matchAll(/^\s+\/\*([0-9a-f]{4,})\*\/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);/gm)];
  const instructions = lines.map(([, at, name, operands]) => ({ at: parseInt(at, 16), name, operands }));
  const isProduct = ({ name }) => /^HG?MMA\b/.test(name);
  const targetOf = ({ name, operands }) => (name.startsWith('BRA') ? parseInt(operands.match(/0x([0-9a-f]+)\s*$/)?.[1], 16) : NaN);
  let step = null;
  for (const branch of instructions) {
    const to = targetOf(branch);
    if (!(to < branch.at)) continue;
    const loop = instructions.filter(({ at }) => at >= to && at <= branch.at);
    const products = loop.filter(isProduct).length;
    if (products === 0 || (step && products / loop.length <= step.products / step.instructions)) continue;
    const marks = loop.flatMap((one) => {
      if (one.name.startsWith('MUFU.EX2')) return ['E'];
      return one.name.startsWith('WARPGROUP.DEPBAR') ? [`W${Number(one.operands.match(/0x([0-9a-f]+)/)[1])}`] : [];
    });
    const order = marks.filter((mark, i) => mark !== marks[i - 1]).join(' ');
    step = { instructions: loop.length, masks: masksOf(loop, targetOf), products, order };
  }
  return step;
}

/** Counts the instructions of a loop that a branch skips and that only compare and select. */
function masksOf(loop, targetOf) {
  const masks = new Set();
  for (const branch of loop) {
    const skipped = loop.filter(({ at }) => at > branch.at && at < targetOf(branch));
    const hides = skipped.some(({ name }) => /^(FSEL|SEL)\b/.test(name)) && skipped.some(({ name }) => name.startsWith('ISETP'));
    const works = skipped.some(({ name }) => /^(HG?MMA|LDSM|LDGSTS|MUFU|SHFL|BAR|SYNCS|WARPGROUP|LDG|STS|F2I)\b/.test(name));
    if (hides && !works) for (const { at } of skipped) masks.add(at);
  }
  return masks.size;
}

/** Parses cuobjdump's output: numbers of instructions { hgmma, hmma, local } and the step per kernel, by its mangled name. */
export function readMachineCode(text) {
  const kernels = new Map();
  for (const part of text.split(/^\s*Function : /m).slice(1)) {
    const count = (pattern) => part.match(pattern)?.length ?? 0;
    kernels.set(part.slice(0, part.search(/\s/)), {
      hgmma: count(/\bHGMMA\b/g),
      hmma: count(/\bHMMA\b/g),
      local: count(/\b(LDL|STL)\b/g),
      step: readStep(part),
    });
  }
  return kernels;
}

/** Assembles one file, by default for all architectures of its kernels. */
export async function assemble({ path: nvcc, version }, file, architectures = architecturesOf(file, version)) {
  // Look next to nvcc, and where native/dev/cuda.mjs unpacks cuobjdump.
  const besides = ['.', '../usr/bin'].map((folder) => join(dirname(nvcc), folder, 'cuobjdump'));
  const disassembler = findProgram(...besides, 'cuobjdump');
  const scratch = mkdtempSync(join(tmpdir(), 'multihead-cuda-'));
  const kernels = [];
  try {
    for (const architecture of architectures) {
      const target = `-gencode=arch=${architecture.replace('sm', 'compute')},code=${architecture}`;
      const options = ['-std=c++20', '--expt-relaxed-constexpr', '-O3', '-Xptxas', '-v', '-I', join(ROOT, 'src')];
      const cubin = join(scratch, `${architecture}.cubin`);
      const command = [nvcc, ...options, target, '-cubin', '-o', cubin, join(folder, file)];
      const said = await run(['sh', '-c', '"$@" 2>&1', 'sh', ...command], { cwd: ROOT });
      const code = disassembler && (await ask([disassembler, '--dump-sass', cubin]));
      const instructions = readMachineCode(code ?? '');
      kernels.push(...readPtxas(said, file, architecture).map((it) => ({ ...it, ...instructions.get(it.kernel) })));
    }
  } finally {
    rmSync(scratch, { recursive: true });
  }
  const names = (await ask(['c++filt', ...kernels.map(({ kernel }) => kernel)]))?.trim().split('\n');
  return kernels.map((it, i) => ({ ...it, kernel: shortName(names?.[i] ?? it.kernel) }));
}

/**
 * Returns a kernel's launches, each with the number of blocks that fit in a multiprocessor; empty if no launch is
 * known.
 */
export function withOccupancy(kernel, launches) {
  const known = launches?.get(kernel.kernel) ?? [];
  return known.map(({ threads, shared, width }) => {
    const bytes = kernel.shared + shared;
    return { threads, width, bytes, ...occupancy(kernel.architecture, { ...kernel, threads, shared: bytes }) };
  });
}

const TITLES = ['file', 'for', 'kernel', 'registers', 'spills', 'stack', 'HGMMA', 'HMMA', 'LDL, STL', 'a step', 'of them masks'].concat([
  'its products',
  'd up to',
  'threads',
  'shared',
  'blocks',
  'planned',
  'warps',
  '% of 64',
  'limited by',
]);

function rowsOf(kernel, launches) {
  const { file, architecture, registers, spills, stack, hgmma = '–', hmma = '–', local = '–' } = kernel;
  const step = ['instructions', 'masks', 'products'].map((name) => kernel.step?.[name] ?? '–');
  const own = [file, architecture, `\`${kernel.kernel}\``, registers, spills, stack, hgmma, hmma, local, ...step];
  const places = withOccupancy(kernel, launches);
  if (places.length === 0) return [[...own, '–', '–', '–', '–', plannedBlocks(kernel.kernel), '–', '–', 'not known']];
  return places.map(({ width, threads, bytes, blocks, warps, percent, limit }) => [
    ...own,
    ...[width, threads, bytes, blocks, plannedBlocks(kernel.kernel), warps, percent.toFixed(0), limit],
  ]);
}

runAsProgram(import.meta.url, async (...args) => {
  const nvcc = await cuda();
  if (!nvcc) throw new SetupError('No nvcc was found', 'npm run setup -- cuda gets one');
  const native = join(ROOT, 'build', 'native');
  if (existsSync(join(native, 'CMakeCache.txt'))) {
    const built = await ask(['cmake', '--build', native, '--target', 'multihead-cuda-launches']);
    if (built === null) say('Occupancy is not known: multihead-cuda-launches could not be built.');
  }
  const launches = readLaunches();
  const line = (cells) => say(`| ${cells.join(' | ')} |`);
  line(TITLES);
  line(TITLES.map(() => '---'));
  for (const file of args.length ? args.map((name) => kernelFiles().find((file) => name.endsWith(file)) ?? name) : kernelFiles()) {
    for (const kernel of await assemble(nvcc, file)) {
      rowsOf(kernel, launches).forEach(line);
      if (withOccupancy(kernel, launches).some(({ blocks }) => blocks < plannedBlocks(kernel.kernel))) process.exitCode = 1;
    }
  }
});
