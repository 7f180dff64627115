// The cross compiler and the emulator with which an x86 machine builds and runs the tests for ARM64.
import { arch, platform } from 'node:process';

const TRIPLE = 'aarch64-linux-gnu';
export const ARM64_COMPILER = `${TRIPLE}-g++`;
export const ARM64_EMULATOR = 'qemu-aarch64';
/** The folder where Debian's cross compiler has the C and C++ libraries of ARM64. */
const SYSROOT = `/usr/${TRIPLE}`;

/** False on ARM64, where the normal tests already test ARM64, and on systems without qemu's user-mode emulation. */
export const emulatesArm64 = platform === 'linux' && arch !== 'arm64';

/** The command that runs a program built for ARM64. */
export const onArm64 = (program) => [ARM64_EMULATOR, '-L', SYSROOT, program];

/**
 * The CMake toolchain file of the preset arm64. Clang is preferred, because users get its kernels; it uses the
 * libraries of Debian's g++ for ARM64. Without clang, g++ compiles.
 */
export function arm64Toolchain(compiler) {
  const clang = compiler?.id === 'Clang';
  return [
    '# Written by the set-up (native/dev): the cross compiler for ARM64, and the emulator that runs tests.',
    'set(CMAKE_SYSTEM_NAME Linux)',
    'set(CMAKE_SYSTEM_PROCESSOR aarch64)',
    `set(CMAKE_CXX_COMPILER "${clang ? compiler.path : ARM64_COMPILER}")`,
    ...(clang ? [`set(CMAKE_CXX_COMPILER_TARGET ${TRIPLE})`] : []),
    `set(CMAKE_AR ${TRIPLE}-ar CACHE FILEPATH "")`,
    `set(CMAKE_RANLIB ${TRIPLE}-ranlib CACHE FILEPATH "")`,
    `set(CMAKE_CROSSCOMPILING_EMULATOR "${onArm64('').slice(0, -1).join(';')}")`,
    'set(MULTIHEAD_HEADERS "${CMAKE_CURRENT_LIST_DIR}/headers" CACHE PATH "")',
    '',
  ].join('\n');
}
