// attention_backward() compared with the float64 oracle, on every SIMD target of the machine.
#include "multihead/attention_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpu/target.h"
#include "engine/attention/backward.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "support/random_backward.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using reference::ReferenceGradients;
using Call = testing::BackwardCall;
using testing::Gradients;

void expect_near(const std::string& name, const std::vector<float>& got,
                 const std::vector<double>& expected, double allowed,
                 const std::string& description) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    ASSERT_NEAR(static_cast<double>(got[i]), expected[i], allowed)
        << name << "[" << i << "], " << description;
  }
}

void expect_equals_oracle(const Call& call, Context& context) {
  const ReferenceGradients expected = call.expected();
  const double allowed = testing::error_of_weights(call.lse) * testing::largest_gradient(expected);
  // Sums over many rows add up the rows' errors, and the sum itself may be near 0.
  const double of_sums = 8 * allowed;
  // The gradient of QK-norm subtracts from a row its part along the normalized row. Where a key is
  // nearly parallel to its query, and in rows of a single number, these are nearly equal: four of
  // 250,000 random calls were off by 1.1 to 2.7 times the bound of other gradients.
  const double of_rows = call.c.options.qk_norm.enabled ? of_sums : allowed;
  testing::on_every_target([&] {
    const Gradients got = call.run(context);
    expect_near("d_q", got.d_q, expected.d_q, of_rows, call.c.description);
    expect_near("d_k", got.d_k, expected.d_k, of_rows, call.c.description);
    expect_near("d_v", got.d_v, expected.d_v, allowed, call.c.description);
    expect_near("d_bias", got.d_bias, expected.d_bias, of_sums, call.c.description);
    expect_near("d_sinks", got.d_sinks, expected.d_sinks, allowed, call.c.description);
    expect_near("d_q_gain", got.d_q_gain, expected.d_q_gain, of_sums, call.c.description);
    expect_near("d_k_gain", got.d_k_gain, expected.d_k_gain, of_sums, call.c.description);
  });
}

class Backward : public ::testing::Test {
 protected:
  Context context_{2};
};

TEST_F(Backward, EqualsTheOracleOnRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(60)) {
    expect_equals_oracle(Call(seed, {}), context_);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Backward, EqualsTheOracleOnSmallRandomCalls) {
  for (const uint64_t seed : testing::random_seeds(400)) {
    expect_equals_oracle(Call(seed, {.max_queries = 9, .max_keys = 12, .max_width = 20}), context_);
    if (HasFatalFailure()) return;
  }
}

TEST_F(Backward, EqualsTheOracleWithSinksOfEveryMagnitude) {
  for (const float sink : {4e9F, 1e15F, 3e38F, -4e9F, -3e38F}) {
    for (const uint64_t seed : testing::random_seeds(20)) {
      testing::RandomCase c =
          testing::random_case(seed, {.max_queries = 9, .max_keys = 12, .max_width = 20});
      c.storage.emplace_back(static_cast<size_t>(c.q.shape[1]), sink);
      c.options.sinks = c.storage.back();
      expect_equals_oracle(Call(std::move(c), seed), context_);
      if (HasFatalFailure()) return;
    }
  }
}

// The keys are cut into several chunks, whose parts of d_q are added.
TEST_F(Backward, EqualsTheOracleWithManyKeys) {
  for (const uint64_t seed : testing::random_seeds(4)) {
    expect_equals_oracle(Call(seed, {.max_queries = 40, .max_keys = 3000, .max_width = 20}),
                         context_);
    if (HasFatalFailure()) return;
  }
}

// Returns how many jobs divide the rows of a chunk of keys.
int64_t row_jobs(const Call& call) {
  Gradients g = call.empty();
  engine::AttentionShape shape;
  const Status status = engine::validate_inputs(call.c.q, call.c.k, call.c.v, shape);
  EXPECT_TRUE(status.ok()) << status.message();
  return engine::plan_backward({call.c.q, call.c.k, call.c.v, call.c.options, call.results(),
                                ConstTensor(call.d_out.data(), call.c.out_shape), call.views(g)},
                               shape)
      .tiling.row_jobs;
}

// The rows are divided among several jobs, whose parts of d_k and d_v are added.
TEST_F(Backward, EqualsTheOracleWithManyQueries) {
  int64_t divided = 0;
  constexpr int kUsual = 12;
  const std::vector<uint64_t> seeds = testing::random_seeds(kUsual);
  for (const uint64_t seed : seeds) {
    const Call call(seed, {.max_queries = 2000, .max_keys = 40, .max_width = 20});
    divided += row_jobs(call) > 1;
    expect_equals_oracle(call, context_);
    if (HasFatalFailure()) return;
  }
  // With fewer seeds than usual, no call may be long enough to be divided.
  if (seeds.size() >= kUsual) {
    EXPECT_EQ(divided > 0, cpu::target_traits().least_jobs > 1);
  }
}

// Eight threads, which may exceed the machine's, wait for each other's parts.
TEST_F(Backward, TheBitsDoNotDependOnTheThreadsWithManyQueriesAndKeys) {
  Context alone(1), eight(8);
  for (const uint64_t seed : testing::random_seeds(6)) {
    const Call call(seed, {.max_queries = 1600, .max_keys = 1600, .max_width = 12});
    const Gradients expected = call.run(alone);
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(call.run(eight).same_as(expected)) << call.c.description;
    }
  }
}

// If a job waited for a job of a larger number, several threads could wait for each other forever.
TEST_F(Backward, JobsWaitForJobsOfSmallerNumbers) {
  for (const uint64_t seed : testing::random_seeds(20)) {
    const Call call(seed, {.max_queries = 2000, .max_keys = 2000, .max_width = 4});
    Gradients g = call.empty();
    engine::AttentionShape shape;
    ASSERT_TRUE(engine::validate_inputs(call.c.q, call.c.k, call.c.v, shape).ok());
    const rules::BackwardTiling tiling =
        engine::plan_backward({call.c.q, call.c.k, call.c.v, call.c.options, call.results(),
                               ConstTensor(call.d_out.data(), call.c.out_shape), call.views(g)},
                              shape)
            .tiling;
    const int64_t parts = tiling.batch_parts * tiling.head_parts;
    int64_t number = 0;
    for (int64_t rows = 0; rows < tiling.row_jobs; ++rows) {
      for (int64_t chunk = 0; chunk < tiling.chunks; ++chunk) {
        for (int64_t part = 0; part < parts; ++part) {
          ASSERT_EQ(tiling.number_of(rows, chunk, part), number++);
          if (chunk > 0) {
            ASSERT_LT(tiling.number_of(rows, chunk - 1, part), number - 1);
          }
          if (rows > 0) {
            ASSERT_LT(tiling.number_of(rows - 1, chunk, part), number - 1);
          }
        }
      }
    }
    ASSERT_EQ(number, tiling.jobs);
  }
}

// Computes gradients for two parts of the keys from the merged results: together they equal the
// gradients of the whole call.
TEST_F(Backward, PartsOfTheKeysAddUpToTheWholeCall) {
  constexpr int64_t kHeads = 3, kQueries = 20, kKeys = 70, kFirst = 30, kWidth = 8;
  testing::Random random(5);
  const Dims of_q{1, kHeads, kQueries, kWidth}, of_k{1, kHeads, kKeys, kWidth};
  const Dims of_lse{1, kHeads, kQueries};
  const std::vector<float> q = random.floats(of_q.elements()), k = random.floats(of_k.elements()),
                           v = random.floats(of_k.elements()),
                           d_out = random.floats(of_q.elements());
  const auto keys_of = [&](auto& numbers, int64_t first, int64_t count) {
    return TensorView(numbers.data() + first * kWidth, Dims{1, kHeads, count, kWidth},
                      contiguous_strides(of_k));
  };
  std::vector<float> out(q.size()), lse(kHeads * kQueries);
  std::vector<float> out_b(q.size()), lse_b(lse.size());
  const auto forward = [&](int64_t first, int64_t count, std::vector<float>& to,
                           std::vector<float>& of_to) {
    return attention(ConstTensor(q.data(), of_q), ConstTensor(keys_of(k, first, count)),
                     ConstTensor(keys_of(v, first, count)), {},
                     {.out = Tensor(to.data(), of_q), .lse = {of_to.data(), of_lse}}, context_);
  };
  Gradients whole, parts;
  for (Gradients* of : {&whole, &parts}) {
    of->d_q = testing::poisoned(of_q.elements());
    of->d_k = testing::poisoned(of_k.elements());
    of->d_v = testing::poisoned(of_k.elements());
  }
  const auto backward = [&](int64_t first, int64_t count, bool check_lse, Gradients& to) {
    return attention_backward(
        ConstTensor(q.data(), of_q), ConstTensor(keys_of(k, first, count)),
        ConstTensor(keys_of(v, first, count)), {},
        {.out = ConstTensor(out.data(), of_q), .lse = {lse.data(), of_lse}, .check_lse = check_lse},
        ConstTensor(d_out.data(), of_q),
        {.d_q = Tensor(to.d_q.data(), of_q),
         .d_k = keys_of(to.d_k, first, count),
         .d_v = keys_of(to.d_v, first, count)},
        context_);
  };
  ASSERT_TRUE(forward(0, kFirst, out, lse).ok());
  ASSERT_TRUE(forward(kFirst, kKeys - kFirst, out_b, lse_b).ok());
  ASSERT_TRUE(merge_attention({out.data(), of_q}, {lse.data(), of_lse}, {out_b.data(), of_q},
                              {lse_b.data(), of_lse})
                  .ok());
  const Status refused = backward(0, kFirst, true, parts);
  EXPECT_EQ(refused.argument(), "lse") << refused.message();
  ASSERT_TRUE(backward(0, kKeys, true, whole).ok());
  ASSERT_TRUE(backward(0, kFirst, false, parts).ok());
  std::vector<float> d_q = parts.d_q;
  ASSERT_TRUE(backward(kFirst, kKeys - kFirst, false, parts).ok());
  for (size_t i = 0; i < d_q.size(); ++i) ASSERT_NEAR(d_q[i] + parts.d_q[i], whole.d_q[i], 2e-6);
  for (size_t i = 0; i < whole.d_k.size(); ++i) {
    ASSERT_NEAR(parts.d_k[i], whole.d_k[i], 2e-6);
    ASSERT_NEAR(parts.d_v[i], whole.d_v[i], 2e-6);
  }
}

TEST_F(Backward, GradientsThatAreNotAskedForChangeNoBitOfTheOthers) {
  for (const uint64_t seed : testing::random_seeds(40)) {
    const Call call(seed, {.max_queries = 60, .max_keys = 80});
    const Gradients all = call.run(context_);
    for (const bool of_queries : {true, false}) {
      Gradients g = call.empty();
      AttentionGradients to = call.views(g);
      (of_queries ? to.d_k : to.d_q) = {};
      if (of_queries) to.d_v = {};
      // The gradient of a gain needs the gradient of its input, d_q or d_k.
      (of_queries ? to.d_k_gain : to.d_q_gain) = {};
      const Status status =
          attention_backward(call.c.q, call.c.k, call.c.v, call.c.options, call.results(),
                             ConstTensor(call.d_out.data(), call.c.out_shape), to, context_);
      ASSERT_TRUE(status.ok()) << status.message() << "; " << call.c.description;
      if (of_queries) {
        ASSERT_TRUE(testing::same_bits(g.d_q, all.d_q)) << call.c.description;
      } else {
        ASSERT_TRUE(testing::same_bits(g.d_k, all.d_k)) << call.c.description;
        ASSERT_TRUE(testing::same_bits(g.d_v, all.d_v)) << call.c.description;
      }
    }
  }
}

TEST_F(Backward, TheBitsDoNotDependOnTheThreads) {
  Context alone(1), three(3);
  for (const uint64_t seed : testing::random_seeds(40)) {
    const Call call(seed, {.max_queries = 60, .max_keys = 1500});
    const Gradients expected = call.run(alone);
    for (Context* context : {&context_, &three}) {
      ASSERT_TRUE(call.run(*context).same_as(expected)) << call.c.description;
    }
  }
}

// No element of a tensor is read: their memory does not exist.
TEST_F(Backward, IsDividedIntoEntriesAndHeadsUnlessAGradientSumsOverThem) {
  float nowhere = 0;
  const auto tensor = [&](const Dims& shape) { return Tensor(&nowhere, shape); };
  const ConstAnyTensor q = tensor({3, 4, 50, 8}), k = tensor({3, 2, 60, 8}),
                       v = tensor({3, 2, 60, 5}), d_out = tensor({3, 4, 50, 5});
  const AttentionResults results{.out = d_out, .lse = {&nowhere, {3, 4, 50}}};
  const std::vector<float> of_heads(4), gain(8, 1.0F);
  std::vector<float> d_vector(8);
  const auto divide = [&](const AttentionOptions& options, const AttentionGradients& gradients,
                          engine::BackwardParts& parts) {
    return engine::divide_backward({q, k, v, options, results, d_out, gradients}, parts);
  };
  engine::BackwardParts parts;
  const AttentionGradients d_q{.d_q = tensor({3, 4, 50, 8})};
  ASSERT_TRUE(divide({}, d_q, parts).ok());
  EXPECT_EQ(parts.batches, 3);
  EXPECT_EQ(parts.kv_heads, 2);
  EXPECT_EQ(parts.jobs, 6);
  EXPECT_EQ(parts.operations, 2.0 * 3 * 4 * 50 * 60 * (3 * 8 + 2 * 5));

  AttentionGradients with_bias = d_q;
  with_bias.d_bias = tensor({1, 4, 50, 60});
  ASSERT_TRUE(divide({.bias = tensor({1, 4, 50, 60})}, with_bias, parts).ok());
  EXPECT_EQ(parts.batches, 1);
  EXPECT_EQ(parts.kv_heads, 2);
  EXPECT_EQ(parts.jobs, 2);

  AttentionGradients with_sinks = d_q;
  with_sinks.d_sinks = std::span(d_vector).first(4);
  ASSERT_TRUE(divide({.sinks = of_heads}, with_sinks, parts).ok());
  EXPECT_EQ(parts.batches, 1);
  EXPECT_EQ(parts.kv_heads, 2);
  EXPECT_EQ(parts.jobs, 6);

  AttentionGradients with_gain = d_q;
  with_gain.d_q_gain = d_vector;
  ASSERT_TRUE(divide({.qk_norm = {.q_gain = gain, .enabled = true}}, with_gain, parts).ok());
  EXPECT_EQ(parts.batches * parts.kv_heads, 1);

  EXPECT_EQ(divide({}, with_sinks, parts).code(), StatusCode::kOption);
}

// Computes every batch entry and key/value head separately.
TEST_F(Backward, PartsHaveTheBitsOfTheWholeCall) {
  for (const uint64_t seed : testing::random_seeds(40)) {
    testing::Random random(seed);
    const int64_t batch = random.integer(1, 3), kv_heads = random.integer(1, 3);
    const int64_t group = random.integer(1, 2), heads = kv_heads * group;
    const int64_t queries = random.integer(1, 80), keys = random.integer(1, 1500);
    const int64_t width = random.pick({8, 20}), value_dim = random.pick({8, 19});
    const auto q = random.floats(batch * heads * queries * width);
    const auto k = random.floats(batch * kv_heads * keys * width);
    const auto v = random.floats(batch * kv_heads * keys * value_dim);
    const auto d_out = random.floats(batch * heads * queries * value_dim);
    AttentionOptions options{.causal = Causal::bottom_right()};
    if (random.chance(0.5)) options.dropout = {.probability = 0.3F, .seed = seed};
    std::vector<float> out(d_out.size()), lse(static_cast<size_t>(batch * heads * queries));
    ASSERT_TRUE(attention(ConstTensor(q.data(), {batch, heads, queries, width}),
                          ConstTensor(k.data(), {batch, kv_heads, keys, width}),
                          ConstTensor(v.data(), {batch, kv_heads, keys, value_dim}), options,
                          {.out = Tensor(out.data(), {batch, heads, queries, value_dim}),
                           .lse = {lse.data(), {batch, heads, queries}}},
                          context_)
                    .ok());
    const auto run = [&](int64_t first, int64_t count_b, int64_t count_h,
                         const engine::BackwardPart& part, Gradients& to) {
      const int64_t first_q = first * group * queries;
      const Dims of_q{count_b, count_h * group, queries, width},
          of_k{count_b, count_h, keys, width}, of_v{count_b, count_h, keys, value_dim},
          of_out{count_b, count_h * group, queries, value_dim};
      ASSERT_TRUE(
          engine::attention_backward_part(
              {ConstTensor(&q[static_cast<size_t>(first_q * width)], of_q),
               ConstTensor(&k[static_cast<size_t>(first * keys * width)], of_k),
               ConstTensor(&v[static_cast<size_t>(first * keys * value_dim)], of_v),
               options,
               {.out = ConstTensor(&out[static_cast<size_t>(first_q * value_dim)], of_out),
                .lse = {&lse[static_cast<size_t>(first_q)], {count_b, count_h * group, queries}}},
               ConstTensor(&d_out[static_cast<size_t>(first_q * value_dim)], of_out),
               {.d_q = Tensor(&to.d_q[static_cast<size_t>(first_q * width)], of_q),
                .d_k = Tensor(&to.d_k[static_cast<size_t>(first * keys * width)], of_k),
                .d_v = Tensor(&to.d_v[static_cast<size_t>(first * keys * value_dim)], of_v)}},
              part, context_)
              .ok());
    };
    Gradients whole;
    whole.d_q = testing::poisoned(static_cast<int64_t>(q.size()));
    whole.d_k = testing::poisoned(static_cast<int64_t>(k.size()));
    whole.d_v = testing::poisoned(static_cast<int64_t>(v.size()));
    Gradients parts = whole;
    run(0, batch, kv_heads, {}, whole);
    for (int64_t head = 0; head < batch * kv_heads; ++head) {
      run(head, 1, 1,
          {.first_batch = head / kv_heads,
           .first_head = head % kv_heads * group,
           .jobs = batch * kv_heads},
          parts);
    }
    EXPECT_TRUE(parts.same_as(whole)) << "seed " << seed;
  }
}

TEST_F(Backward, AGradientOfZeroGivesZero) {
  for (const uint64_t seed : testing::random_seeds(40)) {
    Call call(seed, {.max_queries = 20, .max_keys = 40});
    std::fill(call.d_out.begin(), call.d_out.end(), 0.0F);
    const Gradients got = call.run(context_);
    for (const std::vector<float>* gradient : {&got.d_q, &got.d_k, &got.d_v, &got.d_bias}) {
      for (const float value : *gradient) {
        // NaN inputs give NaN gradients.
        if (!std::isnan(value)) {
          ASSERT_EQ(value, 0.0F) << call.c.description;
        }
      }
    }
  }
}

TEST_F(Backward, WithoutQueryHeadsKeysAndValuesHaveZeroGradients) {
  const Dims none{1, 0, 3, 4}, shape{1, 2, 600, 4};
  const std::vector<float> x(static_cast<size_t>(shape.elements()), 0.5F);
  std::vector<float> d_k(x.size(), 7.0F), d_v(x.size(), 7.0F);
  const ConstTensor q(x.data(), none), k(x.data(), shape);
  const AttentionResults results{.out = Tensor(d_k.data(), none),
                                 .lse = Tensor(d_k.data(), {1, 0, 3})};
  const Status status = attention_backward(
      q, k, k, {}, results, q, {.d_k = Tensor(d_k.data(), shape), .d_v = Tensor(d_v.data(), shape)},
      context_);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(d_k, std::vector<float>(x.size()));
  EXPECT_EQ(d_v, std::vector<float>(x.size()));
}

// The check of the LSE does not count as a call of attention().
TEST_F(Backward, LeavesTheKernelOfTheLastCall) {
  const Call call(1, {.max_queries = 30, .max_keys = 30});
  Context context(1);
  call.run(context);
  EXPECT_EQ(context.last_kernel(), "");
  const std::vector<float> x(4 * 40 * 16, 0.25F);
  std::vector<float> out(x.size());
  const ConstTensor of_x(x.data(), {1, 4, 40, 16});
  ASSERT_TRUE(
      attention(of_x, of_x, of_x, {}, {.out = Tensor(out.data(), of_x.shape)}, context).ok());
  const std::string kernel = context.last_kernel();
  EXPECT_NE(kernel, "");
  call.run(context);
  EXPECT_EQ(context.last_kernel(), kernel);
}

TEST_F(Backward, RefusesTheLogSumExpOfAnotherCall) {
  int refused = 0, calls = 0;
  for (const uint64_t seed : testing::random_seeds(100)) {
    Call call(seed, {.max_queries = 9, .max_keys = 12, .max_width = 20});
    const Dims& shape = call.c.q.shape;
    if (call.lse.empty()) continue;
    const auto last = static_cast<size_t>(shape[2] - 1);
    if (!std::isfinite(call.lse[last])) continue;
    ++calls;
    call.lse[last] += 1.0F + 0.1F * std::abs(call.lse[last]);
    Gradients got = call.empty();
    const Status status = attention_backward(
        call.c.q, call.c.k, call.c.v, call.c.options, call.results(),
        ConstTensor(call.d_out.data(), call.c.out_shape), call.views(got), context_);
    EXPECT_EQ(status.argument(), "lse") << call.c.description;
    if (status.ok()) continue;
    ++refused;
    EXPECT_TRUE(got.same_as(call.empty()));
  }
  EXPECT_GT(calls, 0);
  EXPECT_EQ(refused, calls);
}

// Weights of one head alone would take 4 GB.
TEST(AttentionBackward, ScratchGrowsLikeTheSequence) {
  size_t bytes[2] = {};
  for (const int64_t tokens : {16384, 32768}) {
    Context context(1);
    testing::Random random(1);
    const Dims shape{1, 1, tokens, 16}, rows{1, 1, tokens};
    const std::vector<float> x = random.floats(shape.elements());
    std::vector<float> d(x.size() * 3), lse(static_cast<size_t>(tokens));
    const auto gradient = [&](size_t which) { return Tensor(d.data() + which * x.size(), shape); };
    const ConstTensor in(x.data(), shape);
    ASSERT_TRUE(attention_backward(in, in, in, {.window = {.left = 64, .right = 64}},
                                   {.out = in, .lse = {lse.data(), rows}, .check_lse = false}, in,
                                   {.d_q = gradient(0), .d_k = gradient(1), .d_v = gradient(2)},
                                   context)
                    .ok());
    bytes[tokens == 32768] = context.scratch_bytes();
  }
  EXPECT_LE(bytes[1], 2 * bytes[0]);
  EXPECT_LT(bytes[1], 8U << 20);
}

}  // namespace
}  // namespace multihead
