// Runs a call of a forward kernel in the emulator, and compares it with the Eigen oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "rules/attention_params.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {

using emulator::device;
using emulator::Use;
using multihead::testing::Random;
using multihead::testing::random_case;
using multihead::testing::RandomCase;

inline constexpr Device kDevice{
    .compute_capability = 80, .multiprocessors = 108, .shared_bytes = 163 << 10};

using Launch = int (*)(const ForwardParams&, const Device&, StreamHandle);

// Maps memory of the emulated device for the duration of a call.
class Mapped {
 public:
  Mapped() = default;
  ~Mapped() {
    for (const void* const data : mapped_) device().unmap(data);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  void map(const void* data, size_t bytes, Use use, const char* name) {
    if (data == nullptr || bytes == 0) return;
    device().map(data, bytes, use, name);
    mapped_.push_back(data);
  }
  template <class Container>
  void map_input(const Container& values, const char* name) {
    map(values.data(), values.size() * sizeof(values[0]), Use::kInput, name);
  }
  // Maps rows exactly up to their last element, so that a read beyond it is found.
  void map_rows(const rules::StoredRows& rows, int64_t heads, int64_t batch, int64_t positions,
                int64_t width, const char* name) {
    if (batch * heads * positions * width == 0) return;
    const int64_t last = rules::row_offset(rows.stride, batch - 1, heads - 1, positions - 1);
    map(rows.data, static_cast<size_t>((last + width) * bytes_of(rows.type)), Use::kInput, name);
  }
  template <class T>
  void map_scores(const rules::Broadcast<T>& broadcast, const Dims& scores, const char* name) {
    int64_t last = 0;
    for (int axis = 0; axis < 4; ++axis) {
      last += (scores[axis] - 1) * broadcast.stride[static_cast<size_t>(axis)];
    }
    if (scores.elements() == 0) return;
    map(broadcast.data, static_cast<size_t>(last + 1) * sizeof(T), Use::kInput, name);
  }

 private:
  std::vector<const void*> mapped_;
};

struct ForwardResult {
  std::vector<float> out, lse;
};

// Plans a call with the engine and runs it with one kernel in the emulator.
inline ForwardResult run_forward(const RandomCase& c, Launch launch) {
  const int64_t count = c.out_shape.elements();
  ForwardResult result;
  result.lse.assign(static_cast<size_t>(c.lse_shape.elements()),
                    std::numeric_limits<float>::quiet_NaN());
  std::vector<std::byte> stored(static_cast<size_t>(count * bytes_of(c.out_type)), std::byte{0xFF});
  const AttentionOutputs outputs{
      .out = {stored.data(), c.out_type, c.out_shape, contiguous_strides(c.out_shape)},
      .lse = {result.lse.data(), c.lse_shape}};
  engine::AttentionShape shape;
  const Status status = engine::validate_call({c.q, c.k, c.v, c.options, outputs}, shape);
  EXPECT_TRUE(status.ok()) << status.message();
  engine::ForwardPlan planned = engine::plan_forward({c.q, c.k, c.v, c.options, outputs}, shape);
  Context context(1);
  rules::AttentionParams& call = planned.params;
  if (planned.transforms) {
    const Status transformed = engine::transform_inputs(*planned.transforms, call, context);
    EXPECT_TRUE(transformed.ok()) << transformed.message();
  }
  {
    Mapped memory;
    memory.map_rows(call.q, call.heads, call.batch, call.queries, call.head_dim, "q");
    memory.map_rows(call.k, call.kv_heads, call.batch, call.keys, call.head_dim, "k");
    memory.map_rows(call.v, call.kv_heads, call.batch, call.keys, call.value_dim, "v");
    memory.map(stored.data(), stored.size(), Use::kOutput, "out");
    memory.map(result.lse.data(), result.lse.size() * sizeof(float), Use::kOutput, "lse");
    memory.map_scores(call.mask, c.weights_shape, "mask");
    memory.map_scores(call.bias, c.weights_shape, "bias");
    memory.map_input(c.options.kv_lengths, "kv_lengths");
    memory.map_input(c.options.alibi_slopes, "alibi_slopes");
    memory.map_input(c.options.sinks, "sinks");
    if (call.rows() * call.batch * call.kv_heads > 0) {
      EXPECT_EQ(launch({.call = call}, kDevice, nullptr), 0);
    }
  }
  EXPECT_EQ(device().take_findings(), std::vector<std::string>());
  for (int64_t i = 0; i < count; ++i) {
    result.out.push_back(multihead::testing::element(
        {static_cast<const void*>(stored.data()), c.out_type, c.out_shape, c.out_shape}, i));
  }
  return result;
}

// The unit in the last place of `type` near `value`.
inline double unit(double value, DType type) {
  if (type == DType::kF32) return 0.0;
  const int bits = type == DType::kF16 ? 10 : 7;
  const int smallest = type == DType::kF16 ? -14 : -126;
  const int exponent = value == 0.0 ? smallest : std::max(std::ilogb(value), smallest);
  return std::ldexp(1.0, exponent - bits);
}

inline bool differ(float got, double expected, double allowed) {
  const auto value = static_cast<double>(got);
  if (value == expected || (std::isnan(value) && std::isnan(expected))) return false;
  return !(std::abs(value - expected) <= allowed * std::max(1.0, std::abs(expected) / 8));
}

// Uses the oracle's tolerance of attention_test.cc. `of_weights`: rounding error of a weight.
inline void expect_equals_oracle(const RandomCase& c, Launch launch, double of_weights) {
  const reference::ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options, true);
  const auto width = static_cast<double>(c.q.shape[3]);
  const double scale = std::abs(
      static_cast<double>(c.options.scale.value_or(static_cast<float>(1.0 / std::sqrt(width)))));
  double size = scale * width * (c.options.qk_norm.enabled ? 2.0 : 0.25);
  for (const double score : expected.masked) {
    if (score > -1e30) size = std::max(size, std::abs(score));
  }
  const double allowed = 2e-6 * std::max(1.0, size / 8);
  const double survivor = 1.0 / (1.0 - static_cast<double>(c.options.dropout.probability));
  const ForwardResult got = run_forward(c, launch);
  ASSERT_EQ(got.out.size(), expected.out.size());
  for (size_t i = 0; i < got.out.size(); ++i) {
    // Values are at most 1, and so is their weighted mean.
    const double of_out =
        std::max(1.5 * unit(expected.out[i], c.out_type),
                 0.5 * unit(expected.out[i], c.out_type) + (allowed + of_weights) * survivor);
    ASSERT_FALSE(differ(got.out[i], expected.out[i], of_out))
        << "out " << i << " is " << got.out[i] << ", not " << expected.out[i];
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    ASSERT_FALSE(differ(got.lse[i], expected.lse[i], 2 * allowed))
        << "lse " << i << " is " << got.lse[i] << ", not " << expected.lse[i];
  }
}

// Weights are rounded to the type of V before the product P V.
inline double rounding_of_weights(const RandomCase& c) {
  return c.v.dtype == DType::kF16 ? 0x1p-12 : 0x1p-9;
}

// Random rows of 16-bit numbers whose addresses and strides are multiples of 16 bytes.
inline ConstAnyTensor aligned_rows(RandomCase& c, Random& random, const Dims& shape, DType type) {
  const int64_t row = (shape[3] + 7) / 8 * 8 + (random.chance(0.3) ? 8 : 0);
  const Dims strides{shape[1] * shape[2] * row, shape[2] * row, row, 1};
  return multihead::testing::stored(c, random.floats(shape[0] * strides[0]), type, shape, strides);
}

// A random call with q, k and v of one 16-bit type, aligned for the mma.sync kernels.
inline RandomCase half_case(uint64_t seed, int64_t most_keys = 150, int64_t most_queries = 30) {
  const int64_t width = seed % 25 == 0 ? 256 : seed % 10 == 0 ? 130 : 40;
  const int64_t most = width > 40 ? 20 : most_keys;
  RandomCase c =
      random_case(seed, {.max_queries = most_queries, .max_keys = most, .max_width = width});
  Random random(seed);
  const DType type = random.pick({DType::kF16, DType::kBF16});
  c.q = aligned_rows(c, random, c.q.shape, type);
  c.k = aligned_rows(c, random, c.k.shape, type);
  c.v = aligned_rows(c, random, c.v.shape, type);
  if (random.chance(0.7)) c.out_type = type;
  // No RoPE and QK-norm: the engine would make transformed rows f32.
  c.options.rope = {};
  c.options.qk_norm = {};
  c.captures.clear();
  return c;
}

// Sets some elements of rows to NaN or infinity.
inline void spoil(const ConstAnyTensor& rows, RandomCase& c, Random& random) {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()};
  for (std::vector<uint16_t>& halves : c.halves) {
    if (halves.data() != rows.data) continue;
    for (uint16_t& half : halves) {
      if (!random.chance(0.002)) continue;
      half = multihead::testing::half_bits(values[random.integer(0, 2)], rows.dtype);
    }
  }
  for (std::vector<float>& floats : c.storage) {
    if (floats.data() != rows.data) continue;
    for (float& value : floats) {
      if (random.chance(0.002)) value = values[random.integer(0, 2)];
    }
  }
}

}  // namespace multihead::cuda::testing
