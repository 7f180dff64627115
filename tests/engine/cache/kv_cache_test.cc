// KVCache: every layout and type, compared with one-pass attention over the same rounded tokens.
#include "multihead/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rules/element.h"
#include "support/random_case.h"
#include "support/simd_targets.h"
#include "support/special_values.h"

// By default, the address sanitizer ends the program when an allocation fails.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
// LLVM's OpenMP library does not free its memory of threads that have ended.
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so\n"; }
#endif
#endif

namespace multihead {
namespace {

using testing::Random;
using Layout = KVCacheConfig::Layout;
using Type = KVCacheConfig::Type;

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kWidth = 20, kValueDim = 12;

// (B, H, N, d), contiguous.
struct Rows {
  Dims shape;
  std::vector<float> data;

  Rows(const Dims& shape_, std::vector<float> data_) : shape(shape_), data(std::move(data_)) {}
  Rows(Random& random, const Dims& shape_) : Rows(shape_, random.floats(shape_.elements())) {}

  ConstTensor view() const { return {data.data(), shape}; }
  // Returns positions first .. first + count - 1.
  ConstTensor part(int64_t first, int64_t count) const {
    return {data.data() + first * shape[3],
            {shape[0], shape[1], count, shape[3]},
            contiguous_strides(shape)};
  }
};

// Returns the rows rounded to the cache's type.
Rows rounded(Rows rows, Type type) {
  const auto width = static_cast<size_t>(rows.shape[3]);
  for (size_t row = 0; row < rows.data.size(); row += width) {
    float largest = 0;
    for (size_t c = row; c < row + width; ++c) largest = std::max(largest, std::abs(rows.data[c]));
    for (size_t c = row; c < row + width; ++c) {
      float& value = rows.data[c];
      if (type == Type::kF16) value = rules::to_float(rules::to_float16(value));
      if (type == Type::kBF16) value = rules::to_float(rules::to_bfloat16(value));
      if (type == Type::kInt8) {
        const float scale = largest / 127.0F;
        value = scale * std::nearbyint(value / scale);
      }
    }
  }
  return rows;
}

struct CachedResult {
  std::vector<float> out, lse;
  friend bool operator==(const CachedResult&, const CachedResult&) = default;
};

class CacheTest : public ::testing::Test {
 protected:
  static KVCacheConfig config(Layout layout, Type type, int64_t capacity) {
    return {.batch = kBatch,
            .num_kv_heads = kKvHeads,
            .head_dim = kWidth,
            .value_dim = kValueDim,
            .capacity = capacity,
            .layout = layout,
            .type = type,
            .page_size = 4};
  }

  static KVCache made(const KVCacheConfig& config) {
    KVCache cache;
    const Status status = KVCache::create(config, cache);
    EXPECT_TRUE(status.ok()) << status.message();
    return cache;
  }

  static void append(KVCache& cache, const ConstTensor& k, const ConstTensor& v,
                     std::span<const int32_t> counts = {}) {
    const Status status = cache.append(k, v, counts);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  CachedResult attend(const KVCache& cache, const ConstTensor& q, const AttentionOptions& options) {
    const Dims out_shape{q.shape[0], q.shape[1], q.shape[2], kValueDim};
    const Dims lse_shape{q.shape[0], q.shape[1], q.shape[2]};
    CachedResult result{std::vector<float>(static_cast<size_t>(out_shape.elements()), kNaN),
                        std::vector<float>(static_cast<size_t>(lse_shape.elements()), kNaN)};
    const Status status = cache.attend(
        q, options, {.out = {result.out.data(), out_shape}, .lse = {result.lse.data(), lse_shape}},
        context_);
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  CachedResult one_pass(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                        const AttentionOptions& options) {
    const Dims out_shape{q.shape[0], q.shape[1], q.shape[2], kValueDim};
    const Dims lse_shape{q.shape[0], q.shape[1], q.shape[2]};
    CachedResult result{std::vector<float>(static_cast<size_t>(out_shape.elements()), kNaN),
                        std::vector<float>(static_cast<size_t>(lse_shape.elements()), kNaN)};
    const Status status = attention(
        q, k, v, options,
        {.out = {result.out.data(), out_shape}, .lse = {result.lse.data(), lse_shape}}, context_);
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  }

  // Compares all rows of `got` with the rows of `whole` from `first` on, for each head.
  static void expect_rows(const CachedResult& got, const CachedResult& whole, int64_t first,
                          int64_t count, int64_t rows, const std::string& what) {
    for (int64_t head = 0; head < kBatch * kHeads; ++head) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t from = head * rows + first + i, to = head * count + i;
        ASSERT_NEAR(got.lse[static_cast<size_t>(to)], whole.lse[static_cast<size_t>(from)], 4e-6)
            << what << ", head " << head << ", row " << first + i;
        for (int64_t d = 0; d < kValueDim; ++d) {
          ASSERT_NEAR(got.out[static_cast<size_t>(to * kValueDim + d)],
                      whole.out[static_cast<size_t>(from * kValueDim + d)], 2e-6)
              << what << ", head " << head << ", row " << first + i;
        }
      }
    }
  }

  Context context_{2};
};

using Format = std::tuple<Layout, Type>;

class CacheOfEveryFormat : public CacheTest, public ::testing::WithParamInterface<Format> {
 protected:
  Layout layout() const { return std::get<0>(GetParam()); }
  Type type() const { return std::get<1>(GetParam()); }
};

// The cache's main use: appending and attending token by token equals attention over all tokens.
TEST_P(CacheOfEveryFormat, TokenByTokenEqualsOnePass) {
  constexpr int64_t kTokens = 37;
  for (const int64_t target : testing::simd_targets()) {
    const testing::UseSimdTarget use(target);
    SCOPED_TRACE(testing::simd_target_name(target));
    Random random(1);
    const Rows q(random, {kBatch, kHeads, kTokens, kWidth});
    const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
    const Rows v(random, {kBatch, kKvHeads, kTokens, kValueDim});
    const std::vector<float> sinks = random.floats(kHeads);
    for (const AttentionOptions& options : {AttentionOptions{.causal = Causal::bottom_right()},
                                            AttentionOptions{.causal = Causal::bottom_right(),
                                            .window = {9, -1},
                                            .softcap = 5.0F,
                                            .sinks = sinks}}) {
      const CachedResult whole =
          one_pass(q.view(), rounded(k, type()).view(), rounded(v, type()).view(), options);
      KVCache cache = made(config(layout(), type(), kTokens + 3));
      for (int64_t token = 0; token < kTokens; ++token) {
        append(cache, k.part(token, 1), v.part(token, 1));
        expect_rows(attend(cache, q.part(token, 1), options), whole, token, 1, kTokens, "token");
      }
      // Appends several tokens at a time.
      cache.clear();
      for (int64_t token = 0; token < kTokens;) {
        const int64_t count = std::min(random.integer(1, 7), kTokens - token);
        append(cache, k.part(token, count), v.part(token, count));
        expect_rows(attend(cache, q.part(token, count), options), whole, token, count, kTokens,
                    "chunk of " + std::to_string(count));
        token += count;
      }
    }
  }
}

// Values may be the first columns of the cached keys; with int8 they use the scale of the whole
// key.
TEST_P(CacheOfEveryFormat, KeysHoldTheValues) {
  constexpr int64_t kTokens = 19;
  for (const int64_t target : testing::simd_targets()) {
    const testing::UseSimdTarget use(target);
    SCOPED_TRACE(testing::simd_target_name(target));
    Random random(5);
    const Rows q(random, {kBatch, kHeads, kTokens, kWidth});
    const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
    const Rows kept = rounded(k, type());
    const ConstTensor v{
        kept.data.data(), {kBatch, kKvHeads, kTokens, kValueDim}, contiguous_strides(k.shape)};
    const AttentionOptions options{.causal = Causal::bottom_right()};
    const CachedResult whole = one_pass(q.view(), kept.view(), v, options);
    KVCacheConfig shared = config(layout(), type(), kTokens + 3);
    shared.values_in_keys = true;
    KVCache cache = made(shared);
    for (int64_t token = 0; token < kTokens;) {
      const int64_t count = std::min(random.integer(1, 4), kTokens - token);
      append(cache, k.part(token, count), {});
      expect_rows(attend(cache, q.part(token, count), options), whole, token, count, kTokens,
                  "chunk of " + std::to_string(count));
      token += count;
    }
    const KVCache with_values = made(config(layout(), type(), kTokens + 3));
    EXPECT_LT(cache.bytes(), with_values.bytes());
    EXPECT_EQ(cache.append(k.part(0, 1), k.part(0, 1)).argument(), "v");
  }
}

// Compares entries with different numbers of tokens with kv_lengths and bottom-right alignment.
TEST_P(CacheOfEveryFormat, EntriesOfDifferentLengths) {
  Random random(2);
  constexpr int64_t kTokens = 30, kQueries = 3;
  const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
  const Rows v(random, {kBatch, kKvHeads, kTokens, kValueDim});
  const Rows q(random, {kBatch, kHeads, kQueries, kWidth});
  KVCache cache = made(config(layout(), type(), kTokens));
  // Entry 0 takes 10 tokens, then 5; entry 1 takes none, then 7.
  append(cache, k.part(0, 10), v.part(0, 10), std::vector<int32_t>{10, 0});
  EXPECT_EQ(cache.length(1), 0);
  const AttentionOptions causal{.causal = Causal::bottom_right()};
  const CachedResult half_empty = attend(cache, q.view(), causal);
  const auto entry = static_cast<size_t>(kHeads * kQueries);
  EXPECT_EQ(half_empty.lse[entry], -INFINITY);
  EXPECT_EQ(half_empty.out[entry * kValueDim], 0.0F);
  append(cache, k.part(10, 9), v.part(10, 9), std::vector<int32_t>{5, 7});
  EXPECT_EQ(cache.length(0), 15);
  EXPECT_EQ(cache.length(1), 7);

  // Tensors of the same tokens for one call, with entry 1 padded.
  Rows whole_k = rounded(k, type()), whole_v = rounded(v, type());
  for (Rows* rows : {&whole_k, &whole_v}) {
    const int64_t of_entry = kKvHeads * kTokens * rows->shape[3];
    for (int64_t h = 0; h < kKvHeads; ++h) {
      const auto head = rows->data.begin() + of_entry + h * kTokens * rows->shape[3];
      std::copy_n(head + 10 * rows->shape[3], 7 * rows->shape[3], head);
    }
  }
  const std::vector<int32_t> lengths{15, 7};
  const CachedResult expected =
      one_pass(q.view(), whole_k.part(0, 15), whole_v.part(0, 15),
               {.causal = Causal::bottom_right_of_length(), .kv_lengths = lengths});
  expect_rows(attend(cache, q.view(), causal), expected, 0, kQueries, kQueries, "causal");
  const CachedResult all =
      one_pass(q.view(), whole_k.part(0, 15), whole_v.part(0, 15), {.kv_lengths = lengths});
  expect_rows(attend(cache, q.view(), {}), all, 0, kQueries, kQueries, "everything");
  // A window without causal order uses the same positions.
  const CachedResult windowed =
      one_pass(q.view(), whole_k.part(0, 15), whole_v.part(0, 15),
               {.window = {4, 0, Alignment::kBottomRightOfLength}, .kv_lengths = lengths});
  expect_rows(attend(cache, q.view(), {.window = {4, 0}}), windowed, 0, kQueries, kQueries,
              "window");
}

// Masks, biases, slopes, weights and captures have N_k = the longest length.
TEST_P(CacheOfEveryFormat, OptionsAndOutputsOverTheKeptTokens) {
  Random random(3);
  constexpr int64_t kTokens = 11;
  const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
  const Rows v(random, {kBatch, kKvHeads, kTokens, kValueDim});
  const Rows q(random, {kBatch, kHeads, 2, kWidth});
  KVCache cache = made(config(layout(), type(), 16));
  append(cache, k.view(), v.view());
  const std::vector<uint8_t> mask{1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1};
  const std::vector<float> bias = random.floats(kHeads * kTokens);
  std::vector<float> slopes(kHeads);
  alibi_slopes(slopes);
  const AttentionOptions options{.causal = Causal::bottom_right(),
                                 .mask = {mask.data(), {1, kTokens}},
                                 .bias = {bias.data(), {1, kHeads, 1, kTokens}},
                                 .alibi_slopes = slopes,
                                 .dropout = {.probability = 0.5F, .seed = 5}};
  const Dims out_shape{kBatch, kHeads, 2, kValueDim}, scores{kBatch, kHeads, 2, kTokens};
  struct Outputs {
    std::vector<float> out, weights, masked;
  };
  const auto run = [&](const auto& call) {
    Outputs result;
    result.out.assign(static_cast<size_t>(out_shape.elements()), kNaN);
    result.weights.assign(static_cast<size_t>(scores.elements()), kNaN);
    result.masked = result.weights;
    const std::vector<ScoreCapture> captures{
        {.stage = ScoreStage::kMasked, .out = {result.masked.data(), scores}}};
    const Status status = call(AttentionOutputs{.out = {result.out.data(), out_shape},
                                                .weights = {result.weights.data(), scores},
                                                .captures = captures});
    EXPECT_TRUE(status.ok()) << status.message();
    return result;
  };
  const Rows kept_k = rounded(k, type()), kept_v = rounded(v, type());
  const Outputs expected = run([&](const AttentionOutputs& outputs) {
    return attention(q.view(), kept_k.view(), kept_v.view(), options, outputs, context_);
  });
  const Outputs got = run([&](const AttentionOutputs& outputs) {
    return cache.attend(q.view(), options, outputs, context_);
  });
  for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], expected.out[i], 4e-6);
  for (size_t i = 0; i < got.weights.size(); ++i) {
    ASSERT_NEAR(got.weights[i], expected.weights[i], 2e-6);
    if (got.masked[i] == expected.masked[i]) continue;
    ASSERT_NEAR(got.masked[i], expected.masked[i], 4e-6);
  }
}

// A cache that was truncated and then got other tokens gives the bits of a fresh cache with those
// tokens.
TEST_P(CacheOfEveryFormat, TruncatedEqualsFresh) {
  Random random(4);
  const Rows k(random, {kBatch, kKvHeads, 20, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 20, kValueDim});
  const Rows other_k(random, {kBatch, kKvHeads, 9, kWidth});
  const Rows other_v(random, {kBatch, kKvHeads, 9, kValueDim});
  const Rows q(random, {kBatch, kHeads, 2, kWidth});
  KVCache cache = made(config(layout(), type(), 24));
  append(cache, k.view(), v.view());
  ASSERT_TRUE(cache.truncate(0, 13).ok());
  ASSERT_TRUE(cache.truncate(1, 6).ok());
  EXPECT_EQ(cache.length(0), 13);
  EXPECT_EQ(cache.length(1), 6);
  KVCache fresh = made(config(layout(), type(), 24));
  append(fresh, k.part(0, 13), v.part(0, 13), std::vector<int32_t>{13, 6});
  const AttentionOptions options{.causal = Causal::bottom_right()};
  EXPECT_EQ(attend(cache, q.view(), options), attend(fresh, q.view(), options));
  for (KVCache* each : {&cache, &fresh}) append(*each, other_k.view(), other_v.view());
  EXPECT_EQ(attend(cache, q.view(), options), attend(fresh, q.view(), options));

  cache.clear();
  EXPECT_EQ(cache.length(0), 0);
  append(cache, other_k.view(), other_v.view());
  fresh = made(config(layout(), type(), 24));
  append(fresh, other_k.view(), other_v.view());
  EXPECT_EQ(attend(cache, q.view(), options), attend(fresh, q.view(), options));
}

// Truncated tokens, and memory beyond an entry's length, must stay hidden.
TEST_P(CacheOfEveryFormat, TruncatedTokensNeverLeak) {
  Random random(14);
  const Rows k(random, {kBatch, kKvHeads, 11, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 11, kValueDim});
  Rows bad_k = k, bad_v = v;
  std::fill(bad_k.data.begin(), bad_k.data.end(), kNaN);
  std::fill(bad_v.data.begin(), bad_v.data.end(), std::numeric_limits<float>::infinity());
  const Rows q(random, {kBatch, kHeads, 2, kWidth});
  const std::vector<int32_t> lengths{11, 3};
  KVCache fresh = made(config(layout(), type(), 24));
  append(fresh, k.view(), v.view(), lengths);
  KVCache cache = made(config(layout(), type(), 24));
  append(cache, bad_k.view(), bad_v.view());
  append(cache, bad_k.view(), bad_v.view());
  for (const int64_t b : {0, 1}) ASSERT_TRUE(cache.truncate(b, 0).ok());
  append(cache, k.view(), v.view(), lengths);
  const AttentionOptions options{.causal = Causal::bottom_right()};
  const CachedResult got = attend(cache, q.view(), options);
  const CachedResult expected = attend(fresh, q.view(), options);
  EXPECT_EQ(got.lse, expected.lse);
  for (size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], expected.out[i], 2e-6);
}

TEST_P(CacheOfEveryFormat, EmptyCacheSeesNothing) {
  Random random(5);
  const Rows q(random, {kBatch, kHeads, 2, kWidth});
  const KVCache cache = made(config(layout(), type(), 8));
  const CachedResult got = attend(cache, q.view(), {});
  EXPECT_EQ(got.out, std::vector<float>(got.out.size(), 0.0F));
  EXPECT_EQ(got.lse, std::vector<float>(got.lse.size(), -INFINITY));
}

// f16 and bf16 tokens are cached unchanged.
TEST_P(CacheOfEveryFormat, TakesHalfPrecisionTokens) {
  Random random(6);
  const Rows k(random, {kBatch, kKvHeads, 5, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 5, kValueDim});
  const Rows q(random, {kBatch, kHeads, 1, kWidth});
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Type as = dtype == DType::kF16 ? Type::kF16 : Type::kBF16;
    testing::RandomCase storage;
    KVCache from_half = made(config(layout(), type(), 8));
    const Status status =
        from_half.append(stored(storage, k.data, dtype, k.shape, contiguous_strides(k.shape)),
                         stored(storage, v.data, dtype, v.shape, contiguous_strides(v.shape)));
    ASSERT_TRUE(status.ok()) << status.message();
    KVCache from_float = made(config(layout(), type(), 8));
    append(from_float, rounded(k, as).view(), rounded(v, as).view());
    EXPECT_EQ(attend(from_half, q.view(), {}), attend(from_float, q.view(), {}));
  }
}

std::string format_name(const ::testing::TestParamInfo<Format>& info) {
  const char* const layouts[] = {"Contiguous", "Ring", "Paged"};
  const char* const types[] = {"F32", "F16", "BF16", "Int8"};
  return std::string(layouts[static_cast<size_t>(std::get<0>(info.param))]) +
         types[static_cast<size_t>(std::get<1>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CacheOfEveryFormat,
    ::testing::Combine(::testing::Values(Layout::kContiguous, Layout::kRing, Layout::kPaged),
                       ::testing::Values(Type::kF32, Type::kF16, Type::kBF16, Type::kInt8)),
    format_name);

class CacheRing : public CacheTest, public ::testing::WithParamInterface<Type> {};

// A ring whose capacity equals the window gives the results of the whole sequence.
TEST_P(CacheRing, DecodesAWindowForever) {
  constexpr int64_t kTokens = 75, kCapacity = 16;
  Random random(7);
  const Rows q(random, {kBatch, kHeads, kTokens, kWidth});
  const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
  const Rows v(random, {kBatch, kKvHeads, kTokens, kValueDim});
  const Rows kept_k = rounded(k, GetParam()), kept_v = rounded(v, GetParam());
  for (const int64_t left : {kCapacity - 1, int64_t{6}}) {
    const AttentionOptions options{.causal = Causal::bottom_right(), .window = {left, -1}};
    const CachedResult whole = one_pass(q.view(), kept_k.view(), kept_v.view(), options);
    KVCache cache = made(config(Layout::kRing, GetParam(), kCapacity));
    const int64_t bytes = cache.bytes();
    for (int64_t token = 0; token < kTokens; ++token) {
      append(cache, k.part(token, 1), v.part(token, 1));
      EXPECT_EQ(cache.length(0), token + 1);
      EXPECT_EQ(cache.first_kept(0), std::max<int64_t>(0, token + 1 - kCapacity));
      expect_rows(attend(cache, q.part(token, 1), options), whole, token, 1, kTokens, "token");
      // Overwritten tokens are hidden even without a window.
      if (left != kCapacity - 1) continue;
      expect_rows(attend(cache, q.part(token, 1), {.causal = Causal::bottom_right()}), whole, token,
                  1, kTokens, "no window");
    }
    EXPECT_EQ(cache.bytes(), bytes);
  }
}

// If more tokens are appended than fit, the newest tokens stay.
TEST_P(CacheRing, KeepsTheNewest) {
  Random random(8);
  const Rows k(random, {kBatch, kKvHeads, 50, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 50, kValueDim});
  const Rows q(random, {kBatch, kHeads, 1, kWidth});
  KVCache at_once = made(config(Layout::kRing, GetParam(), 16));
  append(at_once, k.view(), v.view());
  KVCache one_by_one = made(config(Layout::kRing, GetParam(), 16));
  for (int64_t token = 0; token < 50; ++token) {
    append(one_by_one, k.part(token, 1), v.part(token, 1));
  }
  EXPECT_EQ(at_once.first_kept(1), 34);
  EXPECT_EQ(attend(at_once, q.view(), {}), attend(one_by_one, q.view(), {}));
}

// Chunks give what one pass gives, or are refused: no row loses keys of its window.
TEST_P(CacheRing, RefusesAWindowThatReachesBackToOverwrittenTokens) {
  constexpr int64_t kTokens = 40, kLeft = 7;
  Random random(17);
  const Rows q(random, {kBatch, kHeads, kTokens, kWidth});
  const Rows k(random, {kBatch, kKvHeads, kTokens, kWidth});
  const Rows v(random, {kBatch, kKvHeads, kTokens, kValueDim});
  const Rows kept_k = rounded(k, GetParam()), kept_v = rounded(v, GetParam());
  const AttentionOptions options{.causal = Causal::bottom_right(), .window = {kLeft, -1}};
  const CachedResult whole = one_pass(q.view(), kept_k.view(), kept_v.view(), options);
  int64_t refused = 0;
  for (int64_t round = 0; round < 40; ++round) {
    const int64_t capacity = random.integer(1, 16);
    KVCache cache = made(config(Layout::kRing, GetParam(), capacity));
    for (int64_t token = 0; token < kTokens;) {
      const int64_t count = random.integer(1, std::min<int64_t>(kTokens - token, 12));
      append(cache, k.part(token, count), v.part(token, count));
      // Only the newest of the tokens attend in some calls.
      const int64_t queries = random.chance(0.5) ? count : random.integer(1, count);
      const int64_t first = token + count - queries;
      token += count;
      if (token <= capacity || queries <= capacity - kLeft) {
        expect_rows(attend(cache, q.part(first, queries), options), whole, first, queries, kTokens,
                    "capacity " + std::to_string(capacity));
        continue;
      }
      ++refused;
      const Dims shape{kBatch, kHeads, queries, kValueDim};
      std::vector<float> out(static_cast<size_t>(shape.elements()), 42.0F);
      const Status status =
          cache.attend(q.part(first, queries), options, {.out = {out.data(), shape}}, context_);
      ASSERT_EQ(status.code(), StatusCode::kOption);
      EXPECT_EQ(status.argument(), "q");
      EXPECT_EQ(status.expected(), "at most " +
                                       std::to_string(std::max<int64_t>(0, capacity - kLeft)) +
                                       " tokens at once in a ring of " + std::to_string(capacity) +
                                       " with window.left = 7");
      EXPECT_EQ(status.got(), std::to_string(queries));
      EXPECT_EQ(out, std::vector<float>(out.size(), 42.0F));
    }
  }
  EXPECT_GT(refused, 100);
}

// After a truncation, the tokens that the newer ones had overwritten are missing.
TEST_P(CacheRing, RefusesAWindowThatReachesBackIntoAGap) {
  Random random(18);
  const Rows k(random, {kBatch, kKvHeads, 20, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 20, kValueDim});
  const Rows q(random, {kBatch, kHeads, 1, kWidth});
  KVCache cache = made(config(Layout::kRing, GetParam(), 8));
  append(cache, k.view(), v.view());
  ASSERT_TRUE(cache.truncate(1, 15).ok());
  const Dims shape{kBatch, kHeads, 1, kValueDim};
  std::vector<float> out(static_cast<size_t>(shape.elements()));
  const auto window = [&](int64_t left) {
    return cache.attend(q.view(), {.causal = Causal::bottom_right(), .window = {left, 0}},
                        {.out = {out.data(), shape}}, context_);
  };
  EXPECT_TRUE(window(2).ok());
  EXPECT_EQ(window(3).message(),
            "q: expected a window of tokens from 12 on, which the ring keeps, got a window from "
            "token 11 on");
  EXPECT_FALSE(window(std::numeric_limits<int64_t>::max()).ok());
  EXPECT_TRUE(window(-1).ok());
  ASSERT_TRUE(cache.truncate(1, 0).ok());
  append(cache, k.part(0, 1), v.part(0, 1), std::vector<int32_t>{0, 1});
  EXPECT_TRUE(window(7).ok());
}

TEST_P(CacheRing, TruncationLeavesAGap) {
  constexpr int64_t kCapacity = 8;
  Random random(9);
  const Rows k(random, {kBatch, kKvHeads, 20, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 20, kValueDim});
  const Rows q(random, {kBatch, kHeads, 1, kWidth});
  const Rows kept_k = rounded(k, GetParam()), kept_v = rounded(v, GetParam());
  KVCache cache = made(config(Layout::kRing, GetParam(), kCapacity));
  append(cache, k.part(0, 10), v.part(0, 10));
  EXPECT_EQ(cache.first_kept(0), 2);
  for (const int64_t b : {0, 1}) ASSERT_TRUE(cache.truncate(b, 6).ok());
  // Tokens 2 to 5 are left, because 8 and 9 had overwritten 0 and 1.
  EXPECT_EQ(cache.first_kept(0), 2);
  const auto expect_tokens = [&](int64_t first, int64_t end, const char* what) {
    const CachedResult expected =
        one_pass(q.view(), kept_k.part(first, end - first), kept_v.part(first, end - first), {});
    expect_rows(attend(cache, q.view(), {}), expected, 0, 1, 1, what);
  };
  expect_tokens(2, 6, "truncated");
  append(cache, k.part(6, 3), v.part(6, 3));
  EXPECT_EQ(cache.first_kept(0), 2);
  expect_tokens(2, 9, "appended");
  append(cache, k.part(9, 4), v.part(9, 4));
  EXPECT_EQ(cache.first_kept(0), 5);
  expect_tokens(5, 13, "round");
  // Truncation to a length before the first kept token leaves nothing; only new tokens are seen.
  for (const int64_t b : {0, 1}) ASSERT_TRUE(cache.truncate(b, 3).ok());
  EXPECT_EQ(attend(cache, q.view(), {}).lse[0], -INFINITY);
  append(cache, k.part(3, 2), v.part(3, 2));
  expect_tokens(3, 5, "after the gap");
}

INSTANTIATE_TEST_SUITE_P(Types, CacheRing,
                         ::testing::Values(Type::kF32, Type::kF16, Type::kBF16, Type::kInt8));

TEST_F(CacheTest, PagesComeFromOnePoolAndGoBack) {
  Random random(10);
  const Rows k(random, {kBatch, kKvHeads, 12, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 12, kValueDim});
  KVCacheConfig paged = config(Layout::kPaged, Type::kF32, 12);
  paged.pages = 4;
  KVCache cache = made(paged);
  const auto used = [&] {
    std::set<int32_t> pages;
    int64_t count = 0;
    for (const int32_t page : cache.page_table()) {
      if (page < 0) continue;
      EXPECT_LT(page, 4);
      pages.insert(page);
      ++count;
    }
    EXPECT_EQ(static_cast<int64_t>(pages.size()), count) << "a page in two places";
    return count;
  };
  EXPECT_EQ(cache.page_table().size(), 6U);
  EXPECT_EQ(used(), 0);
  append(cache, k.view(), v.view(), std::vector<int32_t>{9, 1});
  EXPECT_EQ(used(), 4);
  // Both entries fill their pages; the cache has no fifth page.
  append(cache, k.view(), v.view(), std::vector<int32_t>{3, 3});
  EXPECT_EQ(used(), 4);
  EXPECT_EQ(cache.append(k.view(), v.view(), std::vector<int32_t>{0, 1}).code(),
            StatusCode::kOption);
  ASSERT_TRUE(cache.truncate(0, 4).ok());
  EXPECT_EQ(used(), 2);
  append(cache, k.view(), v.view(), std::vector<int32_t>{0, 8});
  EXPECT_EQ(used(), 4);
  cache.clear();
  EXPECT_EQ(used(), 0);
}

TEST_F(CacheTest, BytesFollowTheType) {
  const auto bytes = [&](Type type) { return made(config(Layout::kContiguous, type, 64)).bytes(); };
  const int64_t numbers = kBatch * kKvHeads * 64 * (kWidth + kValueDim);
  EXPECT_GE(bytes(Type::kF32), 4 * numbers);
  EXPECT_LT(bytes(Type::kF32), 4 * numbers + 256);
  EXPECT_LT(bytes(Type::kF16), 2 * numbers + 256);
  EXPECT_EQ(bytes(Type::kF16), bytes(Type::kBF16));
  // int8 adds two scales per token and head.
  EXPECT_LT(bytes(Type::kInt8), numbers + kBatch * kKvHeads * 64 * 8 + 256);
}

// Difficult rows for int8: zeros, and one large number.
TEST_F(CacheTest, Int8OfZerosAndOfOneLargeNumber) {
  std::vector<float> k(kBatch * kKvHeads * kWidth), v(kBatch * kKvHeads * kValueDim);
  v[0] = -1000.0F;
  v[1] = 1000.0F;
  v[2] = 3.0F;
  KVCache cache = made(config(Layout::kContiguous, Type::kInt8, 4));
  append(cache, {k.data(), {kBatch, kKvHeads, 1, kWidth}},
         {v.data(), {kBatch, kKvHeads, 1, kValueDim}});
  Random random(11);
  const Rows q(random, {kBatch, kHeads, 1, kWidth});
  const CachedResult got = attend(cache, q.view(), {});
  EXPECT_FLOAT_EQ(got.out[0], -1000.0F);
  EXPECT_FLOAT_EQ(got.out[1], 1000.0F);
  EXPECT_EQ(got.out[2], 0.0F);  // less than half a step of 1000 / 127
  EXPECT_EQ(got.out[2 * kValueDim], 0.0F);
}

// Integers cannot represent NaN: wherever it stands in a row, the whole row becomes NaN.
TEST_F(CacheTest, Int8OfARowWithNaN) {
  for (size_t place = 0; place < kValueDim; ++place) {
    std::vector<float> k(kBatch * kKvHeads * kWidth), v(kBatch * kKvHeads * kValueDim, 2.0F);
    v[place] = kNaN;
    KVCache cache = made(config(Layout::kContiguous, Type::kInt8, 4));
    append(cache, {k.data(), {kBatch, kKvHeads, 1, kWidth}},
           {v.data(), {kBatch, kKvHeads, 1, kValueDim}});
    Random random(11);
    const Rows q(random, {kBatch, kHeads, 1, kWidth});
    const CachedResult got = attend(cache, q.view(), {});
    for (size_t c = 0; c < kValueDim; ++c) EXPECT_TRUE(std::isnan(got.out[c])) << place;
  }
}

// If the largest element is below 3.7e-37, 127 / largest exceeds float's range; below 1.5e-36 the
// scale is subnormal.
TEST_F(CacheTest, Int8OfRowsOfTinyNumbers) {
  constexpr float kLeast = std::numeric_limits<float>::denorm_min();
  for (const float largest : {1e-30F, 3.8e-37F, 3.7e-37F, 1e-38F, 1000 * kLeast, kLeast}) {
    std::vector<float> k(kBatch * kKvHeads * kWidth), v(kBatch * kKvHeads * kValueDim);
    v[0] = -largest;
    v[1] = largest;
    v[2] = largest / 2;
    KVCache cache = made(config(Layout::kContiguous, Type::kInt8, 4));
    append(cache, {k.data(), {kBatch, kKvHeads, 1, kWidth}},
           {v.data(), {kBatch, kKvHeads, 1, kValueDim}});
    Random random(11);
    const Rows q(random, {kBatch, kHeads, 1, kWidth});
    const CachedResult got = attend(cache, q.view(), {});
    // Half a step of the row, plus half the least float for each of 127 steps.
    const float allowed = largest / 127 + 64 * kLeast;
    for (size_t c = 0; c < kValueDim; ++c) EXPECT_NEAR(got.out[c], v[c], allowed) << largest;
    EXPECT_EQ(got.out[3], 0.0F) << largest;
  }
}

TEST_F(CacheTest, NumbersBeyondTheRangeOfTheTypeAreInfinite) {
  constexpr float kMost = std::numeric_limits<float>::max(), kInfinite = HUGE_VALF;
  const struct {
    Type type;
    float finite, becomes, infinite;
  } of[] = {{Type::kF16, 65519.0F, 65504.0F, 65520.0F},
            {Type::kBF16, 0x1.fep127F, 0x1.fep127F, kMost},
            {Type::kInt8, 0x1p127F, 0x1p127F, kInfinite}};
  for (const auto& [type, finite, becomes, infinite] : of) {
    for (const float value : {finite, infinite}) {
      std::vector<float> k(kBatch * kKvHeads * kWidth), v(kBatch * kKvHeads * kValueDim);
      v[0] = value;
      KVCache cache = made(config(Layout::kContiguous, type, 4));
      append(cache, {k.data(), {kBatch, kKvHeads, 1, kWidth}},
             {v.data(), {kBatch, kKvHeads, 1, kValueDim}});
      Random random(11);
      const Rows q(random, {kBatch, kHeads, 1, kWidth});
      const CachedResult got = attend(cache, q.view(), {});
      if (value == finite) {
        EXPECT_FLOAT_EQ(got.out[0], becomes) << name_of(type);
      } else {
        EXPECT_EQ(got.out[0], kInfinite) << name_of(type);
      }
    }
  }
}

TEST_F(CacheTest, CreateRefuses) {
  const auto argument = [&](const std::function<void(KVCacheConfig&)>& change) {
    KVCacheConfig wrong = config(Layout::kPaged, Type::kF32, 8);
    change(wrong);
    KVCache cache = made(config(Layout::kRing, Type::kF16, 8));
    const Status status = KVCache::create(wrong, cache);
    EXPECT_EQ(status.code(), StatusCode::kOption) << status.message();
    EXPECT_EQ(cache.config().layout, Layout::kRing) << "the cache changed";
    return status.argument();
  };
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.batch = 0; }), "batch");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.num_kv_heads = -1; }), "num_kv_heads");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.head_dim = -1; }), "head_dim");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.value_dim = -2; }), "value_dim");
  // The default config is invalid: a forgotten width gives an error, not a cache without elements.
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.head_dim = 0; }), "head_dim");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.value_dim = 0; }), "value_dim");
  EXPECT_EQ(argument([](KVCacheConfig& c) {
              c.values_in_keys = true;
              c.value_dim = 0;
            }),
            "value_dim");
  EXPECT_EQ(argument([](KVCacheConfig& c) {
              c.values_in_keys = true;
              c.value_dim = kWidth + 1;
            }),
            "value_dim");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.capacity = 0; }), "capacity");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.capacity = int64_t{1} << 40; }), "capacity");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.page_size = 0; }), "page_size");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.pages = -1; }), "pages");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.layout = static_cast<Layout>(3); }), "layout");
  EXPECT_EQ(argument([](KVCacheConfig& c) { c.type = static_cast<Type>(4); }), "type");
}

TEST_F(CacheTest, MovedFromHasNothing) {
  KVCache cache = made(config(Layout::kPaged, Type::kF32, 8));
  const KVCache other = std::move(cache);
  EXPECT_EQ(other.config().batch, kBatch);
  // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  EXPECT_EQ(cache.config().batch, 0);
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_TRUE(cache.page_table().empty());
  cache.clear();
}

// A window may repeat the alignment of the causal order.
TEST_F(CacheTest, WindowsMayStateTheCausalAlignment) {
  Random random(21);
  const Rows q(random, {kBatch, kHeads, 2, kWidth}), k(random, {kBatch, kKvHeads, 12, kWidth});
  const Rows v(random, {kBatch, kKvHeads, 12, kValueDim});
  KVCache cache = made(config(Layout::kContiguous, Type::kF32, 12));
  append(cache, k.view(), v.view(), std::vector<int32_t>{12, 7});
  const CachedResult expected =
      attend(cache, q.view(), {.causal = Causal::bottom_right(), .window = {.left = 2}});
  EXPECT_EQ(attend(cache, q.view(),
                   {.causal = Causal::bottom_right(), .window = {2, -1, Alignment::kBottomRight}}),
            expected);
  EXPECT_EQ(attend(cache, q.view(), {.window = {2, 0, Alignment::kBottomRight}}), expected);
}

// create() returns a Status, not an exception, if the cache is larger than memory.
TEST_F(CacheTest, CreateBeyondMemory) {
  KVCache cache;
  KVCacheConfig huge = config(Layout::kContiguous, Type::kF32, 2147483647);
  huge.head_dim = huge.batch = 2147483647;
  EXPECT_EQ(KVCache::create(huge, cache).code(), StatusCode::kMemory);
}

// Every error leaves lengths, size and results unchanged, and writes nothing.
class RefusedByCache : public CacheTest, public ::testing::WithParamInterface<Layout> {
 protected:
  void SetUp() override {
    KVCacheConfig c = config(GetParam(), Type::kF32, 12);
    c.pages = GetParam() == Layout::kPaged ? 5 : 0;
    cache_ = made(c);
    append(cache_, k_.part(0, 9), v_.part(0, 9), std::vector<int32_t>{9, 5});
    before_ = attend(cache_, q_.view(), {});
  }

  void expect_unchanged() {
    EXPECT_EQ(cache_.length(0), 9);
    EXPECT_EQ(cache_.length(1), 5);
    EXPECT_EQ(attend(cache_, q_.view(), {}), before_);
  }

  void expect_refused(const Status& status, StatusCode code, const std::string& argument) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(status.argument(), argument) << status.message();
    expect_unchanged();
  }

  void expect_attend_refused(const AttentionOptions& options, StatusCode code,
                             const std::string& argument) {
    std::vector<float> out(static_cast<size_t>(kBatch * kHeads * 2 * kValueDim), 42.0F);
    const Status status = cache_.attend(
        q_.view(), options, {.out = {out.data(), {kBatch, kHeads, 2, kValueDim}}}, context_);
    expect_refused(status, code, argument);
    EXPECT_EQ(out, std::vector<float>(out.size(), 42.0F));
  }

  Random random_{12};
  Rows q_{random_, {kBatch, kHeads, 2, kWidth}};
  Rows k_{random_, {kBatch, kKvHeads, 20, kWidth}};
  Rows v_{random_, {kBatch, kKvHeads, 20, kValueDim}};
  KVCache cache_;
  CachedResult before_;
};

TEST_P(RefusedByCache, AppendsThatDoNotFit) {
  const ConstTensor k = k_.part(0, 3), v = v_.part(0, 3);
  expect_refused(cache_.append(v, v), StatusCode::kShape, "k");
  expect_refused(cache_.append(k, k), StatusCode::kShape, "v");
  expect_refused(cache_.append(k, v_.part(0, 2)), StatusCode::kShape, "v");
  expect_refused(cache_.append({k_.data.data(), {1, kKvHeads, 3, kWidth}}, v), StatusCode::kShape,
                 "k");
  expect_refused(cache_.append({k_.data.data(), {3, kWidth}}, v), StatusCode::kShape, "k");
  expect_refused(cache_.append({nullptr, k.shape}, v), StatusCode::kShape, "k");
  expect_refused(cache_.append(k, v, std::vector<int32_t>{1}), StatusCode::kShape, "counts");
  expect_refused(cache_.append(k, v, std::vector<int32_t>{1, 4}), StatusCode::kOption, "counts");
  expect_refused(cache_.append(k, v, std::vector<int32_t>{-1, 1}), StatusCode::kOption, "counts");
}

// A ring is never full.
class RefusedByFullCache : public RefusedByCache {};

INSTANTIATE_TEST_SUITE_P(Layouts, RefusedByFullCache,
                         ::testing::Values(Layout::kContiguous, Layout::kPaged));

TEST_P(RefusedByFullCache, Appends) {
  // Entry 0 has room for 3 tokens, entry 1 for 7.
  expect_refused(cache_.append(k_.part(0, 4), v_.part(0, 4)), StatusCode::kOption, "k");
  expect_refused(cache_.append(k_.part(0, 8), v_.part(0, 8), std::vector<int32_t>{0, 8}),
                 StatusCode::kOption, "k");
  // Entry 0 has three pages and entry 1 has two; the cache has five pages of four tokens.
  if (GetParam() != Layout::kPaged) return;
  expect_refused(cache_.append(k_.part(0, 4), v_.part(0, 4), std::vector<int32_t>{3, 4}),
                 StatusCode::kOption, "k");
}

TEST_P(RefusedByCache, ElementTypesThatThereAreNot) {
  ConstAnyTensor k = k_.part(0, 1), v = v_.part(0, 1);
  k.dtype = static_cast<DType>(9);
  expect_refused(cache_.append(k, v), StatusCode::kShape, "k");
  k.dtype = DType::kF32;
  v.dtype = static_cast<DType>(3);
  expect_refused(cache_.append(k, v), StatusCode::kShape, "v");
}

TEST_P(RefusedByCache, Truncations) {
  expect_refused(cache_.truncate(-1, 0), StatusCode::kOption, "batch");
  expect_refused(cache_.truncate(kBatch, 0), StatusCode::kOption, "batch");
  expect_refused(cache_.truncate(0, -1), StatusCode::kOption, "length");
  expect_refused(cache_.truncate(0, 10), StatusCode::kOption, "length");
  expect_refused(cache_.truncate(1, 6), StatusCode::kOption, "length");
}

TEST_P(RefusedByCache, OptionsOfAttend) {
  const std::vector<int32_t> lengths{3, 3};
  const std::vector<float> sinks{1, 2, 3};
  expect_attend_refused({.causal = Causal::top_left()}, StatusCode::kOption, "causal");
  expect_attend_refused({.causal = Causal::at_offset(1)}, StatusCode::kOption, "causal");
  expect_attend_refused({.kv_lengths = lengths}, StatusCode::kOption, "kv_lengths");
  expect_attend_refused({.rope = {.style = Rope::Style::kHalf}}, StatusCode::kOption, "rope");
  expect_attend_refused({.qk_norm = {.enabled = true}}, StatusCode::kOption, "qk_norm");
  expect_attend_refused({.window = {2, 2, Alignment::kTopLeft}}, StatusCode::kOption,
                        "window.alignment");
  expect_attend_refused({.window = {-2, 2}}, StatusCode::kOption, "window.left");
  expect_attend_refused({.sinks = sinks}, StatusCode::kShape, "sinks");
  expect_attend_refused({.dropout = {.probability = 1.0F}}, StatusCode::kOption,
                        "dropout.probability");
  expect_attend_refused({.scale = kNaN}, StatusCode::kOption, "scale");
}

TEST_P(RefusedByCache, ShapesOfAttend) {
  std::vector<float> out(static_cast<size_t>(kBatch * kHeads * 2 * kValueDim), 42.0F);
  const AttentionOutputs outputs{.out = {out.data(), {kBatch, kHeads, 2, kValueDim}}};
  const auto attend_to = [&](const ConstTensor& q, const AttentionOutputs& to) {
    return cache_.attend(q, {}, to, context_);
  };
  const float* const data = q_.data.data();
  expect_refused(attend_to({data, {kHeads, 2, kWidth}}, outputs), StatusCode::kShape, "q");
  // The message of a key that does not fit names the query's extents.
  EXPECT_FALSE(attend_to({data, {kBatch, kHeads, 2, kWidth - 1}}, outputs).ok());
  EXPECT_FALSE(attend_to({data, {1, kHeads, 2, kWidth}}, outputs).ok());
  EXPECT_FALSE(attend_to({data, {kBatch, 3, 2, kWidth}}, outputs).ok());
  expect_refused(attend_to(q_.view(), {.out = {out.data(), {kBatch, kHeads, 1, kValueDim}}}),
                 StatusCode::kShape, "out");
  expect_refused(attend_to(q_.view(), {}), StatusCode::kShape, "out");
  EXPECT_EQ(out, std::vector<float>(out.size(), 42.0F));
}

INSTANTIATE_TEST_SUITE_P(Layouts, RefusedByCache,
                         ::testing::Values(Layout::kContiguous, Layout::kRing, Layout::kPaged));

TEST_F(CacheTest, EntriesThatThereAreNotHaveNoTokens) {
  KVCache cache = made(config(Layout::kRing, Type::kF32, 2));
  Random random(3);
  append(cache, Rows(random, {kBatch, kKvHeads, 3, kWidth}).view(),
         Rows(random, {kBatch, kKvHeads, 3, kValueDim}).view());
  EXPECT_EQ(cache.length(kBatch - 1), 3);
  EXPECT_EQ(cache.first_kept(kBatch - 1), 1);
  for (const int64_t batch : {int64_t{-1}, kBatch, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(cache.length(batch), 0);
    EXPECT_EQ(cache.first_kept(batch), 0);
  }
}

TEST_F(CacheTest, DefaultConstructedHasNothing) {
  KVCache cache;
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(cache.first_kept(0), 0);
  const std::vector<float> data(16);
  EXPECT_FALSE(cache.append({data.data(), {1, 1, 1, 4}}, {data.data(), {1, 1, 1, 4}}).ok());
  EXPECT_FALSE(cache.truncate(0, 0).ok());
}

}  // namespace
}  // namespace multihead
