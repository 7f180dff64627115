// Compares gradients of calls divided among ranks (here threads) with one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "multihead/attention_backward.h"
#include "multihead/distributed.h"
#include "support/packed_case.h"
#include "support/random_backward.h"
#include "support/random_case.h"
#include "support/sharded_case.h"
#include "support/thread_ranks.h"

namespace multihead::distributed {
namespace {

using testing::empty_gradients;
using testing::gradient_views;
using testing::Gradients;
using testing::poisoned;
using testing::Random;
using testing::RandomCase;
using testing::RowList;

constexpr testing::CaseLimits kBackwardLimits{.max_queries = 30, .max_keys = 60, .max_width = 20};

// Rows of (lists, rows, width).
std::vector<float> rows_of(const std::vector<float>& whole, int64_t rows, int64_t width,
                           const RowList& chosen) {
  std::vector<float> result;
  for (int64_t at = 0; at < static_cast<int64_t>(whole.size()); at += rows * width) {
    for (const int64_t row : chosen) {
      const auto first = whole.begin() + at + row * width;
      result.insert(result.end(), first, first + width);
    }
  }
  return result;
}

void expect_near(const char* name, const std::vector<float>& got,
                 const std::vector<float>& expected, double allowed) {
  ASSERT_EQ(got.size(), expected.size()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], allowed) << name << "[" << i << "]";
  }
}

void add(std::vector<float>& sum, const std::vector<float>& part) {
  sum.resize(part.size());
  for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

double largest_of(const Gradients& g) {
  double largest = 1.0;
  for (const std::vector<float>* values : {&g.d_q, &g.d_k, &g.d_v, &g.d_bias}) {
    for (const float value : *values) {
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
  }
  return largest;
}

struct WholeCall {
  RandomCase c;
  std::vector<float> out, lse, d_out;
  Gradients gradients;

  WholeCall(uint64_t seed, Method method) : c(random_case(seed, kBackwardLimits)) {
    testing::raise_lowest_biases(c);
    if (method == Method::kHeads) testing::share_along_queries(c);
    d_out = Random(seed + 77).floats(c.out_shape.elements());
    out = poisoned(c.out_shape.elements());
    lse = poisoned(c.lse_shape.elements());
    gradients = empty_gradients(c);
    Context context(1);
    Status status = multihead::attention(
        c.q, c.k, c.v, c.options,
        {.out = Tensor(out.data(), c.out_shape), .lse = {lse.data(), c.lse_shape}}, context);
    EXPECT_TRUE(status.ok()) << status.message();
    status = multihead::attention_backward(
        c.q, c.k, c.v, c.options,
        {.out = ConstTensor(out.data(), c.out_shape), .lse = {lse.data(), c.lse_shape}},
        ConstTensor(d_out.data(), c.out_shape), gradient_views(c, gradients), context);
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

std::vector<Gradients> run(const WholeCall& whole, const testing::Divided& divided) {
  std::vector<Gradients> results(static_cast<size_t>(divided.ranks()));
  const RandomCase& c = whole.c;
  testing::in_ranks(divided.ranks(), {}, [&](Communicator& communicator) {
    Context context(1);
    const auto rank = static_cast<size_t>(communicator.rank());
    const RowList& queries = divided.queries[rank];
    const RandomCase own = testing::shard_of(c, queries, divided.keys[rank]);
    const int64_t rows = c.q.shape[2], width = c.out_shape[3];
    const std::vector<float> out = rows_of(whole.out, rows, width, queries),
                             d_out = rows_of(whole.d_out, rows, width, queries),
                             lse = rows_of(whole.lse, rows, 1, queries);
    results[rank] = empty_gradients(own);
    const Status status = attention_backward(
        own.q, own.k, own.v, own.options,
        {.out = ConstTensor(out.data(), own.out_shape), .lse = {lse.data(), own.lse_shape}},
        ConstTensor(d_out.data(), own.out_shape), gradient_views(own, results[rank]),
        divided.sharding, communicator, context);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  return results;
}

void expect_gradients_of_one_process(Method method, uint64_t seed) {
  const WholeCall whole(seed, method);
  const RandomCase& c = whole.c;
  SCOPED_TRACE(c.description);
  Random random(seed + 999);
  int ranks = static_cast<int>(random.integer(1, 5));
  if (method == Method::kHeads) {
    ranks = std::min(ranks, static_cast<int>(std::max<int64_t>(1, c.k.shape[1])));
  }
  const testing::Divided divided =
      testing::divide(random, c.q.shape[2], c.k.shape[2], method, ranks);
  SCOPED_TRACE(std::to_string(divided.ranks()) + " ranks" +
               (divided.sharding.layout == Layout::kZigzag ? ", zigzag" : ""));
  const std::vector<Gradients> parts = run(whole, divided);
  double relative = 1e-5;
  for (const float lse : whole.lse) {
    if (std::isfinite(lse)) {
      relative = std::max(relative, 4e-7 * std::abs(static_cast<double>(lse)));
    }
  }
  const double allowed = relative * largest_of(whole.gradients);
  const Gradients& expected = whole.gradients;
  const ConstTensor& bias = c.options.bias;
  const bool shares_bias =
      bias.given() && bias.shape[bias.shape.rank() - 2] == 1 && c.q.shape[2] != 1;
  Gradients sums;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const Gradients& part = parts[rank];
    const RowList &queries = divided.queries[rank], &keys = divided.keys[rank];
    const int64_t width = c.q.shape[3], value_dim = c.v.shape[3];
    expect_near("d_q", part.d_q, rows_of(expected.d_q, c.q.shape[2], width, queries), allowed);
    expect_near("d_k", part.d_k, rows_of(expected.d_k, c.k.shape[2], width, keys), allowed);
    expect_near("d_v", part.d_v, rows_of(expected.d_v, c.k.shape[2], value_dim, keys), allowed);
    add(sums.d_sinks, part.d_sinks);
    add(sums.d_q_gain, part.d_q_gain);
    add(sums.d_k_gain, part.d_k_gain);
    if (shares_bias) {
      add(sums.d_bias, part.d_bias);
    } else if (bias.given()) {
      const int axis = bias.shape.rank() - 1;
      expect_near("d_bias", part.d_bias,
                  rows_of(expected.d_bias, bias.shape[axis - 1], bias.shape[axis], queries),
                  allowed);
    }
  }
  if (shares_bias) expect_near("d_bias", sums.d_bias, expected.d_bias, allowed);
  expect_near("d_sinks", sums.d_sinks, expected.d_sinks, 8 * allowed);
  expect_near("d_q_gain", sums.d_q_gain, expected.d_q_gain, 8 * allowed);
  expect_near("d_k_gain", sums.d_k_gain, expected.d_k_gain, 8 * allowed);
  if (seed % 8 != 0) return;
  const std::vector<Gradients> again = run(whole, divided);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    EXPECT_TRUE(again[rank].same_as(parts[rank]));
  }
}

class BackwardRanks : public ::testing::TestWithParam<Method> {};

TEST_P(BackwardRanks, EqualOneProcess) {
  for (const uint64_t seed : testing::random_seeds(300)) {
    expect_gradients_of_one_process(GetParam(), seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, BackwardRanks,
                         ::testing::Values(Method::kRing, Method::kAllGather, Method::kHeads));

// Gradients of packed sequences, for a rank's rows or for all rows.
struct PackedGradients {
  std::vector<float> d_q, d_k, d_v, d_sinks, d_gain;
};

template <class Run>
Status packed_call(const testing::PackedCase& c, const RowList& queries, const RowList& keys,
                   const std::vector<float>& out, const std::vector<float>& lse,
                   const std::vector<float>& d_out, PackedGradients& to, const Run& run) {
  const auto rows = static_cast<int64_t>(queries.size());
  const auto key_rows = static_cast<int64_t>(keys.size());
  const int64_t out_width = c.heads * c.value_dim;
  const std::vector<float> q = testing::rows_of(c.q, c.heads * c.width, queries),
                           k = testing::rows_of(c.k, c.kv_heads * c.width, keys),
                           v = testing::rows_of(c.v, c.kv_heads * c.value_dim, keys),
                           own_out = testing::rows_of(out, out_width, queries),
                           own_d_out = testing::rows_of(d_out, out_width, queries),
                           own_lse = rows_of(lse, c.queries(), 1, queries);
  const Dims q_shape{rows, c.heads, c.width}, k_shape{key_rows, c.kv_heads, c.width},
      v_shape{key_rows, c.kv_heads, c.value_dim}, out_shape{rows, c.heads, c.value_dim};
  const AttentionOptions options = c.options();
  to = {.d_q = poisoned(q_shape.elements()),
        .d_k = poisoned(k_shape.elements()),
        .d_v = poisoned(v_shape.elements()),
        .d_sinks = poisoned(options.sinks.empty() ? 0 : c.heads),
        .d_gain = poisoned(options.qk_norm.enabled ? c.width : 0)};
  return run(ConstTensor(q.data(), q_shape), ConstTensor(k.data(), k_shape),
             ConstTensor(v.data(), v_shape),
             AttentionResults{.out = ConstTensor(own_out.data(), out_shape),
                              .lse = {own_lse.data(), {c.heads, rows}}},
             ConstTensor(own_d_out.data(), out_shape),
             AttentionGradients{.d_q = {to.d_q.data(), q_shape},
                                .d_k = {to.d_k.data(), k_shape},
                                .d_v = {to.d_v.data(), v_shape},
                                .d_sinks = to.d_sinks,
                                .d_q_gain = to.d_gain});
}

void expect_packed_equals_one_process(Method method, uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const testing::PackedCase c(seed);
  const AttentionOptions options = c.options();
  Context alone(1);
  std::vector<float> out(static_cast<size_t>(c.queries() * c.heads * c.value_dim));
  std::vector<float> lse(static_cast<size_t>(c.queries() * c.heads));
  Status status = multihead::attention_varlen(
      ConstTensor(c.q.data(), {c.queries(), c.heads, c.width}),
      ConstTensor(c.k.data(), {c.keys(), c.kv_heads, c.width}),
      ConstTensor(c.v.data(), {c.keys(), c.kv_heads, c.value_dim}), c.cu_q, c.cu_k, options,
      {.out = Tensor(out.data(), {c.queries(), c.heads, c.value_dim}),
       .lse = {lse.data(), {c.heads, c.queries()}}},
      alone);
  ASSERT_TRUE(status.ok()) << status.message();
  Random random(seed + 5);
  const std::vector<float> d_out = random.floats(static_cast<int64_t>(out.size()));
  PackedGradients whole;
  const RowList all_queries = testing::rows_of({{0, c.queries()}});
  status = packed_call(c, all_queries, testing::rows_of({{0, c.keys()}}), out, lse, d_out, whole,
                       [&](const auto&... arguments) {
                         const auto call = [&](const auto& q, const auto& k, const auto& v,
                                               const auto& results, const auto& d, const auto& g) {
                           return multihead::attention_varlen_backward(
                               q, k, v, c.cu_q, c.cu_k, options, results, d, g, alone);
                         };
                         return call(arguments...);
                       });
  ASSERT_TRUE(status.ok()) << status.message();
  int ranks = static_cast<int>(random.integer(2, 4));
  if (method == Method::kHeads) ranks = std::min(ranks, static_cast<int>(c.kv_heads));
  const testing::Divided divided = testing::divide(random, c.queries(), c.keys(), method, ranks);
  std::vector<PackedGradients> parts(static_cast<size_t>(divided.ranks()));
  testing::in_ranks(divided.ranks(), {}, [&](Communicator& communicator) {
    Context context(1);
    const auto rank = static_cast<size_t>(communicator.rank());
    const Status of_rank =
        packed_call(c, divided.queries[rank], divided.keys[rank], out, lse, d_out, parts[rank],
                    [&](const auto& q, const auto& k, const auto& v, const auto& results,
                        const auto& d, const auto& g) {
                      return attention_varlen_backward(q, k, v, c.cu_q, c.cu_k, options, results, d,
                                                       g, divided.sharding, communicator, context);
                    });
    EXPECT_TRUE(of_rank.ok()) << of_rank.message();
  });
  constexpr double kAllowed = 5e-5;
  PackedGradients sums;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const RowList &queries = divided.queries[rank], &keys = divided.keys[rank];
    expect_near("d_q", parts[rank].d_q, testing::rows_of(whole.d_q, c.heads * c.width, queries),
                kAllowed);
    expect_near("d_k", parts[rank].d_k, testing::rows_of(whole.d_k, c.kv_heads * c.width, keys),
                kAllowed);
    expect_near("d_v", parts[rank].d_v, testing::rows_of(whole.d_v, c.kv_heads * c.value_dim, keys),
                kAllowed);
    add(sums.d_sinks, parts[rank].d_sinks);
    add(sums.d_gain, parts[rank].d_gain);
  }
  expect_near("d_sinks", sums.d_sinks, whole.d_sinks, 4 * kAllowed);
  expect_near("d_q_gain", sums.d_gain, whole.d_gain, 4 * kAllowed);
}

TEST_P(BackwardRanks, EqualOneProcessOnPackedSequences) {
  for (const uint64_t seed : testing::random_seeds(100)) {
    expect_packed_equals_one_process(GetParam(), seed);
    if (HasFailure()) return;
  }
}

TEST(BackwardRanks, RefusesDecoding) {
  const WholeCall whole(3, Method::kRing);
  Random random(1);
  testing::Divided divided =
      testing::divide(random, whole.c.q.shape[2], whole.c.k.shape[2], Method::kDecode, 2);
  testing::in_ranks(2, {}, [&](Communicator& communicator) {
    Context context(1);
    const auto rank = static_cast<size_t>(communicator.rank());
    const RandomCase own = testing::shard_of(whole.c, divided.queries[rank], divided.keys[rank]);
    Gradients got = empty_gradients(own);
    const Status status =
        attention_backward(own.q, own.k, own.v, own.options,
                           {.out = ConstTensor(whole.out.data(), own.out_shape),
                            .lse = {whole.lse.data(), own.lse_shape}},
                           ConstTensor(whole.d_out.data(), own.out_shape), gradient_views(own, got),
                           divided.sharding, communicator, context);
    EXPECT_EQ(status.argument(), "sharding.method");
    EXPECT_TRUE(got.same_as(empty_gradients(own)));
  });
}

}  // namespace
}  // namespace multihead::distributed
