// Plants faults into the CUDA kernels, one at a time, and checks that the emulator's tests find each: wrong numbers,
// races, reads before a copy has ended, and hangs.
//
//   node native/dev/cuda_faults.mjs [--build FOLDER] [WORD …]      exit code 1 if a fault is not found; WORD: a part of its name
//
// FOLDER (default build/native) holds a build of multihead_cuda_tests for the present sources. Neither it nor the sources
// change: a fault goes into a copy of its file, and the compiler finds the copy first. Only the kernels that
// include the file are compiled again, and only the tests of the fault's pattern run.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { spawnSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { ROOT } from './build.mjs';
import { SetupError, say } from './console.mjs';
import { runAsProgram } from './program.mjs';

const SECONDS = 600; // for the tests of one fault; a kernel that hangs is found by the emulator itself

/**
 * The faults: a name, the file in src/cuda, the text to replace and its replacement, the kernels (.cu) to compile again,
 * and the tests that must fail. The text occurs exactly once in its file.
 */
export const FAULTS = [
  {
    name: 'mma forward: no barrier after a tile has arrived',
    file: 'mma/forward.cu',
    from: '    // The tile has arrived, and every warp has used the other stage.\n    sync_threads();\n',
    to: '',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma forward: a tile is used before its copies have ended',
    file: 'mma/forward.cu',
    from: '    wait_copies<0>();\n',
    to: '    wait_copies<1>();\n',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma forward: the mask of a row begins one key late',
    file: 'mma/options.h',
    from: 'return at >= begin && at < end;',
    to: 'return at > begin && at < end;',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma forward: a tile passes for visible to all rows one key too early',
    file: 'mma/forward.cu',
    from: 'first + keys <= state.rows[first_of_warp].last;',
    to: 'first + keys <= state.rows[first_of_warp].last + 1;',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma forward: rows that met a hidden NaN are not recomputed',
    file: 'mma/forward.cu',
    from: '  if (any) recompute',
    to: '  if (any && false) recompute',
    kernels: ['mma/forward'],
    tests: 'CudaForward.HidesNaN',
  },
  {
    name: 'mma options: the bias of a pair of keys is that of the next pair',
    file: 'mma/options.h',
    from: 'reinterpret_cast<const Pair*>(from + 8 * n)',
    to: 'reinterpret_cast<const Pair*>(from + 8 * n + 2)',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma options: the masks of a pair of keys are exchanged',
    file: 'mma/options.h',
    from: 'i % 2 == 0 ? 0xFFU : 0xFF00U',
    to: 'i % 2 == 0 ? 0xFF00U : 0xFFU',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma options: a call with a bias does not read its mask',
    file: 'mma/options.h',
    from: '      add_bias(terms, scores);\n      if (call.mask.given()) {',
    to: '      add_bias(terms, scores);\n      if (false) {',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma options: a lane takes the dropout of its neighbor for its own row',
    file: 'mma/options.h',
    from: 'upper = (side == 0 ? bits : others)',
    to: 'upper = (side == 0 ? others : bits)',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma options: dropout counts the keys of a shard from its first one',
    file: 'mma/options.h',
    from: 'const int64_t key = call.first.key + first;',
    to: 'const int64_t key = first;',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma backward: a lane takes the dropout of another key',
    file: 'mma/backward_keys.h',
    from: '>> own & 0x11111111U',
    to: '>> (own ^ 1U) & 0x11111111U',
    kernels: ['mma/backward'],
    tests: 'CudaBackwardMma.*',
  },
  {
    name: 'mma: the sums are not rescaled when the largest score grows',
    file: 'mma/tile.h',
    from: 'sums.out[n][i] *= shrink[i / 2];',
    to: 'sums.out[n][i] *= 1.0F;',
    kernels: ['mma/forward'],
    tests: 'CudaForwardMma.*',
  },
  {
    name: 'mma: two quarters of the transposed operand are exchanged',
    file: 'mma/tile.h',
    from: 'Rows::of(values, lane() / 8 % 2 * 8 + lane() % 8, lane() / 16);',
    to: 'Rows::of(values, lane() / 16 * 8 + lane() % 8, lane() / 8 % 2);',
    kernels: ['mma/decode'],
    tests: 'CudaDecodeMma.*',
  },
  {
    name: 'mma decode: a stage is filled again while lanes still read it',
    file: 'mma/decode.cu',
    from: '    // All lanes must have used the stage before the next copies, or the sums, are written to it.\n    sync_warp();\n',
    to: '',
    kernels: ['mma/decode'],
    tests: 'CudaDecodeMma.*',
  },
  {
    name: 'mma decode: a split reads the keys of the next one too',
    file: 'mma/decode.cu',
    from: 'b.end_key = rules::least_of(b.first_key + p.split_keys, seen.last);',
    to: 'b.end_key = rules::least_of(b.first_key + p.split_keys + 1, seen.last);',
    kernels: ['mma/decode'],
    tests: 'CudaDecodeMma.*',
  },
  {
    name: 'mma backward: descriptions of rows are overwritten while they are read',
    file: 'mma/backward_keys.h',
    from: '    state.passing[step % 3][thread_index()] = passing;',
    to: '    state.passing[(step + 2) % 3][thread_index()] = passing;',
    kernels: ['mma/backward'],
    tests: 'CudaBackwardMma.*',
  },
  {
    name: 'mma backward: a step passes for visible to all rows of the block',
    file: 'mma/backward_keys.h',
    from: 'return last.head >= 0 && last.first == 0 &&',
    to: 'return last.head >= 0 &&',
    kernels: ['mma/backward'],
    tests: 'CudaBackwardMma.*',
  },
  {
    name: 'mma backward: delta of the other row of a thread',
    file: 'mma/backward_queries.h',
    from: 'delta = row.delta;',
    to: 'delta = state.rows[index_of(1 - half)].delta;',
    kernels: ['mma/backward'],
    tests: 'CudaBackwardMma.*',
  },
  {
    name: 'Hopper: the slot of the keys is released before their product has ended',
    file: 'hopper/forward.h',
    from: '    wgmma_wait<1>();\n    wgmma_touch(s);\n    release_keys(i);\n',
    to: '    release_keys(i);\n    wgmma_wait<1>();\n    wgmma_touch(s);\n',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: the rows of a head are stored at the place of another one',
    file: 'hopper/forward_tile.h',
    from: 'block.head + static_cast<int>(of_consumer >> call.query_bits)',
    to: 'block.head + static_cast<int>((of_consumer >> call.query_bits) ^ call.head_bits)',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: a row of a second head counts as one of a later query',
    file: 'hopper/forward_tile.h',
    from: 'of_consumer & ((1U << call.query_bits) - 1)',
    to: 'of_consumer & ((2U << call.query_bits) - 1)',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: a shared tile takes the key/value head of its number',
    file: 'hopper/forward_tile.h',
    from: 'static_cast<int>(head / call.group)',
    to: 'static_cast<int>(call.head_bits == 0 ? head / call.group : head >> call.head_bits)',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: the phase of a barrier is not that of its slot',
    file: 'hopper/ring.h',
    from: 'return static_cast<uint32_t>(step) / kSlots & 1U;',
    to: 'return static_cast<uint32_t>(step) / (kSlots + 1) & 1U;',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: a barrier expects fewer bytes than are copied',
    file: 'hopper/rows.h',
    from: 'static_cast<uint32_t>(Rows::kBytes));',
    to: 'static_cast<uint32_t>(Rows::kBytes) / 2);',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: cleared rows are not fenced before a product reads them',
    file: 'hopper/rows.h',
    from: '  fence_proxy_async();\n',
    to: '',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: a warpgroup does not pass its turn',
    file: 'hopper/forward.h',
    from: '    turns.pass();\n',
    to: '',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: the output is rescaled while its product still runs',
    file: 'hopper/forward.h',
    from: '    wgmma_wait<0>();\n    wgmma_touch(o);\n    values.release(before);\n',
    to: '    values.release(before);\n',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: the queries of a tile are loaded while the previous tile still uses their slot',
    file: 'hopper/forward.h',
    from: '    slots.wait_empty(tile);\n',
    to: '',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: queries are used before they have arrived, from the second tile of a block on',
    file: 'hopper/forward.h',
    from: '    load();\n    shared.queries(consumer).wait_full(tile);\n',
    to: '    load();\n    shared.queries(consumer).wait_full(tile + Tile::kQuerySlots);\n',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: the description of a tile is overwritten before the tile is stored',
    file: 'hopper/forward.h',
    from: '  works.wait_empty(tile);\n',
    to: '',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper: outputs of a tile are added to those of the next one',
    file: 'hopper/forward.h',
    from: '      reader.load();\n      clear_sums();\n',
    to: '      reader.load();\n',
    kernels: ['hopper/forward'],
    tests: 'ForwardHopper.*',
  },
  {
    name: 'Hopper backward: rows of d_out or V are used before they have arrived',
    file: 'hopper/backward.h',
    from: '    shared.second.wait_full(step);\n    if constexpr',
    to: '    if constexpr',
    kernels: ['hopper/backward'],
    tests: 'BackwardHopper.*',
  },
  {
    name: 'Hopper backward: the last step of a head is left out',
    file: 'hopper/backward_tile.h',
    from: 'return (passing + step_rows - 1) / step_rows;',
    to: 'return passing / step_rows;',
    kernels: ['hopper/backward'],
    tests: 'BackwardHopper.*',
  },
  {
    name: 'f32 forward: no barrier before the tile is overwritten',
    file: 'f32/forward.cu',
    from: '    // Wait until every warp has used the previous tiles.\n    sync_threads();\n',
    to: '',
    kernels: ['f32/forward'],
    tests: 'CudaForwardF32.*',
  },
  {
    name: 'merge: the LSE is written before all lanes have read it',
    file: 'rows/merge.cu',
    from: '  sync_warp();\n',
    to: '',
    kernels: ['rows/merge'],
    tests: 'CudaMerge.*',
  },
  {
    name: 'packed sequences: queries are read from the first sequence',
    file: 'f32/forward.cu',
    from: 'rules::row_offset(call.q.stride, entry.batch, head_of(r), entry.first_query + query_of(r));',
    to: 'rules::row_offset(call.q.stride, entry.batch, head_of(r), query_of(r));',
    kernels: ['f32/forward'],
    tests: 'CudaAttention.Packed*',
  },
];

/** Returns the text of a file with a fault; throws if the fault's text is not there once. */
export function withFault(text, { name, from, to }) {
  const parts = text.split(from);
  if (parts.length !== 2) throw new Error(`${name}: its text occurs ${parts.length - 1} times`);
  return parts.join(to);
}

function must(command, cwd) {
  const { status, stdout, stderr } = spawnSync('sh', ['-c', command], { cwd, encoding: 'utf8', maxBuffer: 64 << 20 });
  if (status !== 0) throw new Error(`${command.slice(0, 200)} …\n${stdout}${stderr}`);
  return stdout;
}

/** Returns ninja's commands that compile each kernel, by its name, and that link the tests. */
function commandsOf(build) {
  const all = must('ninja -t commands multihead_cuda_tests', build).split('\n');
  const compile = new Map();
  for (const command of all) {
    const source = command.match(/-c (\S*\/src\/cuda\/(\S+)\.cu)/);
    if (source) compile.set(source[2], command);
  }
  return { compile, link: all.find((command) => command.includes('-o tests/cuda/multihead_cuda_tests')) };
}

/** Plants a fault and runs its tests; returns the first failure, or null if all tests pass. */
function find(fault, build, { compile, link }) {
  const scratch = mkdtempSync(join(tmpdir(), 'multihead-fault-'));
  try {
    const copy = join(scratch, 'cuda', fault.file);
    mkdirSync(dirname(copy), { recursive: true });
    writeFileSync(copy, withFault(readFileSync(join(ROOT, 'src', 'cuda', fault.file), 'utf8'), fault));
    const objects = [];
    let linked = link;
    for (const kernel of fault.kernels) {
      const command = compile.get(kernel);
      const object = command.match(/-o (\S+\.o)/)[1];
      const made = join(scratch, `${kernel.replace('/', '-')}.o`);
      // The emulator's folder comes before the copy: it replaces src/cuda/device.
      let own = command.replaceAll(`${object}.d`, `${made}.d`).replaceAll(object, made);
      own = own.replace(/-I(\S*\/src)(?= )/, `-I${scratch} -I$1`);
      if (fault.file === `${kernel}.cu`) own = own.replace(/-c \S+/, `-c ${copy}`);
      must(own, build);
      objects.push(made);
      linked = linked.replaceAll(object, '');
    }
    // First, so that the linker takes their copies of inline functions.
    linked = linked.replace(/ (\S+\.o)(?= )/, ` ${objects.join(' ')} $1`);
    const program = join(scratch, 'tests');
    must(linked.replace('-o tests/cuda/multihead_cuda_tests', `-o ${program}`), build);
    const options = { encoding: 'utf8', timeout: SECONDS * 1000, maxBuffer: 256 << 20 };
    const run = spawnSync(program, [`--gtest_filter=${fault.tests}`, '--gtest_brief=1'], options);
    if (run.status === 0) return null;
    const said = run.stdout.split('\n');
    const failure = said.findIndex((line) => /Failure$/.test(line));
    if (run.error) return `ended after ${SECONDS} s`;
    return failure < 0 ? `ended with ${run.signal ?? run.status}` : said.slice(failure, failure + 8).join(' ').slice(0, 240);
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

runAsProgram(import.meta.url, async (...args) => {
  const at = args.indexOf('--build');
  const build = at < 0 ? join(ROOT, 'build', 'native') : args.splice(at, 2)[1];
  if (!existsSync(join(build, 'tests/cuda/multihead_cuda_tests'))) {
    const how = 'npm run build -- native, with Boost.Context installed';
    throw new SetupError(`${relative(ROOT, build)} has no multihead_cuda_tests`, how);
  }
  const commands = commandsOf(build);
  const planted = FAULTS.filter(({ name }) => args.length === 0 || args.some((word) => name.includes(word)));
  let found = 0;
  for (const fault of planted) {
    const by = find(fault, build, commands);
    if (by) found += 1;
    else process.exitCode = 1;
    say(`${by ? 'found' : 'NOT FOUND'}: ${fault.name}${by ? ` (${by})` : ''}`);
  }
  say(`${found} of ${planted.length} faults are found.`);
});
