// Compares attention() with products of bf16 tiles with the oracle, on inputs rounded to bf16. The
// tile instructions are the model's, see support/tile_model.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/target.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/kv_cache.h"
#include "reference/reference_attention.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"
#include "support/tile_model.h"

namespace multihead {
namespace {

using testing::element;
using testing::Random;
using testing::random_case;
using testing::RandomCase;
using testing::UseTileModel;

// Replaces every number of a tensor, including gaps between rows, by a number of `type`.
template <class Change>
ConstAnyTensor changed(RandomCase& c, const ConstAnyTensor& from, DType type,
                       const Change& change) {
  if (from.shape.elements() == 0) return {from.data, type, from.shape, from.strides};
  int64_t last = 0;
  for (int axis = 0; axis < 4; ++axis) last += (from.shape[axis] - 1) * from.strides[axis];
  std::vector<float> values;
  for (int64_t i = 0; i <= last; ++i) values.push_back(change(element(from, i)));
  return stored(c, std::move(values), type, from.shape, from.strides);
}

ConstAnyTensor rounded(RandomCase& c, const ConstAnyTensor& from) {
  return changed(c, from, DType::kBF16, [](float x) { return x; });
}

// A random call that the tile kernel computes: without RoPE and QK-norm, because the kernel rounds
// q and k after them, and without captures.
RandomCase tile_case(uint64_t seed, const testing::CaseLimits& limits) {
  RandomCase c = random_case(seed, limits);
  Random random(seed);
  const auto type = [&] { return random.chance(0.7) ? DType::kBF16 : DType::kF32; };
  const auto same = [](float x) { return x; };
  const DType of_keys = type();
  c.q = changed(c, c.q, type(), same);
  c.k = changed(c, c.k, of_keys, same);
  c.v = changed(c, c.v, of_keys, same);
  c.captures.clear();
  c.options.rope = {};
  c.options.qk_norm = {};
  c.options.precision = Precision::kBf16;
  return c;
}

struct TileResult {
  std::vector<float> out, lse;

  friend bool operator==(const TileResult&, const TileResult&) = default;
};

// Outputs start as NaN, which reveals elements that are not written.
TileResult run(const RandomCase& c, int threads) {
  TileResult result;
  result.out.assign(static_cast<size_t>(c.out_shape.elements()), kNaN);
  result.lse.assign(static_cast<size_t>(c.lse_shape.elements()), kNaN);
  std::vector<uint16_t> halves(result.out.size(), testing::half_bits(kNaN, c.out_type));
  AttentionOutputs outputs{.lse = {result.lse.data(), c.lse_shape}};
  outputs.out = {c.out_type == DType::kF32 ? static_cast<void*>(result.out.data()) : halves.data(),
                 c.out_type, c.out_shape, contiguous_strides(c.out_shape)};
  Context context(threads);
  const Status status = attention(c.q, c.k, c.v, c.options, outputs, context);
  EXPECT_TRUE(status.ok()) << status.message();
  const ConstAnyTensor out(outputs.out.data, c.out_type, c.out_shape, outputs.out.strides);
  for (size_t i = 0; i < result.out.size(); ++i) {
    result.out[i] = element(out, static_cast<int64_t>(i));
  }
  return result;
}

// One unit in the last place of a bf16 number.
double bf16_unit(double value) {
  constexpr int kSmallest = -126;
  const int exponent = value == 0.0 ? kSmallest : std::max(std::ilogb(value), kSmallest);
  return std::ldexp(1.0, exponent - 7);
}

// True if the tile kernel computes the call on the current SIMD target.
bool takes_tiles(const RandomCase& c) {
  engine::AttentionShape shape;
  std::vector<float> out(static_cast<size_t>(c.out_shape.elements()));
  const AttentionOutputs outputs{.out = Tensor(out.data(), c.out_shape)};
  const Status status = engine::validate_call({c.q, c.k, c.v, c.options, outputs}, shape);
  EXPECT_TRUE(status.ok()) << status.message();
  return engine::plan_forward({c.q, c.k, c.v, c.options, outputs}, shape).choice.kernel ==
         engine::Kernel::kAmxBlocks;
}

// Each weight and each output is rounded to bf16 once: 1.5 units in the last place (bf16) of the
// weighted sum of |v|. Targets without the kernel use f32 products, with smaller errors.
void expect_equals_oracle(RandomCase& c) {
  const ConstAnyTensor q = rounded(c, c.q), k = rounded(c, c.k), v = rounded(c, c.v);
  const ConstAnyTensor size = changed(c, v, DType::kBF16, [](float x) { return std::abs(x); });
  const auto expected = reference::attention(q, k, v, c.options);
  const auto sizes = reference::attention(q, k, size, c.options);
  testing::on_every_target([&] {
    const bool tiles = takes_tiles(c);
    // Without tiles, f32 inputs are not rounded.
    if (!tiles && (c.q.dtype == DType::kF32 || c.k.dtype == DType::kF32)) return;
    const TileResult got = run(c, 1);
    for (size_t i = 0; i < got.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], expected.out[i], 1.5 * bf16_unit(sizes.out[i]) + 2e-6) << i;
    }
    for (size_t i = 0; i < got.lse.size(); ++i) {
      if (static_cast<double>(got.lse[i]) == expected.lse[i]) continue;
      ASSERT_NEAR(got.lse[i], expected.lse[i], 2e-5 * std::max(1.0, std::abs(expected.lse[i])))
          << i;
    }
    if (!tiles) return;
    ASSERT_EQ(run(c, 2), got);
  });
}

TEST(TileProducts, EqualTheOracleOnRandomCalls) {
  const UseTileModel model;
  for (const uint64_t seed : testing::random_seeds(30)) {
    RandomCase c = tile_case(seed, {.max_queries = 100, .max_keys = 300, .max_width = 70});
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(model.products() > 0, cpu::target_traits().bf16_tiles);
}

TEST(TileProducts, EqualTheOracleOnSmallRandomCalls) {
  const UseTileModel model;
  for (const uint64_t seed : testing::random_seeds(80)) {
    RandomCase c = tile_case(seed + 5000, {.max_queries = 40, .max_keys = 40, .max_width = 40});
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Whole tiles of K are read in place, partial tiles are copied.
TEST(TileProducts, EqualTheOracleOnWholeTilesAndParts) {
  const UseTileModel model;
  for (const int64_t width : {31, 32, 64, 65}) {
    for (const int64_t keys : {1, 15, 16, 143, 256, 257}) {
      RandomCase c;
      Random random(static_cast<uint64_t>(width * keys));
      const Dims q{1, 2, 40, width}, k{1, 1, keys, width};
      const auto tensor = [&](const Dims& shape) {
        return stored(c, random.floats(shape.elements()), DType::kBF16, shape,
                      contiguous_strides(shape));
      };
      c.q = tensor(q);
      c.k = tensor(k);
      c.v = tensor(k);
      c.options.precision = Precision::kBf16;
      c.out_shape = q;
      c.lse_shape = {1, 2, 40};
      SCOPED_TRACE("d " + std::to_string(width) + ", " + std::to_string(keys) + " keys");
      expect_equals_oracle(c);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Later keys have larger scores, so that the references of rows rise.
TEST(TileProducts, EqualTheOracleOnRisingScores) {
  const UseTileModel model;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    RandomCase c;
    Random random(seed);
    const Dims q{1, 1, 40, 32}, k{1, 1, 300, 32};
    const auto tensor = [&](const Dims& shape, float growth) {
      std::vector<float> values = random.floats(shape.elements());
      for (size_t i = 0; i < values.size(); ++i) values[i] *= 1.0F + growth * static_cast<float>(i);
      return stored(c, std::move(values), DType::kBF16, shape, contiguous_strides(shape));
    };
    c.q = tensor(q, 0);
    c.k = tensor(k, 1e-3F);
    c.v = tensor(k, 0);
    c.options = {.scale = 1.0F, .precision = Precision::kBf16};
    if (seed % 2 == 0) c.options.causal = Causal::bottom_right();
    c.out_shape = q;
    c.lse_shape = {1, 1, 40};
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_equals_oracle(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Scores beyond the range of bf16 and f32 before scaling, and NaN in hidden rows: the result equals
// f32 products.
TEST(TileProducts, LeaveToFloatsWhatTheyCannotCompute) {
  const UseTileModel model;
  const Dims q_shape{1, 1, 20, 32}, k_shape{1, 1, 50, 32};
  RandomCase c;
  Random random(7);
  std::vector<float> large = random.floats(q_shape.elements());
  for (float& x : large) x *= 1e20F;
  std::vector<float> values = random.floats(k_shape.elements());
  const int32_t length = 41;
  values[static_cast<size_t>(length * 32)] = kNaN;
  c.q = stored(c, large, DType::kBF16, q_shape, contiguous_strides(q_shape));
  std::vector<float> keys = random.floats(k_shape.elements());
  for (float& x : keys) x *= 1e20F;
  keys[static_cast<size_t>(length * 32)] = kNaN;
  c.k = stored(c, keys, DType::kBF16, k_shape, contiguous_strides(k_shape));
  c.v = stored(c, values, DType::kBF16, k_shape, contiguous_strides(k_shape));
  c.options.kv_lengths = {&length, 1};
  c.options.scale = 0x1p-132F;
  c.out_shape = q_shape;
  c.lse_shape = {1, 1, 20};
  testing::on_every_target([&] {
    c.options.precision = Precision::kF32;
    const TileResult exact = run(c, 1);
    c.options.precision = Precision::kBf16;
    const TileResult got = run(c, 1);
    for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], exact.out[i], 0x1p-8) << i;
  });
}

// A cache of bf16 in every layout, with queries of f32.
TEST(TileProducts, AttendToCaches) {
  const UseTileModel model;
  const Dims x{1, 2, 60, 32}, q_shape{1, 4, 40, 32};
  using Layout = KVCacheConfig::Layout;
  for (const Layout layout : {Layout::kContiguous, Layout::kRing, Layout::kPaged}) {
    SCOPED_TRACE(static_cast<int>(layout));
    RandomCase c;
    Random random(11);
    c.k = stored(c, random.floats(x.elements()), DType::kF32, x, contiguous_strides(x));
    c.v = stored(c, random.floats(x.elements()), DType::kF32, x, contiguous_strides(x));
    c.q = stored(c, random.floats(q_shape.elements()), DType::kF32, q_shape,
                 contiguous_strides(q_shape));
    KVCache cache;
    Status status = KVCache::create({.num_kv_heads = 2,
                                     .head_dim = 32,
                                     .value_dim = 32,
                                     .capacity = 64,
                                     .layout = layout,
                                     .type = DType::kBF16},
                                    cache);
    ASSERT_TRUE(status.ok()) << status.message();
    Context context(1);
    status = cache.append(ConstTensor(static_cast<const float*>(c.k.data), x),
                          ConstTensor(static_cast<const float*>(c.v.data), x));
    ASSERT_TRUE(status.ok()) << status.message();
    AttentionOptions options{.causal = Causal::bottom_right()};
    std::vector<float> out[2];
    for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
      options.precision = precision;
      std::vector<float>& result = out[static_cast<size_t>(precision)];
      result.assign(static_cast<size_t>(q_shape.elements()), kNaN);
      status = cache.attend(ConstTensor(static_cast<const float*>(c.q.data), q_shape), options,
                            {.out = Tensor(result.data(), q_shape)}, context);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (size_t i = 0; i < out[0].size(); ++i) ASSERT_NEAR(out[1][i], out[0][i], 0x1p-7) << i;
  }
  EXPECT_EQ(model.products() > 0, cpu::target_traits().bf16_tiles);
}

}  // namespace
}  // namespace multihead
