// attention() against the Eigen oracle, on every SIMD target of the machine.
#include "multihead/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <vector>

#include "reference/reference_attention.h"
#include "rules/broadcast.h"
#include "rules/visibility.h"
#include "support/random_case.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using reference::ReferenceOutputs;
using testing::Random;
using testing::random_case;
using testing::RandomCase;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Result {
  std::vector<float> out, lse, weights;
};

// Outputs start as NaN, so that whatever is not written shows.
Result run(const RandomCase& c, Context& context) {
  const auto poisoned = [](const Dims& shape) {
    return std::vector<float>(static_cast<size_t>(shape.elements()), kNaN);
  };
  Result result{poisoned(c.out_shape), poisoned(c.lse_shape), poisoned(c.weights_shape)};
  const Status status = attention(c.q, c.k, c.v, c.options,
                                  {.out = {result.out.data(), c.out_shape},
                                   .lse = {result.lse.data(), c.lse_shape},
                                   .weights = {result.weights.data(), c.weights_shape}},
                                  context);
  EXPECT_TRUE(status.ok()) << status.message();
  return result;
}

// The largest difference; infinite where one side is NaN or the infinities differ.
double largest_difference(const std::vector<float>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const auto value = static_cast<double>(got[i]);
    if (value == expected[i]) continue;
    // Scores near -3.4e38 are compared relatively.
    const double difference =
        std::abs(value - expected[i]) / std::max(1.0, std::abs(expected[i]) / 8);
    largest = std::isfinite(difference) ? std::max(largest, difference) : INFINITY;
  }
  return largest;
}

// For inputs in [-1, 1]. A scale of 2 on a width of 70 makes scores of 40, whose rounding to
// float is 2e-6 already.
double tolerance(const RandomCase& c) {
  return c.options.scale.value_or(0.0F) > 1.0F ? 2e-5 : 2e-6;
}

class AttentionOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
  Context context_{2};
};

// MULTIHEAD_RANDOM_CASES asks for a longer run.
int64_t random_cases() {
  const char* const asked = std::getenv("MULTIHEAD_RANDOM_CASES");
  return asked != nullptr ? std::atoll(asked) : 250;
}

TEST_P(AttentionOnTarget, EqualsOracleOnRandomCalls) {
  for (int64_t seed = 1; seed <= random_cases(); ++seed) {
    const RandomCase c = random_case(static_cast<uint64_t>(seed));
    SCOPED_TRACE(c.description);
    const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
    const Result got = run(c, context_);
    ASSERT_LE(largest_difference(got.out, expected.out), tolerance(c));
    ASSERT_LE(largest_difference(got.lse, expected.lse), 2 * tolerance(c));
    ASSERT_LE(largest_difference(got.weights, expected.weights), tolerance(c));
  }
}

// Writes NaN and infinities to every key and value that no query of its group sees, in a
// copy of the case, then asks for the same bits.
TEST_P(AttentionOnTarget, HiddenPositionsNeverLeak) {
  int poisoned_cases = 0;
  for (uint64_t seed = 1000; seed < 1120; ++seed) {
    RandomCase c = random_case(seed);
    if (c.q.shape[2] == 0 || c.k.shape[2] == 0) continue;
    SCOPED_TRACE(c.description);
    const Result clean = run(c, context_);

    const auto visibility = rules::make_visibility(c.options.causal, c.q.shape[2], c.k.shape[2]);
    const auto mask = rules::broadcast_to_scores(c.options.mask);
    const auto bias = rules::broadcast_to_scores(c.options.bias);
    const int64_t group = c.q.shape[1] / c.k.shape[1];
    Random random(seed);
    bool poisoned = false;
    for (int64_t b = 0; b < c.k.shape[0]; ++b) {
      for (int64_t h = 0; h < c.k.shape[1]; ++h) {
        for (int64_t j = 0; j < c.k.shape[2]; ++j) {
          bool seen = false;
          for (int64_t head = h * group; head < (h + 1) * group; ++head) {
            for (int64_t i = 0; i < c.q.shape[2]; ++i) {
              seen |= visibility.of_query(i).contains(j) &&
                      (!mask.given() || mask.at(b, head, i, j) != 0) &&
                      (!bias.given() || bias.at(b, head, i, j) != -kInf);
            }
          }
          if (seen) continue;
          poisoned = true;
          for (const ConstTensor* tensor : {&c.k, &c.v}) {
            float* row = const_cast<float*>(tensor->data) + b * tensor->strides[0] +
                         h * tensor->strides[1] + j * tensor->strides[2];
            for (int64_t d = 0; d < tensor->shape[3]; ++d)
              row[d] = random.pick({kNaN, kInf, -kInf});
          }
        }
      }
    }
    poisoned_cases += poisoned ? 1 : 0;
    const Result got = run(c, context_);
    ASSERT_LE(largest_difference(got.out, {clean.out.begin(), clean.out.end()}), tolerance(c));
    ASSERT_EQ(got.weights, clean.weights);
    ASSERT_EQ(got.lse, clean.lse);
  }
  EXPECT_GT(poisoned_cases, 20);
}

// A key that some queries see and others do not: only those that see it may turn NaN.
TEST_P(AttentionOnTarget, NaNReachesOnlyTheRowsThatSeeIt) {
  constexpr int64_t kTokens = 130;
  constexpr int64_t kWidth = 24;
  Random random(7);
  const std::vector<float> q = random.floats(kTokens * kWidth);
  std::vector<float> k = random.floats(kTokens * kWidth);
  std::vector<float> v = random.floats(kTokens * kWidth);
  const Dims shape{1, 1, kTokens, kWidth};
  const auto attend = [&] {
    std::vector<float> out(q.size(), kNaN);
    const Status status =
        attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape},
                  {.causal = Causal::top_left()}, {.out = {out.data(), shape}}, context_);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<float> clean = attend();
  constexpr int64_t kPoisoned = 77;
  for (std::vector<float>* poisoned : {&k, &v}) {
    const float original = (*poisoned)[kPoisoned * kWidth];
    (*poisoned)[kPoisoned * kWidth] = kNaN;
    const std::vector<float> got = attend();
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto first = static_cast<size_t>(i * kWidth);
      if (i >= kPoisoned) {
        EXPECT_TRUE(std::isnan(got[first])) << "row " << i;
      } else {
        for (size_t d = first; d < first + kWidth; ++d) EXPECT_NEAR(got[d], clean[d], 1e-6F);
      }
    }
    (*poisoned)[kPoisoned * kWidth] = original;
  }
}

TEST_P(AttentionOnTarget, LongSequenceStaysWithinTolerance) {
  Random random(11);
  constexpr int64_t kTokens = 8192;
  const Dims q_shape{1, 1, 40, 64};
  const Dims k_shape{1, 1, kTokens, 64};
  RandomCase c;
  c.storage = {random.floats(q_shape.elements()), random.floats(k_shape.elements()),
               random.floats(k_shape.elements())};
  c.q = {c.storage[0].data(), q_shape};
  c.k = {c.storage[1].data(), k_shape};
  c.v = {c.storage[2].data(), k_shape};
  c.options = {.causal = Causal::bottom_right()};
  c.out_shape = q_shape;
  c.lse_shape = {1, 1, 40};
  c.weights_shape = {1, 1, 40, kTokens};
  const ReferenceOutputs expected = reference::attention(c.q, c.k, c.v, c.options);
  const Result got = run(c, context_);
  EXPECT_LE(largest_difference(got.out, expected.out), 2e-6);
  EXPECT_LE(largest_difference(got.lse, expected.lse), 2e-6);
  EXPECT_LE(largest_difference(got.weights, expected.weights), 2e-6);
}

TEST_P(AttentionOnTarget, SameBitsWhateverTheThreadCount) {
  for (uint64_t seed = 300; seed < 320; ++seed) {
    const RandomCase c = random_case(seed);
    SCOPED_TRACE(c.description);
    Context one(1);
    Context three(3);
    const Result a = run(c, one);
    const Result b = run(c, three);
    ASSERT_EQ(a.out, b.out);
    ASSERT_EQ(a.lse, b.lse);
    ASSERT_EQ(a.weights, b.weights);
  }
}

// Strided views give the bits of contiguous copies.
TEST_P(AttentionOnTarget, StridesChangeNothing) {
  Random random(5);
  constexpr int64_t kBatch = 2, kTokens = 50, kHeads = 3, kWidth = 16;
  // Packed (B, N, 3, H, d), as a fused projection leaves it.
  const std::vector<float> packed = random.floats(kBatch * kTokens * 3 * kHeads * kWidth);
  const Dims shape{kBatch, kHeads, kTokens, kWidth};
  const Dims strides{kTokens * 3 * kHeads * kWidth, kWidth, 3 * kHeads * kWidth, 1};
  RandomCase strided;
  RandomCase copied;
  for (int64_t part = 0; part < 3; ++part) {
    const float* data = packed.data() + part * kHeads * kWidth;
    std::vector<float> copy;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t i = 0; i < kTokens; ++i) {
          const float* row = data + b * strides[0] + h * strides[1] + i * strides[2];
          copy.insert(copy.end(), row, row + kWidth);
        }
      }
    }
    copied.storage.push_back(std::move(copy));
    ConstTensor RandomCase::*const tensor = part == 0   ? &RandomCase::q
                                            : part == 1 ? &RandomCase::k
                                                        : &RandomCase::v;
    strided.*tensor = {data, shape, strides};
    copied.*tensor = {copied.storage.back().data(), shape};
  }
  for (RandomCase* c : {&strided, &copied}) {
    c->options = {.causal = Causal::top_left()};
    c->out_shape = shape;
    c->lse_shape = {kBatch, kHeads, kTokens};
    c->weights_shape = {kBatch, kHeads, kTokens, kTokens};
  }
  const Result a = run(strided, context_);
  const Result b = run(copied, context_);
  EXPECT_EQ(a.out, b.out);
  EXPECT_EQ(a.weights, b.weights);

  // Output rows interleaved by head, (B, N, H, d).
  std::vector<float> interleaved(a.out.size(), kNaN);
  const Dims out_strides{kTokens * kHeads * kWidth, kWidth, kHeads * kWidth, 1};
  ASSERT_TRUE(attention(strided.q, strided.k, strided.v, strided.options,
                        {.out = {interleaved.data(), shape, out_strides}}, context_)
                  .ok());
  size_t at = 0;
  for (int64_t b_ = 0; b_ < kBatch; ++b_) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < kTokens; ++i) {
        for (int64_t d = 0; d < kWidth; ++d, ++at) {
          const auto index = static_cast<size_t>(b_ * out_strides[0] + h * out_strides[1] +
                                                 i * out_strides[2] + d);
          ASSERT_EQ(interleaved[index], a.out[at]);
        }
      }
    }
  }
}

// The figures that the articles print, here without a golden file.
TEST_P(AttentionOnTarget, UniformScoresGivePrintedRows) {
  const std::vector<float> zeros(4 * 8);
  const Dims shape{1, 1, 4, 8};
  std::vector<float> out(zeros.size());
  std::vector<float> weights(16);
  ASSERT_TRUE(attention({zeros.data(), shape}, {zeros.data(), shape}, {zeros.data(), shape},
                        {.causal = Causal::top_left()},
                        {.out = {out.data(), shape}, .weights = {weights.data(), {1, 1, 4, 4}}},
                        context_)
                  .ok());
  const float third = 1.0F / 3.0F;
  const std::vector<float> expected = {1,     0,     0,     0, .5F,  .5F,  0,    0,
                                       third, third, third, 0, .25F, .25F, .25F, .25F};
  for (size_t i = 0; i < weights.size(); ++i) {
    // What is hidden is exactly 0.
    EXPECT_NEAR(weights[i], expected[i], expected[i] == 0.0F ? 0.0F : 1e-7F);
  }
}

TEST_P(AttentionOnTarget, EmptyExtents) {
  const std::vector<float> data(2 * 2 * 3 * 4, 1.0F);
  const Dims q_shape{2, 2, 3, 4};
  std::vector<float> out(data.size(), kNaN);
  std::vector<float> lse(12, kNaN);
  // No keys: nothing is seen.
  ASSERT_TRUE(attention({data.data(), q_shape}, {nullptr, {2, 2, 0, 4}}, {nullptr, {2, 2, 0, 4}},
                        {}, {.out = {out.data(), q_shape}, .lse = {lse.data(), {2, 2, 3}}},
                        context_)
                  .ok());
  EXPECT_EQ(out, std::vector<float>(out.size(), 0.0F));
  EXPECT_EQ(lse, std::vector<float>(lse.size(), -kInf));
  // No queries, no batch, no value columns: nothing to write.
  EXPECT_TRUE(attention({nullptr, {2, 2, 0, 4}}, {data.data(), q_shape}, {data.data(), q_shape}, {},
                        {.out = {nullptr, {2, 2, 0, 4}}}, context_)
                  .ok());
  EXPECT_TRUE(attention({nullptr, {0, 2, 3, 4}}, {nullptr, {0, 2, 3, 4}}, {nullptr, {0, 2, 3, 4}},
                        {}, {.out = {nullptr, {0, 2, 3, 4}}}, context_)
                  .ok());
  EXPECT_TRUE(attention({data.data(), q_shape}, {data.data(), q_shape}, {nullptr, {2, 2, 3, 0}}, {},
                        {.out = {nullptr, {2, 2, 3, 0}}}, context_)
                  .ok());
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, AttentionOnTarget,
                         ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST(Attention, RepeatedCallsKeepTheirScratch) {
  const RandomCase c = random_case(3);
  Context context(2);
  run(c, context);
  const size_t bytes = context.scratch_bytes();
  EXPECT_GT(bytes, 0U);
  for (int i = 0; i < 5; ++i) run(c, context);
  EXPECT_EQ(context.scratch_bytes(), bytes);
}

// Extra memory does not depend on the number of keys: an N x N matrix never exists.
TEST(Attention, ScratchIsIndependentOfTheSequenceLength) {
  size_t bytes[2] = {};
  for (const int64_t tokens : {1024, 4096}) {
    Context context(1);
    Random random(1);
    const Dims shape{1, 1, tokens, 64};
    const std::vector<float> data = random.floats(shape.elements());
    std::vector<float> out(data.size());
    ASSERT_TRUE(attention({data.data(), shape}, {data.data(), shape}, {data.data(), shape}, {},
                          {.out = {out.data(), shape}}, context)
                    .ok());
    bytes[tokens == 4096] = context.scratch_bytes();
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LT(bytes[1], 8U << 20);
}

}  // namespace
}  // namespace multihead
