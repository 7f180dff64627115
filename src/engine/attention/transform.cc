#include "engine/attention/transform.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "rules/element.h"
#include "rules/integers.h"
#include "rules/rope.h"

namespace multihead::engine {
namespace {

double mean_square(const float* row, int64_t width) {
  // Several sums in parallel: a single sum waits for each addition, 80 ns more at a width of 64.
  constexpr int64_t kSums = 8;
  double squares[kSums] = {};
  const auto square = [&](int64_t c) {
    return static_cast<double>(row[c]) * static_cast<double>(row[c]);
  };
  int64_t c = 0;
  for (; c + kSums <= width; c += kSums) {
    for (int64_t i = 0; i < kSums; ++i) squares[i] += square(c + i);
  }
  for (; c < width; ++c) squares[c % kSums] += square(c);
  return std::accumulate(squares, squares + kSums, 0.0) / static_cast<double>(width);
}

double inverse_rms(const Transform& transform, const float* row, int64_t width) {
  return 1.0 / std::sqrt(mean_square(row, width) + static_cast<double>(transform.eps));
}

void normalize_row(const Transform& transform, int64_t width, float* row) {
  const auto factor = static_cast<float>(inverse_rms(transform, row, width));
  if (transform.gain.empty()) {
    for (int64_t c = 0; c < width; ++c) row[c] *= factor;
  } else {
    for (int64_t c = 0; c < width; ++c) row[c] *= factor * transform.gain[static_cast<size_t>(c)];
  }
}

// Backward of RMS norm, y = gain * r * x with r = 1 / sqrt(mean(x^2) + eps). Overwrites
// `gradient`, dL/dy, with dL/dx = r g - x r^3 mean(g x), where g = gain * dL/dy. Adds dL/dgain =
// dL/dy * r x to d_gain unless it is null.
void normalize_row_back(const Transform& transform, int64_t width, const float* x, float* gradient,
                        double* d_gain) {
  const double r = inverse_rms(transform, x, width);
  double along = 0;
  for (int64_t c = 0; c < width; ++c) {
    const double value = static_cast<double>(x[c]);
    if (d_gain != nullptr) d_gain[c] += static_cast<double>(gradient[c]) * r * value;
    if (!transform.gain.empty()) gradient[c] *= transform.gain[static_cast<size_t>(c)];
    along += static_cast<double>(gradient[c]) * value;
  }
  const double shrink = along / static_cast<double>(width) * r * r * r;
  for (int64_t c = 0; c < width; ++c) {
    gradient[c] = static_cast<float>(r * static_cast<double>(gradient[c]) -
                                     shrink * static_cast<double>(x[c]));
  }
}

struct CosSin {
  double cos, sin;
};

// Returns cos and sin with an error below 1e-11, enough for float results, in a third of the time
// of std::cos and std::sin. Reduces the angle to [-pi/4, pi/4], where the Taylor series converge
// fast.
CosSin cos_sin(double angle) {
  // Beyond this, the product with the high half of pi/2 would be rounded.
  if (!(std::abs(angle) < 1e6)) return {std::cos(angle), std::sin(angle)};
  constexpr double kHalfPiHigh = 0x1.921fb544p0, kHalfPiLow = 0x1.0b4611a626331p-34;
  // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
  constexpr double kMagic = 0x1.8p52;
  const double shifted = angle * 0.63661977236758134308 + kMagic;
  const double quarters = shifted - kMagic;
  const double r = (angle - quarters * kHalfPiHigh) - quarters * kHalfPiLow;
  const double y = r * r;
  double sin = -1.0 / 39916800.0;
  for (const double over : {1.0 / 362880.0, -1.0 / 5040.0, 1.0 / 120.0, -1.0 / 6.0, 1.0}) {
    sin = sin * y + over;
  }
  sin *= r;
  double cos = 1.0 / 479001600.0;
  for (const double over : {-1.0 / 3628800.0, 1.0 / 40320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0}) {
    cos = cos * y + over;
  }
  const auto quadrant = std::bit_cast<uint64_t>(shifted);
  const double x = (quadrant & 1U) != 0 ? -sin : cos, z = (quadrant & 1U) != 0 ? cos : sin;
  return (quadrant & 2U) != 0 ? CosSin{-x, -z} : CosSin{x, z};
}

int64_t position_of(const Transform& transform, int64_t batch, int64_t row, int64_t rows) {
  const rules::Visibility* const rule = transform.query_positions;
  if (!transform.sequences.empty()) {
    const std::span<const int32_t> starts = transform.sequences;
    const auto after = std::upper_bound(starts.begin(), starts.end(), row);
    const auto s = static_cast<size_t>(after - starts.begin() - 1);
    const int64_t position = row - starts[s];
    if (rule == nullptr) return position;
    rules::Visibility sequence_rule = *rule;
    sequence_rule.queries = starts[s + 1] - starts[s];
    sequence_rule.keys = sequence_rule.shard_keys =
        transform.key_sequences[s + 1] - transform.key_sequences[s];
    return sequence_rule.position(0, position);
  }
  const auto given = static_cast<int64_t>(transform.positions.size());
  if (given == 0) return rule == nullptr ? row : rule->position(batch, row);
  return transform.positions[static_cast<size_t>(given == rows ? row : batch * rows + row)];
}

int64_t rotated_width(const Rope& rope, int64_t width) {
  if (!rope.given()) return 0;
  return rope.rotary_dim != 0 ? rope.rotary_dim : width;
}

// One token of x, and the cosines and sines of its position.
struct Token {
  int64_t batch, row;
  Rope::Style style;
  int64_t rotary;  // elements of a row that are rotated
  const float *cos, *sin;
  float* row_memory;  // scratch for one row

  bool rotates() const { return style != Rope::Style::kNone; }
  void rotate(const float* from, float* to, int64_t width) const {
    rules::rotate_vector(from, to, width, rotary, style, cos, sin);
  }
};

template <class TensorLike>
int64_t offset_of(const TensorLike& x, const Token& token, int64_t head) {
  return token.batch * x.strides[0] + head * x.strides[1] + token.row * x.strides[2];
}

// Tokens per job. They share the frequencies, which take as long to compute as one token's angles.
constexpr int64_t kTokensOfJob = 32;

// Memory for vectors of `width`.
Status reserve_for_rows(const Rope& rope, int64_t width, Context& context) {
  // Room for the frequencies, one token's cosines and sines for all heads, and one row.
  const auto pairs = static_cast<uint64_t>(rotated_width(rope, width)) / 2;
  const uint64_t bytes = pairs * (sizeof(double) + 2 * sizeof(float)) +
                         static_cast<uint64_t>(width) * sizeof(float) + 1;
  return scratch_of(context).reserve(context.threads(), bytes);
}

int64_t token_jobs(const ConstAnyTensor& x) {
  if (x.shape.elements() == 0) return 0;
  return rules::ceil_div(x.shape[0] * x.shape[2], kTokensOfJob);
}

// Calls visit(token, job) for every token of x that is read. The token's angles are multiplied by
// `direction`. Visits one row of all batch entries before the next row: these tokens usually have
// the same position, so a batch of 32 computes its angles once instead of 32 times.
template <class Visit>
Status for_tokens(const ConstAnyTensor& x, const Transform& transform, double direction,
                  Context& context, const Visit& visit) {
  if (x.shape.elements() == 0) return {};
  const int64_t rows = x.shape[2], width = x.shape[3];
  const Rope& rope = transform.rope;
  const int64_t rotary = rotated_width(rope, width);
  const int64_t pairs = rotary / 2;
  MULTIHEAD_TRY(reserve_for_rows(rope, width, context));
  const Scratch& scratch = scratch_of(context);
  const int64_t batch = x.shape[0], tokens = batch * rows;
  const double operations = 8.0 * static_cast<double>(x.shape.elements());
  const int threads = threads_for(operations, context.threads());
  parallel_for(context, "rotate", threads, token_jobs(x), [&](int64_t job, int thread) {
    auto* const frequency = static_cast<double*>(scratch.thread_memory(thread));
    auto* const cos = reinterpret_cast<float*>(frequency + pairs);
    float* const sin = cos + pairs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      frequency[pair] = rules::rope_frequency(pair, rope.base, rotary);
    }
    const int64_t end = std::min(tokens, (job + 1) * kTokensOfJob);
    std::optional<int64_t> position_of_angles;
    for (int64_t index = job * kTokensOfJob; index < end; ++index) {
      const Token token{index % batch, index / batch, rope.style, rotary, cos, sin, sin + pairs};
      if (!transform.lengths.empty() &&
          token.row >= transform.lengths[static_cast<size_t>(token.batch)]) {
        continue;
      }
      if (token.rotates()) {
        const int64_t position = position_of(transform, token.batch, token.row, rows);
        for (int64_t pair = position == position_of_angles ? pairs : 0; pair < pairs; ++pair) {
          const CosSin angle = cos_sin(static_cast<double>(position) * frequency[pair]);
          cos[pair] = static_cast<float>(angle.cos);
          sin[pair] = static_cast<float>(direction * angle.sin);
        }
        position_of_angles = position;
      }
      visit(token, job);
    }
  });
  return {};
}

// The memory of transform_back() in addition.
Status reserve_for_back(const ConstAnyTensor& x, std::span<const float> d_gain, Context& context) {
  if (d_gain.empty()) return {};
  const uint64_t bytes = static_cast<uint64_t>(token_jobs(x) * x.shape[3]) * sizeof(double);
  return scratch_of(context).partials().reserve(bytes) ? Status() : Status::out_of_memory(bytes);
}

Status reserve_copies(const InputTransforms& transforms, Context& context) {
  const int64_t floats = transforms.q.shape.elements() + transforms.k.shape.elements();
  const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float);
  return scratch_of(context).transformed().reserve(bytes) ? Status() : Status::out_of_memory(bytes);
}

}  // namespace

Status reserve_for_transform(const InputTransforms& transforms, Context& context) {
  MULTIHEAD_TRY(reserve_copies(transforms, context));
  return reserve_for_rows(transforms.rope, transforms.q.shape[3], context);
}

Status reserve_for_transform(const InputTransforms& transforms, const AttentionGradients& gradients,
                             Context& context) {
  MULTIHEAD_TRY(reserve_for_transform(transforms, context));
  MULTIHEAD_TRY(reserve_for_back(transforms.q, gradients.d_q_gain, context));
  return reserve_for_back(transforms.k, gradients.d_k_gain, context);
}

Transform InputTransforms::query_transform() const {
  return {.normalize = norm.given(),
          .gain = norm.q_gain,
          .eps = norm.eps,
          .rope = rope,
          .positions = rope.q_positions,
          .query_positions = &positions,
          .sequences = cu_q,
          .key_sequences = cu_k};
}

Transform InputTransforms::key_transform() const {
  return {.normalize = norm.given(),
          .gain = norm.k_gain,
          .eps = norm.eps,
          .rope = rope,
          .positions = rope.k_positions,
          .lengths = lengths,
          .sequences = cu_k};
}

Status transform_inputs(const InputTransforms& transforms, rules::AttentionParams& params,
                        Context& context) {
  const ConstAnyTensor &q = transforms.q, &k = transforms.k;
  MULTIHEAD_TRY(reserve_copies(transforms, context));
  const Tensor new_q(static_cast<float*>(scratch_of(context).transformed().data()), q.shape);
  const Tensor new_k(new_q.data + q.shape.elements(), k.shape);
  MULTIHEAD_TRY(transform_rows(q, transforms.query_transform(), new_q, context));
  MULTIHEAD_TRY(transform_rows(k, transforms.key_transform(), new_k, context));
  params.q.data = new_q.data;
  params.k.data = new_k.data;
  return {};
}

Status transform_part(const InputTransforms& transforms, int64_t first_head, int64_t end_head,
                      rules::AttentionParams& params, Context& context) {
  const int64_t group = params.group();
  const auto transform = [&](const ConstAnyTensor& x, Transform rule, int64_t first, int64_t end,
                             float* memory) {
    rule.first_head = first;
    rule.end_head = end;
    // Bytes from head 0, which may have no memory, to the first head in memory.
    const auto before = static_cast<uintptr_t>(first * x.shape[2] * x.shape[3]) * sizeof(float);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): it may lie outside of the memory
    const Tensor moved(reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(memory) - before),
                       x.shape);
    Status status = transform_rows(x, rule, moved, context);
    return std::pair{std::move(status), moved.data};
  };
  const ConstAnyTensor &q = transforms.q, &k = transforms.k;
  const int64_t heads = end_head - first_head;
  const int64_t queries = heads * group * q.shape[2] * q.shape[3];
  const auto floats = static_cast<uint64_t>(queries + heads * k.shape[2] * k.shape[3]);
  Buffer& memory = scratch_of(context).transformed();
  if (!memory.reserve(floats * sizeof(float))) {
    return Status::out_of_memory(floats * sizeof(float));
  }
  auto* const start = static_cast<float*>(memory.data());
  const auto [q_status, new_q] =
      transform(q, transforms.query_transform(), first_head * group, end_head * group, start);
  if (!q_status.ok()) return q_status;
  const auto [k_status, new_k] =
      transform(k, transforms.key_transform(), first_head, end_head, start + queries);
  if (!k_status.ok()) return k_status;
  params.q.data = new_q;
  params.k.data = new_k;
  return {};
}

Status transform_rows(const ConstAnyTensor& x, const Transform& transform, const Tensor& y,
                      Context& context) {
  const int64_t width = x.shape[3], heads = x.shape[1];
  return for_tokens(x, transform, 1.0, context, [&](const Token& token, int64_t) {
    const int64_t before = token.batch * heads;
    const int64_t end = std::min(heads, transform.end_head - before);
    for (int64_t head = std::max<int64_t>(0, transform.first_head - before); head < end; ++head) {
      float* const to = y.data + offset_of(y, token, head);
      float* const from = token.rotates() ? token.row_memory : to;
      rules::read_floats(x.data, x.dtype, offset_of(x, token, head), width, from);
      if (transform.normalize) normalize_row(transform, width, from);
      token.rotate(from, to, width);
    }
  });
}

Status transform_back(const ConstAnyTensor& x, const Transform& transform, const Tensor& gradient,
                      std::span<float> d_gain, Context& context) {
  const int64_t width = x.shape[3], jobs = token_jobs(x);
  const bool sums_gain = !d_gain.empty();
  // Each job sums its own part, and the parts are added in order, so that the bits do not depend on
  // the number of threads.
  MULTIHEAD_TRY(reserve_for_back(x, d_gain, context));
  auto* const parts = static_cast<double*>(scratch_of(context).partials().data());
  if (sums_gain) std::fill_n(parts, jobs * width, 0.0);
  Status status = for_tokens(x, transform, -1.0, context, [&](const Token& token, int64_t job) {
    for (int64_t head = 0; head < x.shape[1]; ++head) {
      float* const row = gradient.data + offset_of(gradient, token, head);
      // A gradient row of zeros stays zero, even if x is NaN.
      if (std::all_of(row, row + width, [](float value) { return value == 0.0F; })) continue;
      token.rotate(row, row, width);
      if (!transform.normalize) continue;
      rules::read_floats(x.data, x.dtype, offset_of(x, token, head), width, token.row_memory);
      normalize_row_back(transform, width, token.row_memory, row,
                         sums_gain ? parts + job * width : nullptr);
    }
  });
  if (!status.ok() || !sums_gain) return status;
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t job = 0; job < jobs; ++job) sum += parts[job * width + c];
    d_gain[static_cast<size_t>(c)] = static_cast<float>(sum);
  }
  return {};
}

Status transform_gradients(const InputTransforms& transforms, const AttentionGradients& gradients,
                           Context& context) {
  Status status;
  if (gradients.d_q.given()) {
    status = transform_back(transforms.q, transforms.query_transform(), gradients.d_q,
                            gradients.d_q_gain, context);
  }
  if (status.ok() && gradients.d_k.given()) {
    status = transform_back(transforms.k, transforms.key_transform(), gradients.d_k,
                            gradients.d_k_gain, context);
  }
  return status;
}

}  // namespace multihead::engine

namespace multihead {

Status rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
              const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_rotate(x, positions, rope, y));
    MULTIHEAD_TRY(engine::validate_same_or_apart(engine::Name::kX, x, y));
    return engine::transform_rows(x, {.rope = rope, .positions = positions}, y, context);
  });
}

}  // namespace multihead
