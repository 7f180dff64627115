// This machine's limits in WebAssembly: floating-point operations a second in registers, and bytes read a second from memory that
// no cache holds. The module is assembled here: two loops of a few instructions need no compiler.

const CHAINS = 12; // independent: two units with a latency of 4 need 8, and 16 registers have no room for more
const ROUNDS = 1_000_000;
const FIRST = 65_536; // where the memory to read begins
const BYTES = 2 ** 29; // more than caches hold

/** An unsigned number of the binary format. */
const leb = (value) => (value < 128 ? [value] : [(value & 127) | 128, ...leb(value >>> 7)]);
const vector = (items) => [...leb(items.length), ...items.flat()];
const sized = (bytes) => [...leb(bytes.length), ...bytes];
const section = (id, bytes) => [id, ...sized(bytes)];
const V128 = 0x7b;
const I32 = 0x7f;
const get = (local) => [0x20, ...leb(local)];
const set = (local) => [0x21, ...leb(local)];
const zero = [0x41, 0];
const simd = (...opcode) => [0xfd, ...opcode];
const load = (offset) => simd(0, 0, ...leb(offset));
const store = (offset) => simd(0x0b, 0, ...leb(offset));
const ADD = simd(0xe4, 1);
const MULTIPLY = simd(0xe6, 1);
const MULTIPLY_ADD = simd(0x85, 2); // relaxed
const repeat = (body, goesOn) => [0x03, 0x40, ...body, ...goesOn, 0x0d, 0, 0x0b];
const upTo = (count, item) => Array.from({ length: count }, (_, at) => item(at)).flat();

/** chains(rounds): chains of multiply-adds, whose addend is the chain. read(from, end): adds memory up, 64 bytes a step. */
function moduleBytes(relaxed) {
  const [factor, added, chain] = [1, 2, (at) => 3 + at];
  const step = (at) =>
    relaxed
      ? [...get(factor), ...get(added), ...get(chain(at)), ...MULTIPLY_ADD]
      : [...get(factor), ...get(added), ...MULTIPLY, ...get(chain(at)), ...ADD];
  const chains = [
    ...upTo(CHAINS + 2, (at) => [...zero, ...load(16 * at), ...set(1 + at)]),
    ...repeat(
      upTo(CHAINS, (at) => [...step(at), ...set(chain(at))]),
      [...get(0), 0x41, 0x7f, 0x6a, 0x22, 0],
    ),
    ...upTo(CHAINS, (at) => [...zero, ...get(chain(at)), ...store(1024 + 16 * at)]),
    0x0b,
  ];
  const sum = (at) => 2 + at;
  const read = [
    ...repeat(
      upTo(4, (at) => [...get(sum(at)), ...get(0), ...load(16 * at), ...ADD, ...set(sum(at))]),
      [...get(0), 0x41, 0xc0, 0, 0x6a, 0x22, 0, ...get(1), 0x49],
    ),
    ...upTo(4, (at) => [...zero, ...get(sum(at)), ...store(2048 + 16 * at)]),
    0x0b,
  ];
  const code = (vectors, body) => sized([1, ...leb(vectors), V128, ...body]);
  const name = (text) => vector([...text].map((letter) => [letter.charCodeAt(0)]));
  return Uint8Array.of(
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(
      1,
      vector([
        [0x60, 1, I32, 0],
        [0x60, 2, I32, I32, 0],
      ]),
    ),
    ...section(3, vector([[0], [1]])),
    ...section(5, vector([[0, ...leb((FIRST + BYTES) / 65_536)]])),
    ...section(
      7,
      vector([
        [...name('chains'), 0, 0],
        [...name('read'), 0, 1],
        [...name('memory'), 2, 0],
      ]),
    ),
    ...section(10, vector([code(CHAINS + 2, chains), code(4, read)])),
  );
}

/** The most of `amount` a second, over runs of `milliseconds`: the engine optimizes code that has run for a while. */
function fastest(amount, milliseconds, run) {
  let best = 0;
  for (const begin = performance.now(); performance.now() - begin < milliseconds;) {
    const start = performance.now();
    run();
    best = Math.max(best, (1000 * amount) / (performance.now() - start));
  }
  return best;
}

/** @returns the `machine` argument of measureCase(), and the facts about the machine for the results. */
export async function machineOf(mh) {
  const { instance } = await WebAssembly.instantiate(moduleBytes(mh.backend.simd === 'relaxed'));
  const { chains, read, memory } = instance.exports;
  new Uint8Array(memory.buffer).fill(1); // pages that were never written are all one page, which a cache holds
  new Float32Array(memory.buffer, 0, 4).fill(0.999);
  new Float32Array(memory.buffer, 16, 4).fill(0.001);
  const evictCaches = () => read(FIRST, FIRST + BYTES);
  // In short runs at first, because a running loop is compiled no further.
  for (let warm = 0; warm < 200; warm += 1) read(FIRST, FIRST + 65_536);
  const fmaPeak = fastest(2 * 4 * CHAINS * ROUNDS, 300, () => chains(ROUNDS));
  const readStream = fastest(BYTES, 400, evictCaches);
  return {
    limits: { fmaPeak, readStream, evictCaches },
    machine: { simd: mh.backend.simd, threads: 1, wasmBytes: mh.backend.wasmBytes, fma_peak: fmaPeak / 1e9, read_stream: readStream / 1e9 },
  };
}
