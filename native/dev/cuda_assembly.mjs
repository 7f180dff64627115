// Assembles the CUDA kernels and prints what ptxas says of each: registers, spills, stack, shared memory that is fixed, and
// the blocks that the registers let a multiprocessor hold.
//
//   node native/dev/cuda_assembly.mjs [decode.cu …]      needs nvcc, no GPU
import { readdirSync } from 'node:fs';
import { basename, join, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { ROOT } from './build.mjs';
import { ask, run } from './console.mjs';
import { findCuda } from './cuda.mjs';

const folder = join(ROOT, 'src', 'cuda');
/** wgmma is an instruction of compute capability 9.0 alone. */
export const architecturesOf = (file) => (file.startsWith('forward_hopper') ? ['sm_90a'] : ['sm_80', 'sm_90a']);

export const cuda = () => findCuda(join(ROOT, 'build', 'toolchain', 'cuda'));
export const kernelFiles = () => readdirSync(folder).filter((name) => name.endsWith('.cu'));

/** What `nvcc -Xptxas -v` says: [{ file, architecture, kernel, registers, stack, spills, shared }]. */
export function readPtxas(text, file, architecture) {
  const kernels = [];
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
    });
  }
  return kernels;
}

/** Assembles one file, by default for all architectures that it has kernels for. */
export async function assemble(nvcc, file, architectures = architecturesOf(file)) {
  const kernels = [];
  for (const architecture of architectures) {
    const target = `-gencode=arch=${architecture.replace('sm', 'compute')},code=${architecture}`;
    const options = ['-std=c++20', '--expt-relaxed-constexpr', '-O3', '-Xptxas', '-v', '-I', join(ROOT, 'src')];
    const command = [nvcc, ...options, target, '-cubin', '-o', '/dev/null', join(folder, file)];
    const said = await run(['sh', '-c', '"$@" 2>&1', 'sh', ...command], { cwd: ROOT });
    kernels.push(...readPtxas(said, file, architecture));
  }
  const names = (await ask(['c++filt', ...kernels.map(({ kernel }) => kernel)]))?.trim().split('\n');
  return kernels.map((it, i) => ({ ...it, kernel: short(names?.[i] ?? it.kernel) }));
}

const short = (name) =>
  name
    .replace(/multihead::(cuda::)?|\(anonymous namespace\)::|void /g, '')
    .replace(/\((?:[A-Z]\w*Params.*)\)$/, '');

async function main() {
  const nvcc = (await cuda())?.path;
  if (!nvcc) throw new Error('No nvcc was found: npm run setup -- cuda gets one');
  const files = process.argv.length > 2 ? process.argv.slice(2).map((name) => basename(name)) : kernelFiles();
  console.log('| file | for | kernel | registers | spills | stack | shared |\n|---|---|---|---|---|---|---|');
  for (const file of files) {
    for (const { architecture, kernel, registers, spills, stack, shared } of await assemble(nvcc, file)) {
      console.log(`| ${file} | ${architecture} | \`${kernel}\` | ${registers} | ${spills} | ${stack} | ${shared} |`);
    }
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(resolve(process.argv[1])).href) await main();
