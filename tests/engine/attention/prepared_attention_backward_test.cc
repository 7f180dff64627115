// Prepared backward calls give the bits of plain calls, also after everything that may change
// between runs has changed. Invalid runs are refused.
#include "multihead/prepared_attention_backward.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/random_backward.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using testing::BackwardCall;
using testing::Gradients;
using testing::Random;
using testing::without_data;

PreparedAttentionBackward::Data data_of(const BackwardCall& call, Gradients& g) {
  return {.q = call.c.q.data,
          .k = call.c.k.data,
          .v = call.c.v.data,
          .out = call.out.data(),
          .lse = call.lse.data(),
          .d_out = call.d_out.data(),
          .d_q = g.d_q.data(),
          .d_k = g.d_k.data(),
          .d_v = g.d_v.data()};
}

TEST(PreparedBackward, FollowsEverythingThatMayChangeBetweenRuns) {
  Context context(2), other(1);
  for (const uint64_t seed : testing::random_seeds(150)) {
    BackwardCall call(seed, {.max_queries = 20, .max_keys = 60, .max_width = 20});
    SCOPED_TRACE(call.c.description);
    Gradients kept = call.empty();
    AttentionGradients views = call.views(kept);
    views.d_q = without_data(views.d_q);
    views.d_k = without_data(views.d_k);
    views.d_v = without_data(views.d_v);
    const Dims &out = call.c.out_shape, &lse = call.c.lse_shape;
    PreparedAttentionBackward op;
    Status status = PreparedAttentionBackward::create(
        without_data(call.c.q), without_data(call.c.k), without_data(call.c.v), call.c.options,
        {.out = ConstTensor(nullptr, out), .lse = ConstTensor(nullptr, lse)},
        ConstTensor(nullptr, out), views, context, op);
    ASSERT_TRUE(status.ok()) << status.message();
    Random random(seed);
    for (int run = 0; run < 3; ++run) {
      Gradients made = call.empty();
      status = op.run(data_of(call, made));
      ASSERT_TRUE(status.ok()) << status.message();
      // Each run writes these gradients to the addresses that were given to create().
      made.d_bias = kept.d_bias;
      made.d_sinks = kept.d_sinks;
      made.d_q_gain = kept.d_q_gain;
      made.d_k_gain = kept.d_k_gain;
      ASSERT_TRUE(made.same_as(call.run(other))) << "run " << run;
      for (std::vector<float>& numbers : call.c.storage) {
        for (float& number : numbers) number *= random.chance(0.5) ? 0.5F : 1.0F;
      }
      auto* const lengths = const_cast<int32_t*>(call.c.options.kv_lengths.data());
      for (size_t b = 0; b < call.c.options.kv_lengths.size(); ++b) {
        lengths[b] = static_cast<int32_t>(random.integer(0, call.c.k.shape[2]));
      }
      call.d_out = random.floats(out.elements());
      call.forward();
    }
  }
}

#if !defined(__EMSCRIPTEN__)  // there the package refuses overlaps
// Memory that create() is given. Tensors without an address are compared with nothing.
TEST(PreparedBackward, RefusesTheOverlapsThatAttentionBackwardRefuses) {
  Context context(1);
  const Dims shape{1, 2, 3, 4}, scores{1, 2, 3, 3};
  std::vector<float> bias(18, 0.5F), other(18);
  const AttentionOptions options{.bias = {bias.data(), scores}};
  const ConstAnyTensor q(nullptr, shape);
  const AttentionResults results{.out = q, .lse = {nullptr, {1, 2, 3}}};
  PreparedAttentionBackward op;
  const auto argument = [&](const AttentionGradients& gradients) {
    return PreparedAttentionBackward::create(q, q, q, options, results, q, gradients, context, op)
        .argument();
  };
  EXPECT_EQ(argument({.d_bias = {bias.data(), scores}}), "d_bias");
  EXPECT_EQ(argument({.d_bias = {other.data(), scores, {0, 0, 3, 1}}}), "d_bias");
  EXPECT_EQ(argument({.d_q = {nullptr, shape}, .d_bias = {other.data(), scores}}), "");
}
#endif

TEST(PreparedBackward, RunsRefuseDataThatIsLeftOut) {
  Context context(1);
  const Dims shape{1, 2, 3, 4};
  std::vector<float> x(24, 0.5F);
  const ConstAnyTensor q(nullptr, shape);
  PreparedAttentionBackward op;
  ASSERT_TRUE(PreparedAttentionBackward::create(q, q, q, {},
                                                {.out = q, .lse = {nullptr, {1, 2, 3}}}, q,
                                                {.d_q = {nullptr, shape}}, context, op)
                  .ok());
  PreparedAttentionBackward::Data data;
  EXPECT_EQ(op.run(data).argument(), "q");
  data.q = data.k = data.v = data.out = data.d_out = x.data();
  EXPECT_EQ(op.run(data).argument(), "lse");
}

TEST(PreparedBackward, RefusesInvalidRunsAndWritesNothing) {
  Context context(1);
  const Dims shape{1, 2, 3, 4}, rows{1, 2, 3};
  std::vector<float> x(24, 0.5F), d_q(24, 42.0F), lse(6);
  std::vector<int32_t> lengths{2};
  AttentionOptions options;
  options.kv_lengths = lengths;
  const ConstTensor input(x.data(), shape);
  PreparedAttentionBackward op, none;
  const AttentionResults results{.out = input, .lse = ConstTensor(lse.data(), rows)};
  const auto create = [&](const AttentionGradients& gradients) {
    return PreparedAttentionBackward::create(input, input, input, options, results, input,
                                             gradients, context, op);
  };
  EXPECT_EQ(create({.d_q = {nullptr, {1, 2, 3, 5}}}).argument(), "d_q");
  ASSERT_TRUE(create({.d_q = {nullptr, shape}}).ok());
  const PreparedAttentionBackward::Data good{.q = x.data(),
                                             .k = x.data(),
                                             .v = x.data(),
                                             .out = x.data(),
                                             .lse = lse.data(),
                                             .d_out = x.data(),
                                             .d_q = d_q.data(),
                                             .d_k = nullptr,
                                             .d_v = nullptr};
  const auto argument = [&](auto change) {
    PreparedAttentionBackward::Data data = good;
    change(data);
    return op.run(data).argument();
  };
  EXPECT_EQ(argument([](auto& data) { data.q = nullptr; }), "q");
  EXPECT_EQ(argument([](auto& data) { data.lse = nullptr; }), "lse");
  EXPECT_EQ(argument([](auto& data) { data.d_out = nullptr; }), "d_out");
  EXPECT_EQ(argument([](auto& data) { data.d_q = nullptr; }), "d_q");
  EXPECT_EQ(argument([&](auto& data) { data.d_k = x.data(); }), "d_k");
  lengths[0] = 4;
  EXPECT_EQ(op.run(good).argument(), "kv_lengths");
  EXPECT_EQ(d_q, std::vector<float>(24, 42.0F));
  lengths[0] = 3;
  EXPECT_TRUE(op.run(good).ok());
  EXPECT_EQ(none.run(good).argument(), "prepared");
}

}  // namespace
}  // namespace multihead
