// Measures this machine's limits in WebAssembly with the module of native/bench/peak_wasm.cc.

/** @returns the `machine` argument of measureCase(), and the facts about the machine for the results. */
export function machineOf(mh, peak) {
  const fmaPeak = peak.measureFmaPeak();
  const readStream = peak.measureReadStream();
  return {
    limits: { fmaPeak, readStream, evictCaches: () => peak.evictCaches() },
    machine: {
      simd: mh.backend.simd,
      threads: 1,
      wasmBytes: mh.backend.wasmBytes,
      fma_peak: fmaPeak / 1e9,
      read_stream: readStream / 1e9,
    },
  };
}
