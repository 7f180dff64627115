// Compares both forms of multi-head latent attention with the oracle on keys and values in double.
#include "multihead/latent_attention.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "reference/reference_attention.h"
#include "support/closeness.h"
#include "support/random_case.h"
#include "support/random_module.h"
#include "support/simd_targets.h"

namespace multihead {
namespace {

using testing::largest_difference;
using testing::Random;
using testing::sixteenths;

struct Sizes {
  int64_t batch = 2, heads = 3, queries = 5, keys = 23, nope = 12, rope = 8, rank = 20, value = 10;
};

struct Latent {
  Sizes s;
  std::vector<float> q_nope, q_rope, latent, k_rope, w_uk, w_uv, kv_b_proj;
  Context context{2};

  explicit Latent(uint64_t seed, const Sizes& sizes = {}) : s(sizes) {
    Random random(seed);
    q_nope = sixteenths(random, s.batch * s.heads * s.queries * s.nope);
    q_rope = sixteenths(random, s.batch * s.heads * s.queries * s.rope);
    latent = sixteenths(random, s.batch * s.keys * s.rank);
    k_rope = sixteenths(random, s.batch * s.keys * s.rope);
    w_uk = sixteenths(random, s.heads * s.nope * s.rank);
    w_uv = sixteenths(random, s.heads * s.value * s.rank);
  }

  LatentAttentionInputs inputs() const {
    return {.q_nope = {q_nope.data(), {s.batch, s.heads, s.queries, s.nope}},
            .q_rope = {q_rope.data(), {s.batch, s.heads, s.queries, s.rope}},
            .latent = {latent.data(), {s.batch, s.keys, s.rank}},
            .k_rope = {k_rope.data(), {s.batch, s.keys, s.rope}},
            .w_uk = {w_uk.data(), {s.heads, s.nope, s.rank}},
            .w_uv = {w_uv.data(), {s.heads, s.value, s.rank}}};
  }
  // Returns inputs with both matrices as views of kv_b_proj: for each head the rows of W_UK, then
  // the rows of W_UV.
  LatentAttentionInputs inputs_of_kv_b_proj() {
    kv_b_proj.clear();
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t uk = h * s.nope * s.rank, uv = h * s.value * s.rank;
      kv_b_proj.insert(kv_b_proj.end(), w_uk.begin() + uk, w_uk.begin() + uk + s.nope * s.rank);
      kv_b_proj.insert(kv_b_proj.end(), w_uv.begin() + uv, w_uv.begin() + uv + s.value * s.rank);
    }
    const Dims strides{(s.nope + s.value) * s.rank, s.rank, 1};
    LatentAttentionInputs views = inputs();
    views.w_uk = {kv_b_proj.data(), {s.heads, s.nope, s.rank}, strides};
    views.w_uv = {kv_b_proj.data() + s.nope * s.rank, {s.heads, s.value, s.rank}, strides};
    return views;
  }
  Dims out_shape() const { return {s.batch, s.heads, s.queries, s.value}; }
  Dims lse_shape() const { return {s.batch, s.heads, s.queries}; }
  Dims weights_shape() const { return {s.batch, s.heads, s.queries, s.keys}; }

  // Computes the first key columns of a row, W c, exactly.
  static void multiply(const float* matrix, const float* c, int64_t rows, int64_t rank, float* to) {
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r) {
        sum += static_cast<double>(matrix[row * rank + r]) * static_cast<double>(c[r]);
      }
      to[row] = static_cast<float>(sum);
    }
  }

  reference::ReferenceOutputs expected(AttentionOptions options) const {
    const int64_t width = s.nope + s.rope;
    std::vector<float> q, k, v;
    for (int64_t row = 0; row < s.batch * s.heads * s.queries; ++row) {
      q.insert(q.end(), q_nope.begin() + row * s.nope, q_nope.begin() + (row + 1) * s.nope);
      q.insert(q.end(), q_rope.begin() + row * s.rope, q_rope.begin() + (row + 1) * s.rope);
    }
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t h = 0; h < s.heads; ++h) {
        for (int64_t j = 0; j < s.keys; ++j) {
          const float* const c = latent.data() + (b * s.keys + j) * s.rank;
          std::vector<float> row(static_cast<size_t>(s.nope));
          multiply(w_uk.data() + h * s.nope * s.rank, c, s.nope, s.rank, row.data());
          k.insert(k.end(), row.begin(), row.end());
          const auto turned = k_rope.begin() + (b * s.keys + j) * s.rope;
          k.insert(k.end(), turned, turned + s.rope);
          row.resize(static_cast<size_t>(s.value));
          multiply(w_uv.data() + h * s.value * s.rank, c, s.value, s.rank, row.data());
          v.insert(v.end(), row.begin(), row.end());
        }
      }
    }
    return reference::attention({q.data(), {s.batch, s.heads, s.queries, width}},
                                {k.data(), {s.batch, s.heads, s.keys, width}},
                                {v.data(), {s.batch, s.heads, s.keys, s.value}}, options, true);
  }
};

void expect_equals_oracle(Latent& m, const AttentionOptions& options) {
  const reference::ReferenceOutputs expected = m.expected(options);
  for (const LatentForm form : {LatentForm::kExpanded, LatentForm::kAbsorbed}) {
    for (const bool one_matrix : {false, true}) {
      constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> out(expected.out.size(), kNaN), lse(expected.lse.size(), kNaN);
      std::vector<float> weights(expected.weights.size(), kNaN);
      const Status status =
          latent_attention(one_matrix ? m.inputs_of_kv_b_proj() : m.inputs(), form, options,
                           {.out = {out.data(), m.out_shape()},
                            .lse = {lse.data(), m.lse_shape()},
                            .weights = {weights.data(), m.weights_shape()}},
                           m.context);
      ASSERT_TRUE(status.ok()) << status.message();
      SCOPED_TRACE(form == LatentForm::kExpanded ? "expanded" : "absorbed");
      // Tolerance for scores up to about 10 and values up to about 5.
      EXPECT_LE(largest_difference(out, expected.out), 2e-5);
      EXPECT_LE(largest_difference(lse, expected.lse), 1e-5);
      EXPECT_LE(largest_difference(weights, expected.weights), 5e-6);
    }
  }
}

class LatentOnTarget : public ::testing::TestWithParam<int64_t> {
 protected:
  testing::UseSimdTarget use_{GetParam()};
};

TEST_P(LatentOnTarget, BothFormsEqualTheOracle) {
  Latent m(1);
  expect_equals_oracle(m, {});
  expect_equals_oracle(m, {.scale = 0.05F, .causal = Causal::bottom_right()});
  const std::vector<int32_t> lengths{23, 9};
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F};
  std::vector<float> slopes(3);
  alibi_slopes(slopes);
  Random random(2);
  const std::vector<float> bias = random.floats(5 * 23);
  const std::vector<uint8_t> mask = [&] {
    std::vector<uint8_t> values(2 * 23);
    for (uint8_t& value : values) value = random.chance(0.7) ? 1 : 0;
    return values;
  }();
  expect_equals_oracle(m, {.causal = Causal::bottom_right_of_length(),
                           .window = {6, -1},
                           .mask = {mask.data(), {2, 1, 1, 23}},
                           .bias = {bias.data(), {5, 23}},
                           .kv_lengths = lengths,
                           .alibi_slopes = slopes,
                           .softcap = 4.0F,
                           .sinks = sinks});
}

TEST_P(LatentOnTarget, OtherSizes) {
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1, 1, 2, 1, 1}, Sizes{1, 4, 1, 300, 16, 8, 32, 16},
                             Sizes{1, 2, 70, 70, 7, 4, 33, 20}, Sizes{2, 2, 3, 9, 5, 0, 8, 4},
                             Sizes{1, 2, 3, 0, 5, 2, 8, 4}, Sizes{1, 2, 0, 3, 5, 2, 8, 4}}) {
    Latent m(3, sizes);
    expect_equals_oracle(m, {.causal = Causal::bottom_right()});
  }
}

INSTANTIATE_TEST_SUITE_P(EveryTarget, LatentOnTarget, ::testing::ValuesIn(testing::simd_targets()),
                         [](const auto& param) { return testing::simd_target_name(param.param); });

TEST(LatentAttention, RefusesWhatDoesNotFit) {
  Latent m(4);
  using Change = std::function<void(LatentAttentionInputs&, AttentionOptions&, AttentionOutputs&)>;
  std::vector<float> out(static_cast<size_t>(m.out_shape().elements()), 42.0F);
  const auto expect_refused = [&](const char* argument, const Change& change) {
    for (const LatentForm form : {LatentForm::kExpanded, LatentForm::kAbsorbed}) {
      LatentAttentionInputs inputs = m.inputs();
      AttentionOptions options;
      AttentionOutputs outputs{.out = {out.data(), m.out_shape()}};
      change(inputs, options, outputs);
      const Status status = latent_attention(inputs, form, options, outputs, m.context);
      EXPECT_FALSE(status.ok()) << argument;
      EXPECT_EQ(status.argument(), argument) << status.message();
      EXPECT_EQ(out, std::vector<float>(out.size(), 42.0F));
    }
  };
  using In = LatentAttentionInputs;
  using Options = AttentionOptions;
  using Out = AttentionOutputs;
  expect_refused("q_nope", [](In& in, Options&, Out&) { in.q_nope.shape = {3, 5, 12}; });
  expect_refused("q_rope", [](In& in, Options&, Out&) { in.q_rope.shape[2] = 4; });
  expect_refused("latent", [](In& in, Options&, Out&) { in.latent.shape[0] = 1; });
  expect_refused("k_rope", [](In& in, Options&, Out&) { in.k_rope.shape[2] = 7; });
  expect_refused("w_uk", [](In& in, Options&, Out&) { in.w_uk.shape[2] = 19; });
  expect_refused("w_uv", [](In& in, Options&, Out&) { in.w_uv.shape[0] = 2; });
  expect_refused("w_uv", [](In& in, Options&, Out&) { in.w_uv.data = nullptr; });
  expect_refused("out", [](In&, Options&, Out& o) { o.out.shape[3] = 9; });
  expect_refused("out", [](In&, Options&, Out& o) { o.out.dtype = DType::kF16; });
  expect_refused("rope", [](In&, Options& o, Out&) { o.rope.style = Rope::Style::kInterleaved; });
  expect_refused("qk_norm", [](In&, Options& o, Out&) { o.qk_norm.enabled = true; });
  expect_refused("softcap", [](In&, Options& o, Out&) { o.softcap = -1.0F; });
  const Status unknown = latent_attention(m.inputs(), static_cast<LatentForm>(2), {},
                                          {.out = {out.data(), m.out_shape()}}, m.context);
  EXPECT_EQ(unknown.message(), "form: expected one of its 2 values, got number 2");
  EXPECT_EQ(out, std::vector<float>(out.size(), 42.0F));
  expect_refused("captures", [](In&, Options&, Out& o) {
    static const ScoreCapture capture;
    o.captures = {&capture, 1};
  });
}

}  // namespace
}  // namespace multihead
