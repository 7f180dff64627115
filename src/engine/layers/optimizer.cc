#include "engine/layers/optimizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/optimizer.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/threads.h"

namespace multihead::engine {

void adamw_step(const AdamWStep& step, const Context& context) {
  over_rows(step.count, 1, context,
            [&](int64_t first, int64_t end) { cpu::adamw_range(step, first, end); });
}

void sgd_step(const SgdStep& step, const Context& context) {
  over_rows(step.count, 1, context,
            [&](int64_t first, int64_t end) { cpu::sgd_range(step, first, end); });
}

double sum_of_squares(const float* x, int64_t count, Context& context) {
  constexpr int64_t kMostChunks = 256, kLeastChunk = 16384;
  const int64_t chunk = std::max(kLeastChunk, (count + kMostChunks - 1) / kMostChunks);
  const int64_t chunks = (count + chunk - 1) / chunk;
  std::array<double, kMostChunks> sums{};
  parallel_for(chunks > 1 ? context.threads() : 1, chunks, [&](int64_t index, int) {
    const int64_t first = index * chunk;
    sums[static_cast<size_t>(index)] =
        cpu::sum_of_squares(x + first, std::min(chunk, count - first));
  });
  double sum = 0.0;
  for (int64_t index = 0; index < chunks; ++index) sum += sums[static_cast<size_t>(index)];
  return sum;
}

}  // namespace multihead::engine
