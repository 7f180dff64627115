// The backward kernels through mma.sync in the emulator, compared with the Eigen oracle on random
// calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/backward_params.h"
#include "cuda/emulated_forward.h"
#include "cuda/emulated_mma_backward.h"
#include "cuda/emulator/memory.h"
#include "cuda/kernels.h"
#include "cuda/mapped_case.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "reference/reference_attention.h"
#include "reference/reference_backward.h"
#include "rules/dropout_mask.h"
#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using reference::ReferenceGradients;
using reference::ReferenceOutputs;

struct Sums {
  std::vector<double> d_q, d_k, d_v;
};

// Sums of the absolute values of the terms of each gradient. Terms that are not finite are left
// out.
struct AbsoluteSums {
  Sums terms;
  Sums factors;  // computed with weights and score gradients of 1
};

// The elements of a tensor (B, H, N, d), in order and without gaps.
std::vector<double> dense(const ConstAnyTensor& x) {
  std::vector<double> result;
  const Dims& shape = x.shape;
  for (int64_t row = 0; shape[3] > 0 && row < shape.elements() / shape[3]; ++row) {
    const int64_t head = row / shape[2];
    const int64_t start = head / shape[1] * x.strides[0] + head % shape[1] * x.strides[1] +
                          row % shape[2] * x.strides[2];
    for (int64_t i = 0; i < shape[3]; ++i) {
      result.push_back(static_cast<double>(multihead::testing::element(x, start + i)));
    }
  }
  return result;
}

AbsoluteSums absolute_sums(const RandomCase& c, const ConstAnyTensor& d_out,
                           const ReferenceOutputs& exact, const std::vector<float>& delta) {
  const auto width = static_cast<size_t>(c.q.shape[3]);
  const auto value_dim = static_cast<size_t>(c.v.shape[3]);
  const auto queries = static_cast<size_t>(c.q.shape[2]), keys = static_cast<size_t>(c.k.shape[2]);
  const std::vector<double> q = dense(c.q), k = dense(c.k), v = dense(c.v), g = dense(d_out);
  const Dropout& dropout = c.options.dropout;
  const double survivor = 1.0 / (1.0 - static_cast<double>(dropout.probability));
  const uint64_t threshold = rules::dropout_threshold(dropout.probability);
  AbsoluteSums sums;
  for (Sums* const to : {&sums.terms, &sums.factors}) {
    *to = {.d_q = std::vector<double>(q.size()),
           .d_k = std::vector<double>(k.size()),
           .d_v = std::vector<double>(v.size())};
  }
  const auto add = [](double& to, double term) {
    if (std::isfinite(term)) to += std::abs(term);
  };
  const double scale = scale_of(c);
  for (size_t pair = 0; pair < exact.weights.size(); ++pair) {
    const double weight = exact.weights[pair];
    if (weight == 0.0) continue;
    const size_t row = pair / keys, head = row / queries;
    const int64_t of_batch = static_cast<int64_t>(head) / c.q.shape[1];
    const int64_t of_head = static_cast<int64_t>(head) % c.q.shape[1];
    const int64_t kv_head = of_head / (c.q.shape[1] / c.k.shape[1]);
    const size_t key = static_cast<size_t>(of_batch * c.k.shape[1] + kv_head) * keys + pair % keys;
    const bool kept =
        rules::dropout_keeps(dropout.seed, of_batch, of_head, static_cast<int64_t>(row % queries),
                             static_cast<int64_t>(pair % keys), threshold);
    double d_weight = 0.0;
    for (size_t x = 0; kept && x < value_dim; ++x) {
      d_weight += survivor * g[row * value_dim + x] * v[key * value_dim + x];
    }
    const double d_score = weight * (d_weight - static_cast<double>(delta[row]));
    for (size_t x = 0; x < width; ++x) {
      const size_t of_q = row * width + x, of_k = key * width + x;
      add(sums.terms.d_q[of_q], scale * d_score * k[of_k]);
      add(sums.factors.d_q[of_q], scale * k[of_k]);
      add(sums.terms.d_k[of_k], scale * d_score * q[of_q]);
      add(sums.factors.d_k[of_k], scale * q[of_q]);
    }
    for (size_t x = 0; kept && x < value_dim; ++x) {
      const size_t of_v = key * value_dim + x;
      add(sums.terms.d_v[of_v], survivor * weight * g[row * value_dim + x]);
      add(sums.factors.d_v[of_v], g[row * value_dim + x]);
    }
  }
  return sums;
}

// The kernels round weights and score gradients to the type of q, k and v before they multiply
// them. The error is at most 2^-8 (bf16) or 2^-11 (f16) of the number, or 2^-25, half of the
// smallest f16 number. In addition there are f32 errors of scores and LSE, relative to a weight,
// and of sums.
void expect_equals_oracle(const RandomCase& c, const ConstAnyTensor& d_out, int64_t gap) {
  const ReferenceOutputs exact = reference::attention(c.q, c.k, c.v, c.options);
  const ReferenceGradients expected =
      reference::attention_backward(c.q, c.k, c.v, c.options, d_out);
  const AbsoluteSums sums = absolute_sums(c, d_out, exact, deltas(c, d_out, exact));
  const MmaGradients got = run_backward_mma(c, d_out, exact, gap);
  const bool is_f16 = c.v.dtype == DType::kF16;
  const double relative = is_f16 ? 0x1p-11 : 0x1p-8;
  double of_f32 = 1e-5;
  for (const double lse : exact.lse) {
    if (std::isfinite(lse)) of_f32 = std::max(of_f32, 2e-7 * std::abs(lse));
  }
  double largest = 1.0;
  for (const auto* const all : {&expected.d_q, &expected.d_k, &expected.d_v}) {
    for (const double value : *all) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    }
  }
  const auto expect = [&](const char* name, const std::vector<float>& values,
                          const std::vector<double>& of_oracle, const std::vector<double>& of_terms,
                          const std::vector<double>& of_factors) {
    ASSERT_EQ(values.size(), of_oracle.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<double>(values[i]);
      if (value == of_oracle[i]) continue;
      // A result may be NaN, inf or -inf, depending on the rounding of its factors.
      if (!std::isfinite(value) && !std::isfinite(of_oracle[i])) continue;
      const double allowed =
          relative * of_terms[i] + (is_f16 ? 0x1p-25 * of_factors[i] : 0.0) + of_f32 * largest;
      ASSERT_LE(std::abs(value - of_oracle[i]), allowed)
          << name << "[" << i << "] is " << value << ", not " << of_oracle[i];
    }
  };
  expect("d_q", got.d_q, expected.d_q, sums.terms.d_q, sums.factors.d_q);
  expect("d_k", got.d_k, expected.d_k, sums.terms.d_k, sums.factors.d_k);
  expect("d_v", got.d_v, expected.d_v, sums.terms.d_v, sums.factors.d_v);
}

TEST(CudaBackwardMma, EqualsOracleOnRandomCalls) {
  for (const uint64_t seed : multihead::testing::random_seeds(500)) {
    RandomCase c = half_case(seed, 90);
    Random random(seed + 77);
    const ConstAnyTensor d_out = aligned_rows(c, random, c.out_shape, c.q.dtype);
    SCOPED_TRACE(c.description);
    device().set_seed(seed);
    expect_equals_oracle(c, d_out, random.integer(0, 3));
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Lanes share the hash of four keys of the whole problem. Not every shard begins at such a key.
TEST(CudaBackwardMma, DropsTheWeightsOfAShardAsTheF32KernelsDo) {
  for (const uint64_t seed : multihead::testing::random_seeds(24)) {
    RandomCase c = half_case(seed, 40);
    Random random(seed);
    c.options = {};
    c.options.dropout = {.probability = 0.4F, .seed = seed};
    const ConstAnyTensor d_out = aligned_rows(c, random, c.out_shape, c.q.dtype);
    SCOPED_TRACE(c.description);
    const ReferenceOutputs exact = reference::attention(c.q, c.k, c.v, c.options);
    const auto first_key = static_cast<int64_t>(seed % 8);
    const MmaGradients got = run_backward_mma(c, d_out, exact, 0, first_key);
    const MmaGradients f32 = run_backward_mma(c, d_out, exact, 0, first_key, launch_backward_f32);
    const auto expect = [](const std::vector<float>& values, const std::vector<float>& expected) {
      float largest = 0.0F;
      for (const float value : expected) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], 0.03F * largest);
      }
    };
    expect(got.d_q, f32.d_q);
    expect(got.d_k, f32.d_k);
    expect(got.d_v, f32.d_v);
    if (HasFatalFailure()) return;
  }
}

// Steps of as many rows as a step may have, some of them visible to all rows of the other side, and
// windows that begin or end within a tile.
TEST(CudaBackwardMma, LongCallsHaveMasksWhereTheyNeedThem) {
  for (const uint64_t seed : multihead::testing::random_seeds(40)) {
    RandomCase c = half_case(seed, 150, 150);
    Random random(seed);
    AttentionOptions options;
    options.kv_lengths = c.options.kv_lengths;
    if (random.chance(0.5)) options.causal.alignment = Alignment::kBottomRight;
    if (random.chance(0.5)) options.window.left = random.integer(0, 120);
    if (random.chance(0.3)) options.window.right = random.integer(0, 120);
    c.options = options;
    const ConstAnyTensor d_out = aligned_rows(c, random, c.out_shape, c.q.dtype);
    SCOPED_TRACE("long: " + c.description);
    device().set_seed(seed);
    expect_equals_oracle(c, d_out, 0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Hidden rows may hold NaN and infinities without changing any gradient.
TEST(CudaBackwardMma, HidesNaN) {
  for (const uint64_t seed : multihead::testing::random_seeds(20)) {
    RandomCase c = half_case(seed, 90);
    Random random(seed);
    const ConstAnyTensor d_out = aligned_rows(c, random, c.out_shape, c.q.dtype);
    spoil(random.chance(0.5) ? c.k : c.v, c, random);
    if (random.chance(0.3)) spoil(random.chance(0.5) ? c.q : d_out, c, random);
    SCOPED_TRACE(c.description);
    expect_equals_oracle(c, d_out, 0);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

// Packed sequences through attention_varlen_backward(), which chooses these kernels.
TEST(CudaBackwardMma, PackedSequencesEqualThoseOfTheCpu) {
  for (const uint64_t seed : multihead::testing::random_seeds(40)) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const DType type = random.pick({DType::kF16, DType::kBF16});
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 3);
    const int64_t width = 8 * random.integer(1, 5), value_dim = 8 * random.integer(1, 5);
    std::vector<int32_t> cu_q{0}, cu_k{0};
    PackedSequences sequences;
    for (int64_t s = random.integer(1, 4); s > 0; --s) {
      const int64_t queries = random.integer(0, 40), keys = random.integer(0, 90);
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(queries));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(keys));
      sequences.max_queries = std::max(sequences.max_queries, queries);
      sequences.max_keys = std::max(sequences.max_keys, keys);
    }
    sequences.cu_q = cu_q;
    sequences.cu_k = cu_k;
    RandomCase c;  // owns the memory
    const auto rows = [&](int64_t count, int64_t of_heads, int64_t of_width) {
      const Dims shape{count, of_heads, of_width};
      return multihead::testing::stored(c, random.floats(shape.elements()), type, shape,
                                        contiguous_strides(shape));
    };
    const int64_t queries = cu_q.back(), keys = cu_k.back();
    const ConstAnyTensor q = rows(queries, heads, width), k = rows(keys, kv_heads, width);
    const ConstAnyTensor v = rows(keys, kv_heads, value_dim);
    const ConstAnyTensor d_out = rows(queries, heads, value_dim);
    AttentionOptions options;
    if (random.chance(0.5)) options.causal = Causal::bottom_right();
    if (random.chance(0.3)) options.window.left = random.integer(0, 50);
    if (random.chance(0.3)) options.dropout = {.probability = 0.3F, .seed = seed};
    if (random.chance(0.3)) options.softcap = 3.0F;

    std::vector<float> out(static_cast<size_t>(d_out.shape.elements()));
    std::vector<float> lse(static_cast<size_t>(queries * heads));
    Context context(1);
    ASSERT_TRUE(multihead::attention_varlen(
                    q, k, v, cu_q, cu_k, options,
                    {.out = Tensor(out.data(), d_out.shape), .lse = {lse.data(), {heads, queries}}},
                    context)
                    .ok());
    const AttentionResults results{.out = ConstTensor(out.data(), d_out.shape),
                                   .lse = {lse.data(), {heads, queries}}};
    struct Gradients {
      std::vector<float> d_q, d_k, d_v;
    };
    const auto empty = [&] {
      return Gradients{.d_q = std::vector<float>(static_cast<size_t>(q.shape.elements())),
                       .d_k = std::vector<float>(static_cast<size_t>(k.shape.elements())),
                       .d_v = std::vector<float>(static_cast<size_t>(v.shape.elements()))};
    };
    const auto views = [&](Gradients& g) {
      return AttentionGradients{.d_q = {g.d_q.data(), q.shape},
                                .d_k = {g.d_k.data(), k.shape},
                                .d_v = {g.d_v.data(), v.shape}};
    };
    Gradients cpu = empty(), g = empty();
    ASSERT_TRUE(multihead::attention_varlen_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                     views(cpu), context)
                    .ok());
    Mapping mapping;
    mapping.add_inputs(c);
    mapping.add(cu_q, Use::kInput, "cu_q");
    mapping.add(cu_k, Use::kInput, "cu_k");
    mapping.add(out, Use::kInput, "out");
    mapping.add(lse, Use::kInput, "lse");
    for (auto* const array : {&g.d_q, &g.d_k, &g.d_v}) mapping.add(*array, Use::kOutput, "d");
    uint64_t bytes = 0;
    ASSERT_TRUE(attention_varlen_backward_workspace(q, k, v, sequences, options, results, d_out,
                                                    views(g), bytes)
                    .ok());
    const MappedWorkspace workspace(bytes);
    device().set_seed(seed);
    const Status status = attention_varlen_backward(q, k, v, sequences, options, results, d_out,
                                                    views(g), workspace.get(), /*stream=*/nullptr);
    ASSERT_TRUE(status.ok()) << status.message();
    expect_no_findings();
    // The factor 16: terms are rounded before they are summed, and are larger than their sum.
    const double relative = 16.0 * (type == DType::kF16 ? 0x1p-11 : 0x1p-8);
    const auto expect_close = [&](const char* name, const std::vector<float>& got,
                                  const std::vector<float>& of_cpu) {
      float largest = 0.0F;
      for (const float value : of_cpu) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], of_cpu[i], relative * static_cast<double>(largest))
            << name << "[" << i << "]";
      }
    };
    expect_close("d_q", g.d_q, cpu.d_q);
    expect_close("d_k", g.d_k, cpu.d_k);
    expect_close("d_v", g.d_v, cpu.d_v);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace multihead::cuda::testing
