// The targets of `npm run try-processors`: each names a build, and the command that runs its programs.

const CLANG = 'clang-19';

/** Packages of Debian that every build needs. */
export const TOOLS = ['cmake', 'ninja-build', 'googletest', 'libeigen3-dev', 'nlohmann-json3-dev', 'libcli11-dev'];

/** Tests left out on every emulated processor, with the reason. */
const NOT_EMULATED = {
  '*Fork*': 'qemu ends when a process with threads forks',
  'StdThreads.ACallGoesOnWithTheThreadsThatCouldBeCreated': 'qemu does not enforce a limit of memory',
  'ExhaustedMemory.*': 'minutes, and no instruction of the processor decides them',
  'Experiments.*': 'minutes of training; the trainer has tests of its own',
  'Team.*:Methods/*': 'minutes: an operating system of threads in an emulator',
  'Conformance.Any*': 'minutes of mutated JSON',
  'Attention.ScratchIsIndependentOfTheSequenceLength': 'minutes of copying',
  '*.MeansOfEqualValuesStayWithinTheirBound/*': 'minutes of adding ones',
};

const TAKEN_FOR_ZERO = 'gives numbers below 2^-126, which NEON of 32 bits takes for 0';

/**
 * A processor under qemu's user-mode emulation, for which Debian has a C library.
 * @param {string} processor its name in CMake @param {string} triple @param {string} debian its name in Debian
 * @param {string} emulator
 * @param {{ flags?: string, cpus: Record<string, string>, notRun?: Record<string, string> }} how the compiler's flags; -cpu
 *   of the emulator by target; more tests that are left out
 */
function emulated(processor, triple, debian, emulator, { flags = '', cpus, notRun = {} }) {
  const build = {
    suite: 'trixie',
    packages: [CLANG, 'lld-19', `g++-14-${debian}`, 'qemu-user'],
    cross: { system: 'Linux', processor, compiler: 'clang++-19', triple },
    flags,
    linkFlags: '-fuse-ld=lld',
  };
  const sysroot = `/usr/${triple}`;
  return Object.entries(cpus).map(([name, cpu]) => ({
    name,
    build,
    run: `${emulator} -L ${sysroot} ${cpu && `-cpu ${cpu}`}`.trim(),
    notRun: { ...NOT_EMULATED, ...notRun },
  }));
}

const arm64 = (flags, cpus) => emulated('aarch64', 'aarch64-linux-gnu', 'aarch64-linux-gnu', 'qemu-aarch64', { flags, cpus });

/** A compiler for this machine. */
const compiler = (name, suite, packages, command, options = {}) => ({
  name,
  build: { suite, packages, compiler: command, ...options },
  run: '',
  notRun: {},
});

// Older versions than Debian 13's own cannot link its GoogleTest, which calls functions of the newer run-time library.
const gcc = (version) =>
  compiler(`gcc-${version}`, 'trixie', [`g++-${version}`, 'libhwy-dev', 'libgtest-dev', 'libbenchmark-dev'], `g++-${version}`, {
    unite: false,
    ownGoogleTest: version !== '14',
  });
const clang = (version, suite) => compiler(`clang-${version}`, suite, [`clang-${version}`, 'g++'], `clang++-${version}`, { headersOnly: true });

// MinGW's own linker links these programs. If lld does, an exception that passes through the streams of MinGW's C++ library
// ends the program.
const onWindows = (name, packages, cross, { flags, libraries, unite }) => ({
  name,
  build: {
    suite: 'trixie',
    linkFlags: '-static',
    libraries,
    packages: [...packages, 'wine64', 'wine'],
    cross: { system: 'Windows', processor: 'AMD64', ...cross },
    flags,
    unite,
  },
  run: 'wine',
  suffix: '.exe',
  notRun: {
    'Conformance.Any*': NOT_EMULATED['Conformance.Any*'],
    'SmallMath.SineAndCosineOfAnyAngle': "compares with the C library, and MinGW's cosine of 1e299 is off by 0.06",
  },
});
const MINGW = 'x86_64-w64-mingw32';

const MUSL = '/opt/musl';
const musl = compiler('musl', 'trixie', [CLANG, 'lld-19', 'g++-14', 'musl-dev', 'linux-libc-dev', 'python3-minimal', 'xz-utils'], 'clang++-19', {
  prepare: 'native/dev/processors/musl.sh',
  flags: [
    '--target=x86_64-linux-musl -nostdlibinc -nostdinc++',
    ...[`${MUSL}/libcxx/include/c++/v1`, '/usr/include/x86_64-linux-musl', `${MUSL}/kernel`].map((folder) => `-isystem ${folder}`),
  ].join(' '),
  linkFlags: [
    '-fuse-ld=lld -static -nostdlib /usr/lib/x86_64-linux-musl/crt1.o',
    ...['/usr/lib/x86_64-linux-musl', `${MUSL}/libcxx/lib`, '/usr/lib/gcc/x86_64-linux-gnu/14'].map((folder) => `-L${folder}`),
    '-lc++ -lc++abi -lunwind -lc -lgcc', // before the objects that use them, which lld permits
  ].join(' '),
  headersOnly: true,
});

/**
 * All targets. `build`: targets with the same object share a build folder, which has the first one's name.
 * @typedef {object} Target
 * @property {string} name
 * @property {{ suite: string, packages: string[], compiler?: string, flags?: string, linkFlags?: string,
 *   libraries?: string, headersOnly?: boolean, unite?: boolean, ownGoogleTest?: boolean, prepare?: string,
 *   cross?: { system: string, processor: string, compiler: string, triple?: string } }} build
 * @property {string} run the command before the program's name
 * @property {string} [suffix] of programs
 * @property {Record<string, string>} notRun filters of GoogleTest for the tests that are left out, with the reason
 * @type {Target[]}
 */
export const TARGETS = [
  ...arm64('', {
    'arm64-neon': 'cortex-a72',
    'arm64-sve128': 'max,sve-max-vq=1',
    'arm64-sve256': 'max,sve-max-vq=2',
    'arm64-sve512': 'max,sve-max-vq=4',
  }),
  ...arm64('-mcpu=neoverse-v2+aes', { 'arm64-bf16': 'max,sve-max-vq=1' }),
  ...emulated('riscv64', 'riscv64-linux-gnu', 'riscv64-linux-gnu', 'qemu-riscv64', {
    flags: '-march=rv64gcv',
    cpus: { 'riscv-v128': 'rv64,v=true,vlen=128', 'riscv-v256': 'rv64,v=true,vlen=256' },
  }),
  ...emulated('ppc64le', 'powerpc64le-linux-gnu', 'powerpc64le-linux-gnu', 'qemu-ppc64le', {
    flags: '-mcpu=power9',
    cpus: { power9: 'power9' },
    notRun: {
      'TileProducts.LeaveToFloatsWhatTheyCannotCompute':
        "gives a subnormal scale, for which clang's isfinite() is false under qemu; g++ uses other instructions, and it is true",
    },
  }),
  ...emulated('s390x', 's390x-linux-gnu', 's390x-linux-gnu', 'qemu-s390x', { cpus: { s390x: 'max' } }),
  ...emulated('i686', 'i686-linux-gnu', 'i686-linux-gnu', 'qemu-i386', { flags: '-msse2 -mfpmath=sse', cpus: { i386: 'max' } }),
  ...emulated('armv7', 'arm-linux-gnueabihf', 'arm-linux-gnueabihf', 'qemu-arm', {
    flags: '-march=armv7-a -mfpu=neon-vfpv4',
    cpus: { 'arm32-neon': 'max' },
    notRun: {
      'ConvertRows.AnyWidthStrideAndAlignment:ConvertRows.EveryHalfAndEveryTie:CacheTest.Int8OfRowsOfTinyNumbers': TAKEN_FOR_ZERO,
      '*.ScalesAndMagnitudesFarFromOneEqualOracle/*': TAKEN_FOR_ZERO,
      '*.SoftcapIsAccurate/*': 'NEON of 32 bits divides less exactly: the cap is off by 7.73e-6 where 7.63e-6 are allowed',
    },
  }),
  onWindows(
    'windows-clang',
    [CLANG, 'g++-mingw-w64-x86-64-posix'],
    { compiler: 'clang++-19', triple: MINGW },
    { flags: '-march=x86-64-v3 -maes -mpclmul', libraries: '-lstdc++ -lpthread' },
  ),
  onWindows('windows-gcc', ['g++-mingw-w64-x86-64-posix'], { compiler: `${MINGW}-g++-posix` }, { unite: false }),
  compiler('libc++', 'trixie', [CLANG, 'libc++-19-dev', 'libc++abi-19-dev'], 'clang++-19', { flags: '-stdlib=libc++', headersOnly: true }),
  musl,
  ...['14', '13', '12'].map(gcc),
  ...['19', '18', '17'].map((version) => clang(version, 'trixie')),
  ...['16', '15', '14'].map((version) => clang(version, 'bookworm')),
];
