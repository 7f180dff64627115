#include "engine/layers/gradients.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/elementwise/elementwise.h"
#include "cpu/elementwise/gradients.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "rules/integers.h"

namespace multihead::engine {
namespace {

// Number of threads for elementwise work on `floats` floats, as in over_rows().
int threads_for_floats(int64_t floats, const Context& context) {
  return floats <= kFloatsPerJob ? 1 : context.threads();
}

}  // namespace

Status norm_backward(const cpu::NormBackward& call, Context& context) {
  if (call.rows == 0 || call.width == 0) return {};
  // Rows per chunk. The chunks' sums for weight and bias are added in order.
  const int64_t part = std::max<int64_t>(16, kFloatsPerJob / call.width);
  const int64_t chunks = rules::ceil_div(call.rows, part);
  const bool has_sums = call.d_weight != nullptr || call.d_bias != nullptr;
  const auto sums_bytes = static_cast<uint64_t>(2 * call.width) * sizeof(float);
  float* sums = nullptr;
  if (has_sums && chunks > 1) {
    Buffer& buffer = scratch_of(context).gradients();
    const uint64_t bytes = static_cast<uint64_t>(chunks) * sums_bytes;
    if (!buffer.reserve(bytes)) return Status::out_of_memory(bytes);
    sums = static_cast<float*>(buffer.data());
  }
  const int threads = threads_for_floats(call.rows * call.width, context);
  parallel_for(context, "norm backward", threads, chunks, [&](int64_t chunk, int) {
    cpu::NormBackward chunk_call = call;
    if (sums != nullptr) {
      float* const d_weight = sums + chunk * 2 * call.width;
      std::fill_n(d_weight, 2 * call.width, 0.0F);
      if (call.d_weight != nullptr) chunk_call.d_weight = d_weight;
      if (call.d_bias != nullptr) chunk_call.d_bias = d_weight + call.width;
    }
    cpu::norm_backward_rows(chunk_call, chunk * part, std::min(call.rows, (chunk + 1) * part));
  });
  if (sums == nullptr) return {};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const float* const d_weight = sums + chunk * 2 * call.width;
    if (call.d_weight != nullptr) cpu::add(call.d_weight, d_weight, call.d_weight, call.width);
    if (call.d_bias != nullptr) {
      cpu::add(call.d_bias, d_weight + call.width, call.d_bias, call.width);
    }
  }
  return {};
}

void embed_backward(const cpu::EmbedBackward& call, const Context& context) {
  // Jobs divide columns, not rows, so that no two jobs add to the same element.
  constexpr int64_t kColumns = 128;
  parallel_for(context, "embedding backward", threads_for_floats(call.rows * call.width, context),
               rules::ceil_div(call.width, kColumns), [&](int64_t job, int) {
                 const int64_t first = job * kColumns;
                 cpu::embed_backward_columns(call, first, std::min(call.width, first + kColumns));
               });
}

cpu::CrossEntropyResult cross_entropy(const ConstTensor& logits, std::span<const int32_t> targets,
                                      const Tensor& d_logits, float d_scale, Context& context) {
  const int64_t rows = logits.shape[0], classes = logits.shape[1];
  const cpu::CrossEntropy call{.logits = logits.data,
                               .targets = targets.data(),
                               .d_logits = d_logits.data,
                               .stride = logits.strides[0],
                               .d_stride = d_logits.given() ? d_logits.strides[0] : 0,
                               .classes = classes,
                               .d_scale = d_scale};
  // The losses of the chunks of rows are added in order.
  constexpr int64_t kMostChunks = 64;
  const int64_t least = std::max<int64_t>(1, kFloatsPerJob / std::max<int64_t>(classes, 1));
  const int64_t part = std::max(least, rules::ceil_div(rows, kMostChunks));
  const int64_t chunks = rules::ceil_div(rows, part);
  std::array<cpu::CrossEntropyResult, kMostChunks> results{};
  parallel_for(context, "cross entropy", threads_for_floats(rows * classes, context), chunks,
               [&](int64_t chunk, int) {
                 results[static_cast<size_t>(chunk)] = cpu::cross_entropy_rows(
                     call, chunk * part, std::min(rows, (chunk + 1) * part));
               });
  cpu::CrossEntropyResult sum{};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const cpu::CrossEntropyResult& result = results[static_cast<size_t>(chunk)];
    sum.loss_sum += result.loss_sum;
    sum.counted += result.counted;
    sum.correct += result.correct;
  }
  return sum;
}

}  // namespace multihead::engine
