// Compares random calls of every method, divided among ranks (here threads), with one process.
#include "multihead/distributed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "support/random_case.h"
#include "support/sharded_case.h"
#include "support/special_values.h"
#include "support/thread_ranks.h"

namespace multihead::distributed {
namespace {

using testing::Divided;
using testing::in_ranks;
using testing::Random;
using testing::RandomCase;
using testing::RowList;

constexpr testing::CaseLimits kLimits{.max_queries = 40, .max_keys = 90, .max_width = 24};

struct Result {
  std::vector<float> out, lse;

  Result() = default;
  explicit Result(const RandomCase& c)
      : out(static_cast<size_t>(c.out_shape.elements()), kNaN),
        lse(static_cast<size_t>(c.lse_shape.elements()), kNaN) {}
  AttentionOutputs views(const RandomCase& c) {
    return {.out = Tensor(out.data(), c.out_shape), .lse = {lse.data(), c.lse_shape}};
  }
  bool operator==(const Result& other) const {
    return out.size() == other.out.size() && lse.size() == other.lse.size() &&
           (out.empty() || std::memcmp(out.data(), other.out.data(), 4 * out.size()) == 0) &&
           (lse.empty() || std::memcmp(lse.data(), other.lse.data(), 4 * lse.size()) == 0);
  }
};

std::vector<Result> run(const RandomCase& c, const Divided& divided) {
  const auto ranks = static_cast<int>(divided.queries.size());
  std::vector<Result> results(static_cast<size_t>(ranks));
  in_ranks(ranks, {}, [&](Communicator& communicator) {
    Context context(1);
    const auto rank = static_cast<size_t>(communicator.rank());
    const RandomCase shard = testing::shard_of(c, divided.queries[rank], divided.keys[rank]);
    const RandomCase& own = ranks == 1 ? c : shard;  // strides may change bits
    results[rank] = Result(own);
    const Status status = attention(own.q, own.k, own.v, own.options, results[rank].views(own),
                                    divided.sharding, communicator, context);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  return results;
}

void expect_rows(const RandomCase& c, const Result& whole, const Divided& divided,
                 const std::vector<Result>& parts) {
  const int64_t lists = c.out_shape[0] * c.out_shape[1], width = c.out_shape[3];
  const int64_t all = c.out_shape[2];
  // Weights have the rounding error of the scores and of their log-sum-exp.
  double allowed = 4e-6 / (1.0 - static_cast<double>(c.options.dropout.probability));
  for (const float lse : whole.lse) {
    if (std::isfinite(lse)) allowed = std::max(allowed, 1e-6 * std::abs(static_cast<double>(lse)));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const RowList& rows = divided.queries[rank];
    const auto count = static_cast<int64_t>(rows.size());
    for (int64_t list = 0; list < lists; ++list) {
      for (int64_t row = 0; row < count; ++row) {
        const int64_t at = list * count + row, from = list * all + rows[static_cast<size_t>(row)];
        const float got = parts[rank].lse[static_cast<size_t>(at)];
        const float expected = whole.lse[static_cast<size_t>(from)];
        if (got != expected) {
          ASSERT_NEAR(got, expected, allowed) << "rank " << rank << " row " << row;
        }
        for (int64_t column = 0; column < width; ++column) {
          ASSERT_NEAR(parts[rank].out[static_cast<size_t>(at * width + column)],
                      whole.out[static_cast<size_t>(from * width + column)], allowed)
              << "rank " << rank << " list " << list << " row " << row << " column " << column;
        }
      }
    }
  }
}

void expect_equals_one_process(Method method, uint64_t seed) {
  RandomCase c = random_case(seed, kLimits);
  SCOPED_TRACE(c.description);
  testing::raise_lowest_biases(c);
  Random random(seed + 31337);
  int ranks = static_cast<int>(random.integer(1, 5));
  if (method == Method::kHeads) {
    testing::share_along_queries(c);
    ranks = std::min(ranks, static_cast<int>(std::max<int64_t>(1, c.k.shape[1])));
  }
  const Divided divided = testing::divide(random, c.q.shape[2], c.k.shape[2], method, ranks);
  SCOPED_TRACE(std::to_string(ranks) + " ranks" +
               (divided.sharding.layout == Layout::kZigzag ? ", zigzag" : ""));
  Context context(1);
  Result whole(c);
  ASSERT_TRUE(multihead::attention(c.q, c.k, c.v, c.options, whole.views(c), context).ok());
  const std::vector<Result> parts = run(c, divided);
  expect_rows(c, whole, divided, parts);
  if (ranks == 1) {
    EXPECT_TRUE(parts[0] == whole);
  }
  if (method == Method::kDecode) {
    for (const Result& part : parts) EXPECT_TRUE(part == parts[0]);
  }
  if (seed % 8 == 0) {
    EXPECT_EQ(run(c, divided), parts);
  }
}

class ContextParallel : public ::testing::TestWithParam<Method> {};

TEST_P(ContextParallel, EqualsOneProcess) {
  for (const uint64_t seed : testing::random_seeds(500)) {
    expect_equals_one_process(GetParam(), seed);
    if (HasFailure()) return;
  }
}

const char* name_of(Method method) {
  const char* const names[] = {"Ring", "AllGather", "Heads", "Decode"};
  return names[static_cast<size_t>(method)];
}

INSTANTIATE_TEST_SUITE_P(Methods, ContextParallel,
                         ::testing::Values(Method::kRing, Method::kAllGather, Method::kHeads,
                                           Method::kDecode),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace multihead::distributed
