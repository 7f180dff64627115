#include "engine/layers/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cpu/elementwise/elementwise.h"
#include "cpu/elementwise/optimizer.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/elementwise.h"
#include "rules/integers.h"

namespace multihead {
namespace {

using engine::over_rows;
using engine::validate_exact;
using engine::validate_rank;
using engine::validate_same_or_apart;

Status normalize(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                 float eps, bool centered, const Tensor& y, Context& context) {
  MULTIHEAD_TRY(validate_rank(Name::kX, Axes::kRows, x, 2));
  const int64_t width = x.shape[1];
  MULTIHEAD_TRY(validate_exact(Name::kX, Axes::kRows, x, x.shape));
  MULTIHEAD_TRY(validate_exact(Name::kY, Axes::kRows, y, x.shape));
  for (const auto& [name, tensor] : {std::pair{Name::kWeight, &weight}, {Name::kBias, &bias}}) {
    if (!tensor->given()) continue;
    MULTIHEAD_TRY(validate_exact(name, Axes::kWidth, *tensor, {width}));
    MULTIHEAD_TRY(validate_same_or_apart(name, *tensor, y));
  }
  MULTIHEAD_TRY(validate_same_or_apart(Name::kX, x, y));
  if (!(eps >= 0.0F) || std::isinf(eps)) {
    return engine::real_error(Name::kEps, Message::kFiniteNotNegative, eps);
  }
  if (width == 0) return {};
  const cpu::NormParams params{.x = x.data,
                               .y = y.data,
                               .x_stride = x.strides[0],
                               .y_stride = y.strides[0],
                               .width = width,
                               .weight = weight.data,
                               .bias = bias.data,
                               .eps = eps,
                               .centered = centered};
  over_rows(params, x.shape[0], width, cpu::norm_rows, context);
  return {};
}

Status activated(const ConstTensor& gate, const ConstTensor& x, Activation activation,
                 const Tensor& y, Context& context) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kActivation, activation, Activation::kSilu));
  // Data may be null if the width is 0.
  if (gate.shape[1] == 0) return {};
  const cpu::ActivationParams params{.gate = gate.data,
                                     .x = x.data,
                                     .y = y.data,
                                     .gate_stride = gate.strides[0],
                                     .x_stride = x.strides[0],
                                     .y_stride = y.strides[0],
                                     .width = gate.shape[1],
                                     .activation = activation};
  over_rows(params, gate.shape[0], params.width, cpu::activation_rows, context);
  return {};
}

}  // namespace

namespace engine {

void add(const float* a, const float* b, float* y, int64_t count, const Context& context) {
  over_rows(count, 1, context, [&](int64_t first, int64_t end) {
    cpu::add(a + first, b + first, y + first, end - first);
  });
}

void copy_rows(const ConstTensor& from, const Tensor& to, const Context& context) {
  const int64_t heads = from.shape[1], tokens = from.shape[2], width = from.shape[3];
  if (width == 0) return;  // data may be null
  over_rows(from.shape[0] * heads * tokens, width, context, [&](int64_t row, int64_t end) {
    // Advances head by head: divisions for every row would cost as much as a short copy.
    for (int64_t next; row < end; row = next) {
      const int64_t b = row / tokens / heads, h = row / tokens % heads, n = row % tokens;
      next = std::min(end, row + tokens - n);
      const auto first = [&](const Dims& strides) {
        return b * strides[0] + h * strides[1] + n * strides[2];
      };
      const float* source = from.data + first(from.strides);
      float* target = to.data + first(to.strides);
      for (; row < next; ++row, source += from.strides[2], target += to.strides[2]) {
        std::copy_n(source, width, target);
      }
    }
  });
}

void scale_heads(const Tensor& heads, std::span<const float> factors, const Context& context) {
  const cpu::ScaleHeadsParams params{
      .x = heads.data,
      .stride = {heads.strides[0], heads.strides[1], heads.strides[2]},
      .heads = heads.shape[1],
      .tokens = heads.shape[2],
      .width = heads.shape[3],
      .factors = factors.data()};
  over_rows(params, heads.shape[0] * params.tokens, params.heads * params.width,
            cpu::scale_heads_rows, context);
}

void mean_over_heads(const ConstTensor& heads, const Tensor& mean, const Context& context) {
  if (heads.shape[3] == 0) return;  // data may be null
  const cpu::MeanHeadsParams params{
      .x = heads.data,
      .y = mean.data,
      .x_stride = {heads.strides[0], heads.strides[1], heads.strides[2]},
      .y_stride = {mean.strides[0], mean.strides[1]},
      .heads = heads.shape[1],
      .tokens = heads.shape[2],
      .width = heads.shape[3]};
  over_rows(params, heads.shape[0] * params.tokens, params.heads * params.width,
            cpu::mean_heads_rows, context);
}

double sum_of_squares(const float* x, int64_t count, const Context& context) {
  constexpr int64_t kMostChunks = 256, kLeastChunk = 16384;
  const int64_t chunk = std::max(kLeastChunk, rules::ceil_div(count, kMostChunks));
  const int64_t chunks = rules::ceil_div(count, chunk);
  std::array<double, kMostChunks> sums{};
  parallel_for(context, "elementwise", chunks > 1 ? context.threads() : 1, chunks,
               [&](int64_t index, int) {
                 const int64_t first = index * chunk;
                 sums[static_cast<size_t>(index)] =
                     cpu::sum_of_squares(x + first, std::min(chunk, count - first));
               });
  double sum = 0.0;
  for (int64_t index = 0; index < chunks; ++index) sum += sums[static_cast<size_t>(index)];
  return sum;
}

}  // namespace engine

Status layer_norm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                  float eps, const Tensor& y, Context& context) {
  return engine::memory_guard(
      [&]() -> Status { return normalize(x, weight, bias, eps, true, y, context); });
}

Status rms_norm(const ConstTensor& x, const ConstTensor& weight, float eps, const Tensor& y,
                Context& context) {
  return engine::memory_guard(
      [&]() -> Status { return normalize(x, weight, {}, eps, false, y, context); });
}

Status activate(const ConstTensor& x, Activation activation, const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(validate_rank(Name::kX, Axes::kRows, x, 2));
    MULTIHEAD_TRY(validate_exact(Name::kX, Axes::kRows, x, x.shape));
    MULTIHEAD_TRY(validate_exact(Name::kY, Axes::kRows, y, x.shape));
    MULTIHEAD_TRY(validate_same_or_apart(Name::kX, x, y));
    return activated(x, {}, activation, y, context);
  });
}

Status activate_gated(const ConstTensor& gate, const ConstTensor& x, Activation activation,
                      const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(validate_rank(Name::kGate, Axes::kRows, gate, 2));
    MULTIHEAD_TRY(validate_exact(Name::kGate, Axes::kRows, gate, gate.shape));
    MULTIHEAD_TRY(validate_exact(Name::kX, Axes::kRows, x, gate.shape));
    MULTIHEAD_TRY(validate_exact(Name::kY, Axes::kRows, y, gate.shape));
    MULTIHEAD_TRY(validate_same_or_apart(Name::kGate, gate, y));
    MULTIHEAD_TRY(validate_same_or_apart(Name::kX, x, y));
    return activated(gate, x, activation, y, context);
  });
}

}  // namespace multihead
