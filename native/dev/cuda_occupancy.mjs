// Computes how many blocks of a kernel fit in a multiprocessor at the same time, and what limits them, by the rules of
// NVIDIA's occupancy calculator (cuda_occupancy.h of the toolkit).
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './build.mjs';

const KB = 1024;
/**
 * Limits of a multiprocessor; `block`: shared memory per block ("Compute Capabilities" in the CUDA Programming Guide).
 */
export const LIMITS = {
  sm_80: { registers: 65536, shared: 164 * KB, block: 163 * KB, warps: 64, blocks: 32 },
  sm_86: { registers: 65536, shared: 100 * KB, block: 99 * KB, warps: 48, blocks: 16 },
  sm_89: { registers: 65536, shared: 100 * KB, block: 99 * KB, warps: 48, blocks: 24 },
  sm_90a: { registers: 65536, shared: 228 * KB, block: 227 * KB, warps: 64, blocks: 32 },
  sm_100: { registers: 65536, shared: 228 * KB, block: 227 * KB, warps: 64, blocks: 32 },
  sm_120: { registers: 65536, shared: 100 * KB, block: 99 * KB, warps: 48, blocks: 24 },
};
const PARTS = 4; // parts of a multiprocessor, each with its own registers
const REGISTER_UNIT = 256; // a warp gets a multiple of this number of registers
const SHARED_UNIT = 128;
const SHARED_RESERVED = 1 * KB; // reserved by the system in each block

const roundUp = (value, unit) => Math.ceil(value / unit) * unit;

/**
 * @param {keyof typeof LIMITS} architecture
 * @param {{ registers: number, threads: number, shared: number }} kernel registers per thread, threads per block,
 *   bytes of shared memory per block
 * @returns {{ blocks: number, warps: number, percent: number, limit: string }} blocks and warps per multiprocessor, the
 *   warps as a percentage of the largest possible number, and the resource that allows no further block
 */
export function occupancy(architecture, { registers, threads, shared }) {
  const most = LIMITS[architecture];
  const warpsOfBlock = Math.ceil(threads / 32);
  const ofWarp = roundUp(registers * 32, REGISTER_UNIT);
  const blocksBy = {
    warps: Math.floor(most.warps / warpsOfBlock),
    registers: Math.floor((PARTS * Math.floor(most.registers / PARTS / ofWarp)) / warpsOfBlock),
    'shared memory': shared > most.block ? 0 : Math.floor(most.shared / roundUp(shared + SHARED_RESERVED, SHARED_UNIT)),
    blocks: most.blocks,
  };
  const [limit, blocks] = Object.entries(blocksBy).reduce((least, one) => (one[1] < least[1] ? one : least));
  const warps = blocks * warpsOfBlock;
  return { blocks, warps, percent: (100 * warps) / most.warps, limit };
}

/**
 * Kernels with one block per multiprocessor: Hopper's kernels are planned so, and the others leave no room for a second
 * block in 164 kB of shared memory.
 */
const ONE_BLOCK = /^(\w+_hopper<.*|forward_f32<8>|(backward::)?backward_(keys|queries)<(8|.*, 256)>|backward::differentiate_bias)$/;

/**
 * Returns the planned number of blocks per multiprocessor of a kernel, by its short name. Two blocks, if they fit, hide
 * each other's waits.
 */
export const plannedBlocks = (kernel) => (ONE_BLOCK.test(kernel) ? 1 : 2);

/** A kernel's name without its namespaces and its parameters. */
export const shortName = (name) => name.replace(/multihead::(cuda::)?|mma::|\(anonymous namespace\)::|void /g, '').replace(/\(\w*\)$/, '');

const PROGRAM = join(ROOT, 'build', 'native', 'tests', 'cuda', 'multihead-cuda-launches');

/**
 * Launches of each kernel, by its short name; null if `multihead-cuda-launches` is not built.
 * @returns {Map<string, { threads: number, shared: number, width: number }[]> | null} one entry for each size of
 *   dynamic shared memory (bytes), with the largest row width launched with it
 */
export function readLaunches() {
  if (!existsSync(PROGRAM)) return null;
  const text = (program, ...args) => execFileSync(program, args, { encoding: 'utf8', maxBuffer: 64 << 20 });
  return launchesOf(text(PROGRAM), text('nm', '-C', PROGRAM));
}

/**
 * Parses the output of `multihead-cuda-launches` (`said`) and of nm (`symbols`); returns the same map as
 * readLaunches().
 */
export function launchesOf(said, symbols) {
  const addresses = [...symbols.matchAll(/^([0-9a-f]+) \w (.*)$/gm)].map(([, address, name]) => [parseInt(address, 16), name]);
  const origin = addresses.find(([, name]) => name === 'multihead_launches_origin')[0];
  const names = new Map(addresses.filter(([, name]) => name.endsWith(')')));
  const launches = new Map();
  for (const line of said.trim().split('\n')) {
    const [offset, threads, shared, width] = line.split(' ').map(Number);
    const name = shortName(names.get(origin + offset));
    const others = (launches.get(name) ?? []).filter((one) => one.threads !== threads || one.shared !== shared);
    launches.set(name, [...others, { threads, shared, width }]);
  }
  return launches;
}
