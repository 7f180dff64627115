// The limits that WebAssembly reaches on this machine, by the module of native/bench/peak_wasm.cc.

/** @returns what measureCase() needs, and what the results tell of the machine. */
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
