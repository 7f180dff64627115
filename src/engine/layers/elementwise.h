// Elementwise operations of modules, vectorized and threaded. Shapes are checked already.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/runtime/jobs.h"
#include "multihead/context.h"
#include "multihead/tensor.h"
#include "rules/integers.h"
#include "rules/shared.h"

namespace multihead::engine {

// Smallest number of floats for which waking a thread pays off.
inline constexpr int64_t kFloatsPerJob = 16384;

// Calls run(first, end) for ranges of `rows` rows of `width` floats. Uses several threads only if a
// range takes longer than waking a thread.
template <class Run>
void over_rows(int64_t rows, int64_t width, const Context& context, Run&& run) {
  if (rows == 0) return;
  if (rows * width <= kFloatsPerJob) return run(int64_t{0}, rows);
  const int64_t part = std::max<int64_t>(1, kFloatsPerJob / std::max<int64_t>(width, 1));
  parallel_for(context, "elementwise", context.threads(), rules::ceil_div(rows, part),
               [&](int64_t job, int) { run(job * part, std::min(rows, (job + 1) * part)); });
}

// Calls kernel(params, first, end) for ranges of `rows` rows of `width` floats, as above. Most
// elementwise operations need no more: their callers fill in the parameters of the kernel, which
// cpu/elementwise/ documents.
template <class Params>
void over_rows(const Params& params, int64_t rows, int64_t width,
               void (*kernel)(const Params& params, int64_t first, int64_t end),
               const Context& context) {
  over_rows(rows, width, context, [&](int64_t first, int64_t end) { kernel(params, first, end); });
}

// y = a + b, `count` floats each; y may be a or b.
MULTIHEAD_SHARED void add(const float* a, const float* b, float* y, int64_t count,
                          const Context& context);

// Copies `from` to `to`, both (B, H, N, width).
MULTIHEAD_SHARED void copy_rows(const ConstTensor& from, const Tensor& to, const Context& context);

// Multiplies heads (B, H, N, width) by one factor per head. A factor of 0 turns NaN and infinity
// into 0, too.
MULTIHEAD_SHARED void scale_heads(const Tensor& heads, std::span<const float> factors,
                                  const Context& context);

// mean (B, N, width) over the heads of (B, H, N, width).
void mean_over_heads(const ConstTensor& heads, const Tensor& mean, const Context& context);

// Returns the sum of squares in double. Adds chunks of fixed length in order, so that the number of
// threads does not change a bit. Infinities and NaN propagate.
double sum_of_squares(const float* x, int64_t count, const Context& context);

}  // namespace multihead::engine
