// How many blocks of a kernel a multiprocessor holds at a time, and what limits them: the rules of NVIDIA's occupancy
// calculator (cuda_occupancy.h of the toolkit).
import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from './build.mjs';

const KB = 1024;
/** Of a multiprocessor, and `block`: shared memory of one block ("Compute Capabilities" in the CUDA Programming Guide). */
export const LIMITS = {
  sm_80: { registers: 65536, shared: 164 * KB, block: 163 * KB, warps: 64, blocks: 32 },
  sm_90a: { registers: 65536, shared: 228 * KB, block: 227 * KB, warps: 64, blocks: 32 },
};
const PARTS = 4; // of a multiprocessor, each with its own registers
const REGISTER_UNIT = 256; // registers are given to warps in these
const SHARED_UNIT = 128;
const SHARED_RESERVED = 1 * KB; // of each block, by the system

const roundUp = (value, unit) => Math.ceil(value / unit) * unit;

/**
 * @param {keyof typeof LIMITS} architecture
 * @param {{ registers: number, threads: number, shared: number }} kernel registers of a thread, threads of a block, bytes of
 *   shared memory of a block
 * @returns {{ blocks: number, warps: number, percent: number, limit: string }} of a multiprocessor; the warps also as a share
 *   of those it can hold, and what allows no further block
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
 * Kernels of which a multiprocessor holds one block: Hopper's are planned so, and the others leave no room for a second one
 * in 164 kB of shared memory.
 */
const ONE_BLOCK =
  /^(\w+_hopper<.*|forward_f32<8>|forward_half<true, \w+, 128>|decode_half<\w+, 256>|(backward::)?backward_(keys|queries)<(8|.*, 256)>|backward::differentiate_bias)$/;

/** How many blocks of a kernel, by its short name, a multiprocessor is to hold: two, where possible, hide each other's waits. */
export const plannedBlocks = (kernel) => (ONE_BLOCK.test(kernel) ? 1 : 2);

/** A kernel's name without its namespaces and its parameters. */
export const shortName = (name) =>
  name.replace(/multihead::(cuda::)?|mma::|\(anonymous namespace\)::|void /g, '').replace(/\(\w*\)$/, '');

const PROGRAM = join(ROOT, 'build', 'native', 'tests', 'cuda', 'multihead-cuda-launches');

/**
 * How the host code launches each kernel, by its short name; null if the program that makes the launches has not been built.
 * @returns {Map<string, { threads: number, shared: number, width: number }[]> | null} for each different amount of dynamic
 *   shared memory, in bytes, the widest rows that it serves
 */
export function readLaunches() {
  if (!existsSync(PROGRAM)) return null;
  const text = (program, ...args) => execFileSync(program, args, { encoding: 'utf8', maxBuffer: 64 << 20 });
  return launchesOf(text(PROGRAM), text('nm', '-C', PROGRAM));
}

/** The same from the text of that program and of nm. */
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
