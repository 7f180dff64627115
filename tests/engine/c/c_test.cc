// multihead/c.h against the calls of C++: the same bits, and the same errors.
#include "multihead/c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/rope.h"

extern "C" const char* multihead_c_program(void);

namespace multihead {
namespace {

std::vector<float> numbers(int64_t count, float factor) {
  std::vector<float> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(factor * static_cast<float>((i * 7919) % 1009 - 504) / 504.0F);
  }
  return result;
}

TEST(C, EveryFunctionInC) {
#if defined(MULTIHEAD_HAS_C)
  const char* const failed = multihead_c_program();
  EXPECT_EQ(failed, nullptr) << failed;
#endif
}

// Every option that C has, in one call of each kind.
class COptions : public ::testing::Test {
 protected:
  static constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kQueries = 5, kKeys = 9,
                           kWidth = 8;
  const int64_t q_shape_[4] = {kBatch, kHeads, kQueries, kWidth};
  const int64_t k_shape_[4] = {kBatch, kKvHeads, kKeys, kWidth};
  const int64_t scores_[4] = {kBatch, kHeads, kQueries, kKeys};
  std::vector<float> q_ = numbers(kBatch * kHeads * kQueries * kWidth, 1.0F);
  std::vector<float> k_ = numbers(kBatch * kKvHeads * kKeys * kWidth, 0.7F);
  std::vector<float> v_ = numbers(kBatch * kKvHeads * kKeys * kWidth, 2.0F);
  std::vector<float> bias_ = numbers(kQueries * kKeys, 0.3F);
  std::vector<uint8_t> mask_ = std::vector<uint8_t>(kQueries * kKeys, 1);
  std::vector<float> slopes_{0.1F, 0.2F, 0.3F, 0.4F}, sinks_{0.5F, -0.5F, 0.0F, 1.0F};
  std::vector<float> gain_ = numbers(kWidth, 1.5F);
  std::vector<int32_t> lengths_{9, 7}, positions_{3, 4, 5, 6, 7};

  struct Results {
    std::vector<float> out, lse, weights, d_q, d_k, d_v, d_bias, d_sinks, d_gain;
    std::vector<uint8_t> dropped;
    bool operator==(const Results&) const = default;
  };
  static Results empty() {
    const int64_t q = kBatch * kHeads * kQueries * kWidth, k = kBatch * kKvHeads * kKeys * kWidth,
                  rows = kBatch * kHeads * kQueries;
    const auto floats = [](int64_t count) {
      return std::vector<float>(static_cast<size_t>(count));
    };
    return {.out = floats(q),
            .lse = floats(rows),
            .weights = floats(rows * kKeys),
            .d_q = floats(q),
            .d_k = floats(k),
            .d_v = floats(k),
            .d_bias = floats(kQueries * kKeys),
            .d_sinks = floats(kHeads),
            .d_gain = floats(kWidth),
            .dropped = std::vector<uint8_t>(static_cast<size_t>(rows * kKeys))};
  }
};

TEST_F(COptions, GiveTheBitsOfCpp) {
  mask_[3] = 0;
  Results expected = empty(), got = empty();
  Context cpp(2);
  const Dims q_dims{kBatch, kHeads, kQueries, kWidth}, k_dims{kBatch, kKvHeads, kKeys, kWidth};
  const Dims scores{kBatch, kHeads, kQueries, kKeys}, rows{kBatch, kHeads, kQueries};
  const ConstTensor q_view{q_.data(), q_dims}, k_view{k_.data(), k_dims}, v_view{v_.data(), k_dims};
  const AttentionOptions of{
      .scale = 0.3F,
      .causal = Causal::at_offset(4),
      .window = {.left = 6, .right = -1},
      .mask = {mask_.data(), {kQueries, kKeys}},
      .bias = {bias_.data(), {kQueries, kKeys}},
      .kv_lengths = lengths_,
      .alibi_slopes = slopes_,
      .softcap = 5.0F,
      .sinks = sinks_,
      .qk_norm = {.q_gain = gain_, .k_gain = {}, .eps = 1e-5F, .enabled = true},
      .rope = {.style = Rope::Style::kHalf,
               .base = 500.0,
               .rotary_dim = 4,
               .q_positions = positions_},
      .dropout = {0.25F, 77}};
  const Tensor out{expected.out.data(), q_dims}, lse{expected.lse.data(), rows};
  Status status = attention(q_view, k_view, v_view, of,
                            {.out = out,
                             .lse = lse,
                             .weights = {expected.weights.data(), scores},
                             .dropout_mask = {expected.dropped.data(), scores}},
                            cpp);
  ASSERT_TRUE(status.ok()) << status.message();
  status = attention_backward(q_view, k_view, v_view, of, {.out = out, .lse = lse}, q_view,
                              {.d_q = {expected.d_q.data(), q_dims},
                               .d_k = {expected.d_k.data(), k_dims},
                               .d_v = {expected.d_v.data(), k_dims},
                               .d_bias = {expected.d_bias.data(), {kQueries, kKeys}},
                               .d_sinks = expected.d_sinks,
                               .d_q_gain = expected.d_gain},
                              cpp);
  ASSERT_TRUE(status.ok()) << status.message();

  const auto tensor = [](auto& data, int32_t dtype, int32_t rank, const int64_t* shape) {
    return multihead_tensor{data.data(), dtype, rank, shape, nullptr};
  };
  const multihead_tensor q = tensor(q_, MULTIHEAD_F32, 4, q_shape_),
                         k = tensor(k_, MULTIHEAD_F32, 4, k_shape_),
                         v = tensor(v_, MULTIHEAD_F32, 4, k_shape_),
                         bias = tensor(bias_, MULTIHEAD_F32, 2, scores_ + 2),
                         mask = tensor(mask_, MULTIHEAD_BOOL, 2, scores_ + 2),
                         c_out = tensor(got.out, MULTIHEAD_F32, 4, q_shape_),
                         c_lse = tensor(got.lse, MULTIHEAD_F32, 3, q_shape_),
                         weights = tensor(got.weights, MULTIHEAD_F32, 4, scores_),
                         dropped = tensor(got.dropped, MULTIHEAD_BOOL, 4, scores_),
                         d_q = tensor(got.d_q, MULTIHEAD_F32, 4, q_shape_),
                         d_k = tensor(got.d_k, MULTIHEAD_F32, 4, k_shape_),
                         d_v = tensor(got.d_v, MULTIHEAD_F32, 4, k_shape_),
                         d_bias = tensor(got.d_bias, MULTIHEAD_F32, 2, scores_ + 2);
  multihead_rope rope = {};
  rope.size = sizeof rope;
  rope.half = 1;
  rope.base = 500.0;
  rope.rotary_dim = 4;
  rope.q_positions = {positions_.data(), positions_.size()};
  multihead_attention_options options = {};
  options.size = sizeof options;
  options.has_scale = options.has_window = options.qk_norm = true;
  options.scale = 0.3F;
  options.causal = MULTIHEAD_OFFSET;
  options.causal_offset = 4;
  options.window_left = 6;
  options.window_right = -1;
  options.mask = &mask;
  options.bias = &bias;
  options.kv_lengths = {lengths_.data(), lengths_.size()};
  options.alibi_slopes = {slopes_.data(), slopes_.size()};
  options.softcap = 5.0F;
  options.sinks = {sinks_.data(), sinks_.size()};
  options.q_gain = {gain_.data(), gain_.size()};
  options.qk_norm_eps = 1e-5F;
  options.rope = &rope;
  options.dropout = 0.25F;
  options.dropout_seed = 77;
  const multihead_attention_outputs outputs = {sizeof outputs, &c_out, &c_lse, &weights, &dropped};
  const multihead_attention_results results = {sizeof results, &c_out, &c_lse, false};
  const multihead_attention_gradients gradients = {sizeof gradients,
                                                   &d_q,
                                                   &d_k,
                                                   &d_v,
                                                   &d_bias,
                                                   {got.d_sinks.data(), got.d_sinks.size()},
                                                   {got.d_gain.data(), got.d_gain.size()},
                                                   {}};
  multihead_error error = {};
  error.size = sizeof error;
  multihead_context* context = nullptr;
  ASSERT_EQ(multihead_context_create(nullptr, &context, &error), MULTIHEAD_OK);
  ASSERT_EQ(multihead_attention(context, &q, &k, &v, &options, &outputs, &error), MULTIHEAD_OK)
      << error.message;
  ASSERT_EQ(
      multihead_attention_backward(context, &q, &k, &v, &options, &results, &q, &gradients, &error),
      MULTIHEAD_OK)
      << error.message;
  EXPECT_EQ(got, expected);

  // Values without an enumerator are refused; 257 would have one if it were cut to a byte.
  for (const int32_t causal : {5, 257, -1}) {
    options.causal = causal;
    EXPECT_EQ(multihead_attention(context, &q, &k, &v, &options, &outputs, &error),
              MULTIHEAD_ERROR_OPTION);
    EXPECT_STREQ(error.argument, "causal");
  }
  multihead_context_destroy(context);
}

// Structs of earlier and later versions.
TEST(C, StructsMayGrow) {
  struct Later {
    multihead_context_options known;
    uint64_t more = 0;
  } later = {};
  multihead_context* context = nullptr;
  multihead_error error = {};
  error.size = sizeof error;
  const auto create = [&](size_t size) {
    later.known.size = size;
    const multihead_code code = multihead_context_create(&later.known, &context, &error);
    if (code == MULTIHEAD_OK) multihead_context_destroy(context);
    return code;
  };
  EXPECT_EQ(create(sizeof later), MULTIHEAD_OK);
  EXPECT_EQ(create(offsetof(multihead_context_options, parallel_for)), MULTIHEAD_OK);
  for (const size_t size : {size_t{0}, size_t{1} << 40}) {
    EXPECT_EQ(create(size), MULTIHEAD_ERROR_OPTION);
    EXPECT_NE(std::string(error.expected).find("sizeof"), std::string::npos);
  }
  later.more = 1;
  EXPECT_EQ(create(sizeof later), MULTIHEAD_ERROR_OPTION);
  EXPECT_EQ(create(sizeof later.known), MULTIHEAD_OK);
  later.known.allocate = [](void*, size_t, size_t) -> void* { return nullptr; };
  EXPECT_EQ(create(sizeof later.known), MULTIHEAD_ERROR_OPTION);
  EXPECT_STREQ(error.argument, "allocate");
}

TEST(C, ErrorsFitInTheCallersStruct) {
  multihead_error error;
  std::memset(&error, 'x', sizeof error);
  error.size = offsetof(multihead_error, argument);
  EXPECT_EQ(multihead_cache_create(nullptr, nullptr, &error), MULTIHEAD_ERROR_OPTION);
  EXPECT_EQ(error.code, MULTIHEAD_ERROR_OPTION);
  EXPECT_EQ(error.argument[0], 'x');
  EXPECT_EQ(multihead_cache_create(nullptr, nullptr, nullptr), MULTIHEAD_ERROR_OPTION);
}

TEST(C, RefusesTensorsThatAreNone) {
  multihead_context* context = nullptr;
  ASSERT_EQ(multihead_context_create(nullptr, &context, nullptr), MULTIHEAD_OK);
  float x[8] = {};
  const int64_t shape[] = {1, 1, 2, 4};
  const multihead_tensor good = {x, MULTIHEAD_F32, 4, shape, nullptr};
  const multihead_attention_outputs outputs = {sizeof outputs, &good, nullptr, nullptr, nullptr};
  multihead_error error = {};
  error.size = sizeof error;
  for (const multihead_tensor& bad : {multihead_tensor{x, MULTIHEAD_F32, 9, shape, nullptr},
                                      multihead_tensor{x, MULTIHEAD_F32, -1, shape, nullptr},
                                      multihead_tensor{x, MULTIHEAD_F32, 4, nullptr, nullptr},
                                      multihead_tensor{x, MULTIHEAD_BOOL, 4, shape, nullptr},
                                      multihead_tensor{x, 77, 4, shape, nullptr}}) {
    EXPECT_NE(multihead_attention(context, &good, &bad, &good, nullptr, &outputs, &error),
              MULTIHEAD_OK);
    EXPECT_STREQ(error.argument, "k");
  }
  multihead_attention_options options = {};
  options.size = sizeof options;
  options.mask = &good;  // floats
  EXPECT_EQ(multihead_attention(context, &good, &good, &good, &options, &outputs, &error),
            MULTIHEAD_ERROR_OPTION);
  EXPECT_STREQ(error.argument, "mask");
  multihead_context_destroy(context);
}

}  // namespace
}  // namespace multihead
