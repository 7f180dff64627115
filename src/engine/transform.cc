#include "engine/transform.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "engine/guard.h"
#include "engine/scratch.h"
#include "engine/threads.h"
#include "engine/validate.h"
#include "rules/element.h"
#include "rules/rope.h"

namespace multihead::engine {
namespace {

void normalise_row(const Transform& transform, int64_t width, float* row) {
  // Several sums side by side: a single one waits for every addition, 80 ns at a width of 64.
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
  const double mean = std::accumulate(squares, squares + kSums, 0.0) / static_cast<double>(width);
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(transform.epsilon)));
  if (transform.gain.empty()) {
    for (c = 0; c < width; ++c) row[c] *= factor;
  } else {
    for (c = 0; c < width; ++c) row[c] *= factor * transform.gain[static_cast<size_t>(c)];
  }
}

struct CosSin {
  double cos, sin;
};

// Within 1e-11, for float results; takes a third of the time of std::cos and std::sin. The angle is
// reduced to [-pi/4, pi/4], where the Taylor series converge fast.
CosSin cos_sin(double angle) {
  // For larger angles, the product with the high half of pi/2 would be rounded.
  if (!(std::abs(angle) < 1e6)) return {std::cos(angle), std::sin(angle)};
  constexpr double kHalfPiHigh = 0x1.921fb544p0, kHalfPiLow = 0x1.0b4611a626331p-34;
  // Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits.
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
    rules::Visibility of_sequence = *rule;
    of_sequence.queries = starts[s + 1] - starts[s];
    of_sequence.keys = of_sequence.shard_keys =
        transform.key_sequences[s + 1] - transform.key_sequences[s];
    return of_sequence.position(0, position);
  }
  const auto given = static_cast<int64_t>(transform.positions.size());
  if (given == 0) return rule == nullptr ? row : rule->position(batch, row);
  return transform.positions[static_cast<size_t>(given == rows ? row : batch * rows + row)];
}

int64_t rotated_width(const Rope& rope, int64_t width) {
  if (rope.style == Rope::Style::kNone) return 0;
  return rope.rotary_dim != 0 ? rope.rotary_dim : width;
}

Status reserve_copies(const InputTransforms& transforms, Context& context) {
  const int64_t floats = transforms.q.shape.elements() + transforms.k.shape.elements();
  const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float);
  return scratch_of(context).transformed().reserve(bytes) ? Status() : Status::out_of_memory(bytes);
}

}  // namespace

Status reserve_for_transform(const InputTransforms& transforms, Context& context) {
  if (Status status = reserve_copies(transforms, context); !status.ok()) return status;
  return reserve_for_transform(transforms.rope, transforms.q.shape[3], context);
}

Status transform_inputs(const InputTransforms& transforms, rules::AttentionParams& params,
                        Context& context) {
  const auto& [q, k, norm, rope, positions, lengths] = transforms;
  const Transform of_q{.normalise = norm.enabled,
                       .gain = norm.q_gain,
                       .epsilon = norm.epsilon,
                       .rope = rope,
                       .positions = rope.q_positions,
                       .query_positions = &positions};
  Transform of_k = of_q;
  of_k.gain = norm.k_gain;
  of_k.positions = rope.k_positions;
  of_k.query_positions = nullptr;
  of_k.lengths = lengths;

  if (Status status = reserve_copies(transforms, context); !status.ok()) return status;
  const Tensor new_q(static_cast<float*>(scratch_of(context).transformed().data()), q.shape);
  const Tensor new_k(new_q.data + q.shape.elements(), k.shape);
  if (Status status = transform_rows(q, of_q, new_q, context); !status.ok()) return status;
  if (Status status = transform_rows(k, of_k, new_k, context); !status.ok()) return status;
  params.q.data = new_q.data;
  params.k.data = new_k.data;
  return {};
}

Status reserve_for_transform(const Rope& rope, int64_t width, Context& context) {
  // Frequencies, the cosines and sines of one token for all its heads, and one row.
  const auto pairs = static_cast<uint64_t>(rotated_width(rope, width)) / 2;
  const uint64_t bytes = pairs * (sizeof(double) + 2 * sizeof(float)) +
                         static_cast<uint64_t>(width) * sizeof(float) + 1;
  return scratch_of(context).reserve(context.threads(), bytes);
}

Status transform_rows(const ConstAnyTensor& x, const Transform& transform, const Tensor& y,
                      Context& context) {
  const int64_t batch = x.shape[0], heads = x.shape[1], rows = x.shape[2], width = x.shape[3];
  if (x.shape.elements() == 0) return {};
  const Rope& rope = transform.rope;
  const bool rotates = rope.style != Rope::Style::kNone;
  const int64_t rotary = rotated_width(rope, width);
  const int64_t pairs = rotary / 2;
  if (Status status = reserve_for_transform(rope, width, context); !status.ok()) return status;
  const Scratch& scratch = scratch_of(context);
  // Tokens that share the frequencies, whose computation takes as long as the angles of a token.
  constexpr int64_t kTokens = 32;
  const int64_t tokens = batch * rows;
  const double operations = 8.0 * static_cast<double>(x.shape.elements());
  const int threads = threads_for(operations, context.threads());
  parallel_for(threads, (tokens + kTokens - 1) / kTokens, [&](int64_t job, int thread) {
    auto* const frequency = static_cast<double*>(scratch.of_thread(thread));
    auto* const cos = reinterpret_cast<float*>(frequency + pairs);
    float* const sin = cos + pairs;
    float* const decoded = sin + pairs;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      frequency[pair] = rules::rope_frequency(pair, rope.base, rotary);
    }
    const int64_t end = std::min(tokens, (job + 1) * kTokens);
    for (int64_t token = job * kTokens; token < end; ++token) {
      const int64_t b = token / rows;
      const int64_t row = token % rows;
      if (!transform.lengths.empty() && row >= transform.lengths[static_cast<size_t>(b)]) continue;
      if (rotates) {
        const auto position = static_cast<double>(position_of(transform, b, row, rows));
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const CosSin angle = cos_sin(position * frequency[pair]);
          cos[pair] = static_cast<float>(angle.cos);
          sin[pair] = static_cast<float>(angle.sin);
        }
      }
      for (int64_t head = 0; head < heads; ++head) {
        float* const to = y.data + b * y.strides[0] + head * y.strides[1] + row * y.strides[2];
        float* const from = rotates ? decoded : to;
        rules::read_floats(x.data, x.dtype,
                           b * x.strides[0] + head * x.strides[1] + row * x.strides[2], width,
                           from);
        if (transform.normalise) normalise_row(transform, width, from);
        rules::rotate_vector(from, to, width, rotary, rope.style, cos, sin);
      }
    }
  });
  return {};
}

}  // namespace multihead::engine

namespace multihead {

Status rotate(const ConstTensor& x, std::span<const int32_t> positions, const Rope& rope,
              const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    using namespace engine;  // NOLINT(google-build-using-namespace)
    if (Status status = validate_rank(Name::kX, Axes::kHeads, x, 4); !status.ok()) return status;
    for (const Status& status :
         {validate_exact(Name::kX, Axes::kHeads, x, x.shape),
          validate_exact(Name::kY, Axes::kHeads, y, x.shape), validate_rope(rope, x.shape[3]),
          validate_positions(Name::kPositions, positions, x.shape[0], x.shape[2])}) {
      if (!status.ok()) return status;
    }
    if (rope.style == Rope::Style::kNone)
      return option_error(Name::kRopeStyle, Message::kRopeStyle);
    if (positions.empty() && x.shape.elements() != 0) {
      return option_error(Name::kPositions, Message::kPositionPerRow);
    }
    return transform_rows(x, {.rope = rope, .positions = positions}, y, context);
  });
}

}  // namespace multihead
