// The CUDA compiler: an installed one, else Debian 13's (non-free), unpacked into build/. Set up only on request.
import { existsSync, readFileSync } from 'node:fs';
import { rm, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ask } from './console.mjs';
import { unpack } from './debian.mjs';
import { buildFolder, completeFolder } from './files.mjs';
import { atLeast, findProgram, versionIn } from './find.mjs';

const MINIMUM = '12.0';
const RECIPE = 1;
export const CUDA_COMPONENTS = 'main non-free';
export const CUDA_PACKAGES = ['nvidia-cuda-toolkit', 'nvidia-cuda-dev', 'libnvvm4', 'libcudart12', 'libcu++-dev'];

/**
 * Returns the first nvcc that is new enough, from CUDA_PATH, the PATH, NVIDIA's default folder or `unpacked`: { path,
 * version }, or null.
 */
export async function findCuda(unpacked) {
  const ours = completeFolder(unpacked, RECIPE) ? [join(unpacked, 'bin', 'nvcc')] : [];
  const own = process.env.CUDA_PATH ? [join(process.env.CUDA_PATH, 'bin', 'nvcc')] : [];
  for (const name of [...own, 'nvcc', '/usr/local/cuda/bin/nvcc', ...ours]) {
    const path = findProgram(name);
    const version = path && versionIn((await ask([path, '--version']))?.match(/release [\d.]+/)?.[0]);
    // Debian 12's own package is too old.
    if (version && atLeast(version, MINIMUM)) return { path, version };
  }
  return null;
}

/** Unpacks the compiler, its libraries and the headers, 240 MB; they need glibc 2.34. */
export async function unpackCuda(packages, folder) {
  const versions = Object.fromEntries(CUDA_PACKAGES.map((name) => [name, packages[name].version]));
  await buildFolder(folder, RECIPE, versions, async (partial) => {
    for (const name of CUDA_PACKAGES) {
      const wanted =
        name === 'nvidia-cuda-dev'
          ? ['--wildcards', './usr/include/*', '*cudart*', '*cudadevrt*', '*/stubs/libcuda.so']
          : ['--exclude=./usr/share/doc', './usr'];
      await unpack(packages[name].file, partial, wanted);
    }
    await relocate(partial, folder);
  });
}

/** Makes nvcc look for all its files in `folder`, the later name of the folder `partial`. */
async function relocate(partial, folder) {
  const usr = join(folder, 'usr');
  const profile = ['etc/nvcc.profile', 'usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile']
    .map((name) => join(partial, name))
    .find((path) => existsSync(path));
  if (profile) {
    const text = readFileSync(profile, 'utf8').replace(/^(NVVMIR_LIBRARY_DIR\s*\??=).*$/m, `$1 ${usr}/lib/nvidia-cuda-toolkit/libdevice`);
    await rm(profile);
    await writeFile(profile, text);
  }
  await symlink('usr/include', join(partial, 'include'));
  const bin = join(partial, 'bin');
  const script = [
    '#!/bin/sh',
    `export PATH="${usr}/lib/nvidia-cuda-toolkit/bin:${usr}/bin:$PATH"`,
    `export LD_LIBRARY_PATH="${usr}/lib/x86_64-linux-gnu:$LD_LIBRARY_PATH"`,
    `exec "${usr}/lib/nvidia-cuda-toolkit/bin/nvcc" -I"${usr}/include" -L"${usr}/lib/x86_64-linux-gnu" "$@"`,
    '',
  ].join('\n');
  const { mkdir } = await import('node:fs/promises');
  await mkdir(bin, { recursive: true });
  await writeFile(join(bin, 'nvcc'), script, { mode: 0o755 });
}
