// The machine's limits in WebAssembly, for bindings/bench/.
#include <emscripten/bind.h>

#include "machine_peak.h"

namespace {

double measure_read_stream() { return multihead::bench::measure_read_stream(1); }

}  // namespace

EMSCRIPTEN_BINDINGS(multihead_peak) {
  emscripten::function("measureFmaPeak", &multihead::bench::measure_fma_peak);
  emscripten::function("measureReadStream", &measure_read_stream);
  emscripten::function("evictCaches", &multihead::bench::evict_caches);
}
