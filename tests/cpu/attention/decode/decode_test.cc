// Compares decoding (few query rows, many keys) with the oracle on every SIMD target.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "multihead/kv_cache.h"
#include "reference/reference_attention.h"
#include "rules/element.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

namespace multihead {
namespace {

using reference::ReferenceOutputs;
using testing::Random;
using testing::random_case;
using testing::RandomCase;
using Layout = KVCacheConfig::Layout;
using Type = KVCacheConfig::Type;

struct DecodeResult {
  std::vector<float> out, lse;
};

// Compares bits, so that NaN equals NaN.
bool same_bits(const DecodeResult& a, const DecodeResult& b) {
  const auto same = [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  };
  return std::equal(a.out.begin(), a.out.end(), b.out.begin(), b.out.end(), same) &&
         std::equal(a.lse.begin(), a.lse.end(), b.lse.begin(), b.lse.end(), same);
}

DecodeResult run(const RandomCase& c, Context& context) {
  const auto count = static_cast<size_t>(c.out_shape.elements());
  DecodeResult result{std::vector<float>(count, kNaN),
                      std::vector<float>(static_cast<size_t>(c.lse_shape.elements()), kNaN)};
  std::vector<uint16_t> halves(count, testing::half_bits(kNaN, DType::kF16));
  const bool half = c.out_type != DType::kF32;
  void* const data = half ? static_cast<void*>(halves.data()) : result.out.data();
  const AnyTensor out(data, c.out_type, c.out_shape, contiguous_strides(c.out_shape));
  const Status status = attention(c.q, c.k, c.v, c.options,
                                  {.out = out, .lse = {result.lse.data(), c.lse_shape}}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; half && i < count; ++i) {
    result.out[i] =
        testing::element({out.data, out.dtype, out.shape, out.strides}, static_cast<int64_t>(i));
  }
  return result;
}

// One unit in the last place of `type`.
double unit(double value, DType type) {
  if (type == DType::kF32) return 0.0;
  const int smallest = type == DType::kF16 ? -14 : -126;
  const int exponent = value == 0.0 ? smallest : std::max(std::ilogb(value), smallest);
  return std::ldexp(1.0, exponent - (type == DType::kF16 ? 10 : 7));
}

void expect_near(const std::vector<float>& got, const std::vector<double>& expected, DType type,
                 double allowed, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    if (value == expected[i] || (std::isnan(value) && std::isnan(expected[i]))) continue;
    const double ulp = std::isfinite(expected[i]) ? unit(expected[i], type) : 0.0;
    // Large log-sum-exps, such as -3.4e38, are compared relatively.
    const double limit =
        std::max(1.5 * ulp, 0.5 * ulp + allowed * std::max(1.0, std::abs(expected[i]) / 8));
    ASSERT_LE(std::abs(value - expected[i]), limit)
        << what << " " << i << " is " << value << " for " << expected[i];
  }
}

// Tolerance: 2e-6 for inputs in [-1, 1], and more for larger scores, whose rounding error is
// larger.
double tolerance(const RandomCase& c, const ReferenceOutputs& expected) {
  const auto width = static_cast<double>(c.q.shape[3]);
  const double scale = std::abs(
      static_cast<double>(c.options.scale.value_or(static_cast<float>(1.0 / std::sqrt(width)))));
  double size = scale * width * (c.options.qk_norm.enabled ? 2.0 : 0.25);
  for (const double lse : expected.lse) {
    if (std::abs(lse) < 1e30) size = std::max(size, std::abs(lse));
  }
  return 2e-6 * std::max(1.0, size / 8);
}

void expect_equals_oracle(const RandomCase& c, Context& context) {
  const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
  const double allowed = tolerance(c, expected);
  testing::on_every_target([&] {
    const DecodeResult got = run(c, context);
    expect_near(got.out, expected.out, c.out_type, allowed, "out");
    expect_near(got.lse, expected.lse, DType::kF32, 2 * allowed, "lse");
  });
}

// Uses every option that decoding supports, one or a few rows per key/value head, and enough keys
// for several KV splits.
RandomCase decode_case(uint64_t seed) {
  RandomCase c = random_case(seed, {.max_queries = 5, .max_keys = 1700, .max_width = 140});
  c.captures.clear();
  c.options.dropout = {};
  return c;
}

int64_t rows_of(const RandomCase& c) { return c.q.shape[2] * c.q.shape[1] / c.k.shape[1]; }

class Decode : public ::testing::Test {
 protected:
  Context context_{2};
};

TEST_F(Decode, EqualsOracleOnRandomCalls) {
  int decoded = 0;
  for (uint64_t seed = 1; seed <= 160; ++seed) {
    const RandomCase c = decode_case(seed);
    SCOPED_TRACE(c.description);
    decoded += rows_of(c) <= cpu::kMostDecodeRows ? 1 : 0;
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(decoded, 100);
}

// One query row for each of `group` heads that share a key/value head, without options.
RandomCase plain_case(int64_t group, int64_t kv_heads, int64_t keys, int64_t width,
                      int64_t value_dim) {
  RandomCase c;
  Random random(static_cast<uint64_t>(group * 1000 + width));
  const int64_t heads = kv_heads * group;
  const Dims q{1, heads, 1, width}, k{1, kv_heads, keys, width}, v{1, kv_heads, keys, value_dim};
  c.q = stored(c, random.floats(q.elements()), DType::kF32, q, contiguous_strides(q));
  c.k = stored(c, random.floats(k.elements()), DType::kF32, k, contiguous_strides(k));
  c.v = stored(c, random.floats(v.elements()), DType::kF32, v, contiguous_strides(v));
  c.out_shape = {1, heads, 1, value_dim};
  c.lse_shape = {1, heads, 1};
  return c;
}

// Groups of 1 to 16 rows; widths that no lane count divides, and the widths of latent attention.
TEST_F(Decode, EqualsOracleOnAnyGroupAndWidth) {
  for (const int64_t group : {1, 2, 3, 4, 5, 7, 8, 16}) {
    for (const auto& [width, value_dim] :
         {std::pair{1, 1}, {3, 5}, {20, 33}, {64, 64}, {100, 0}, {128, 128}, {576, 512}}) {
      const RandomCase c = plain_case(group, 2, 75, width, value_dim);
      SCOPED_TRACE("group " + std::to_string(group) + ", widths " + std::to_string(width) + ", " +
                   std::to_string(value_dim));
      expect_equals_oracle(c, context_);
      if (HasFatalFailure()) return;
    }
  }
}

// More keys than caches hold: in WebAssembly the first row of a tile then reads from memory. The
// last tile of a width has a partial vector, or a single one.
TEST_F(Decode, EqualsOracleOnMoreThanCachesHold) {
  struct Extents {
    int64_t group, width, value_dim;
  };
  for (const auto& [group, width, value_dim] : {Extents{3, 132, 133}, {4, 133, 132}}) {
    const RandomCase c = plain_case(group, 1, 16421, width, value_dim);
    SCOPED_TRACE("group " + std::to_string(group));
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
}

// NaN in some keys and values: a result is NaN if and only if the oracle's is, and otherwise equals
// it.
TEST_F(Decode, NaNReachesOnlyTheRowsThatSeeIt) {
  for (uint64_t seed = 1000; seed < 1100; ++seed) {
    RandomCase c = decode_case(seed);
    if (c.k.shape.elements() == 0 || c.v.shape.elements() == 0) continue;
    if (rows_of(c) > cpu::kMostDecodeRows) continue;
    SCOPED_TRACE(c.description);
    Random random(seed);
    for (const ConstAnyTensor* tensor : {&c.k, &c.v}) {
      const int64_t poisoned = random.integer(0, 3);
      for (int64_t n = 0; n < poisoned; ++n) {
        const int64_t at = tensor->strides[0] * random.integer(0, tensor->shape[0] - 1) +
                           tensor->strides[1] * random.integer(0, tensor->shape[1] - 1) +
                           tensor->strides[2] * random.integer(0, tensor->shape[2] - 1) +
                           random.integer(0, tensor->shape[3] - 1);
        void* const data = const_cast<void*>(tensor->data);
        if (tensor->dtype == DType::kF32) {
          static_cast<float*>(data)[at] = kNaN;
        } else {
          static_cast<uint16_t*>(data)[at] = testing::half_bits(kNaN, tensor->dtype);
        }
      }
    }
    expect_equals_oracle(c, context_);
    if (HasFatalFailure()) return;
  }
}

// Enough keys for several KV splits, and enough work for several threads.
TEST_F(Decode, SameBitsWhateverTheThreadCount) {
  Context one(1), two(2), three(3);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    RandomCase c;
    const int64_t batch = random.integer(1, 4), kv_heads = random.integer(1, 3);
    const int64_t heads = kv_heads * random.integer(1, 5), keys = random.integer(3000, 6000);
    const Dims q{batch, heads, random.integer(1, 2), 64}, k{batch, kv_heads, keys, 64};
    c.q = stored(c, random.floats(q.elements()), DType::kF32, q, contiguous_strides(q));
    c.k = stored(c, random.floats(k.elements()), DType::kF32, k, contiguous_strides(k));
    c.v = stored(c, random.floats(k.elements()), DType::kF32, k, contiguous_strides(k));
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < batch; ++b) {
      lengths.push_back(static_cast<int32_t>(random.integer(0, random.chance(0.4) ? 600 : keys)));
    }
    if (random.chance(0.7)) c.options.kv_lengths = lengths;
    if (random.chance(0.5)) c.options.causal = Causal::bottom_right();
    c.out_shape = q;
    c.lse_shape = {batch, heads, q[2]};
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::on_every_target([&] {
      const DecodeResult alone = run(c, one);
      ASSERT_TRUE(same_bits(alone, run(c, two)));
      ASSERT_TRUE(same_bits(alone, run(c, three)));
    });
    expect_equals_oracle(c, three);
    if (HasFatalFailure()) return;
  }
}

// Rows of `width` after rounding to the cache's type.
std::vector<float> rounded(std::vector<float> values, int64_t width, Type type) {
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(width)) {
    const auto first = values.begin() + static_cast<int64_t>(row);
    float largest = 0;
    std::for_each(first, first + width, [&](float x) { largest = std::max(largest, std::abs(x)); });
    const float scale = largest / 127.0F;
    std::transform(first, first + width, first, [&](float x) {
      if (type == Type::kF16) return rules::to_float(rules::to_float16(x));
      if (type == Type::kBF16) return rules::to_float(rules::to_bfloat16(x));
      return type == Type::kInt8 ? scale * std::nearbyint(x * (127.0F / largest)) : x;
    });
  }
  return values;
}

// Long caches of every layout and type, with ends of pages and of a ring inside blocks.
TEST_F(Decode, LongCachesOfEveryFormatEqualTheOracle) {
  constexpr int64_t kTokens = 1301, kKvHeads = 3, kHeads = 12, kWidth = 40, kCapacity = 1100;
  const Dims kv{1, kKvHeads, kTokens, kWidth}, q_shape{1, kHeads, 2, kWidth};
  for (const Layout layout : {Layout::kContiguous, Layout::kRing, Layout::kPaged}) {
    for (const Type type : {Type::kF32, Type::kF16, Type::kBF16, Type::kInt8}) {
      SCOPED_TRACE("layout " + std::to_string(static_cast<int>(layout)) + ", type " +
                   std::to_string(static_cast<int>(type)));
      Random random(5);
      const std::vector<float> q = random.floats(q_shape.elements());
      const std::vector<float> k = random.floats(kv.elements()), v = random.floats(kv.elements());
      KVCache cache;
      ASSERT_TRUE(KVCache::create({.num_kv_heads = kKvHeads,
                                   .head_dim = kWidth,
                                   .value_dim = kWidth,
                                   .capacity = layout == Layout::kRing ? kCapacity : kTokens,
                                   .layout = layout,
                                   .type = type,
                                   .page_size = 24},
                                  cache)
                      .ok());
      ASSERT_TRUE(cache.append({k.data(), kv}, {v.data(), kv}).ok());
      const std::vector<float> kept_k = rounded(k, kWidth, type), kept_v = rounded(v, kWidth, type);
      const int64_t first = layout == Layout::kRing ? kTokens - kCapacity : 0;
      const Dims kept{1, kKvHeads, kTokens - first, kWidth};
      const auto part = [&](const std::vector<float>& rows) {
        return ConstTensor(rows.data() + first * kWidth, kept, contiguous_strides(kv));
      };
      const ReferenceOutputs expected =
          reference::attention(ConstTensor(q.data(), q_shape), part(kept_k), part(kept_v),
                               {.causal = Causal::bottom_right()});
      testing::on_every_target([&] {
        std::vector<float> out(q.size(), kNaN), lse(kHeads * 2, kNaN);
        ASSERT_TRUE(cache
                        .attend({q.data(), q_shape}, {.causal = Causal::bottom_right()},
                                {.out = {out.data(), q_shape}, .lse = {lse.data(), {1, kHeads, 2}}},
                                context_)
                        .ok());
        expect_near(out, expected.out, DType::kF32, 2e-6, "out");
        expect_near(lse, expected.lse, DType::kF32, 4e-6, "lse");
      });
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace multihead
