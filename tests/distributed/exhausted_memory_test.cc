// Distributed calls in which one memory request fails on one rank: every rank gets an error and
// nothing is written, or the call succeeds. Messages of a rank that left never reach a later call.
#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "multihead/distributed.h"
#include "support/allocations.h"
#include "support/exhaustion.h"
#include "support/random_case.h"
#include "support/thread_ranks.h"

namespace multihead::distributed {
namespace {

using testing::FailingMemory;
using testing::in_ranks;

constexpr int kRanks = 2;
constexpr int64_t kHeads = 2, kRows = 5, kWidth = 4;  // rows per rank
constexpr float kUnwritten = -7.0F;

// The operands of one rank of a call with every option that needs separate memory.
struct OwnCall {
  Sharding sharding;
  int64_t queries;
  std::vector<float> q, k, v, d_out, sinks, gains;
  std::vector<float> out, lse, d_q, d_k, d_v, d_sinks, d_gain;
  AttentionOptions options;

  OwnCall(Method method, int rank) : queries(method == Method::kDecode ? 2 * kRows : kRows) {
    sharding = {.method = method, .queries = 2 * kRows, .keys = 2 * kRows, .time_limit = 20};
    testing::Random random(static_cast<uint64_t>(method == Method::kDecode ? 1 : rank + 1));
    q = random.floats(kHeads * queries * kWidth);
    k = v = d_out = random.floats(kHeads * kRows * kWidth);
    sinks.assign(kHeads, 0.5F);
    gains.assign(kWidth, 1.5F);
    out.assign(q.size(), kUnwritten);
    lse.assign(q.size() / kWidth, kUnwritten);
    d_q = out;
    d_k = d_v = std::vector<float>(k.size(), kUnwritten);
    d_sinks.assign(kHeads, kUnwritten);
    d_gain.assign(kWidth, kUnwritten);
    options = {.causal = Causal::top_left(),
               .sinks = sinks,
               .qk_norm = {.q_gain = gains, .k_gain = gains, .enabled = true},
               .rope = {.style = Rope::Style::kHalf}};
  }

  static Dims rows(int64_t count) { return {1, kHeads, count, kWidth}; }
  Tensor lse_view() { return {lse.data(), {1, kHeads, queries}}; }
  Status forward(Communicator& communicator, Context& context) {
    return attention(ConstTensor(q.data(), rows(queries)), ConstTensor(k.data(), rows(kRows)),
                     ConstTensor(v.data(), rows(kRows)), options,
                     {.out = Tensor(out.data(), rows(queries)), .lse = lse_view()}, sharding,
                     communicator, context);
  }
  // Computes gradients from arbitrary numbers as forward results.
  Status backward(Communicator& communicator, Context& context) {
    return attention_backward(
        ConstTensor(q.data(), rows(queries)), ConstTensor(k.data(), rows(kRows)),
        ConstTensor(v.data(), rows(kRows)), options,
        {.out = ConstTensor(q.data(), rows(queries)), .lse = ConstTensor(lse_view())},
        ConstTensor(d_out.data(), rows(queries)),
        {.d_q = {d_q.data(), rows(queries)},
         .d_k = {d_k.data(), rows(kRows)},
         .d_v = {d_v.data(), rows(kRows)},
         .d_sinks = d_sinks,
         .d_q_gain = d_gain},
        sharding, communicator, context);
  }
  std::string results(bool backward) const {
    using testing::bits_of;
    return backward
               ? bits_of(d_q) + bits_of(d_k) + bits_of(d_v) + bits_of(d_sinks) + bits_of(d_gain)
               : bits_of(out) + bits_of(lse);
  }
};

// Results of a rank for a call in which the n-th request failed, and for the next call.
struct Seen {
  Status status, after;
  std::string results, results_after;
  bool sent = false, broken = false;
};

struct Run {
  std::vector<Seen> ranks = std::vector<Seen>(kRanks);
  bool failed = false;
};

Run run(Method method, bool backward, int64_t n) {
  Run result;
  std::barrier step(kRanks);
  std::optional<FailingMemory> memory;
  in_ranks(kRanks, {}, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    Seen& seen = result.ranks[static_cast<size_t>(rank)];
    Context context(1);
    OwnCall call(method, rank), next(method, rank);
    auto& transport = static_cast<testing::ThreadTransport&>(*communicator.internals()->transport);
    const auto compute = [&](OwnCall& of) {
      return backward ? of.backward(communicator, context) : of.forward(communicator, context);
    };
    step.arrive_and_wait();
    if (rank == 0 && n >= 0) memory.emplace(n, FailingMemory::Fail::kOnce);
    step.arrive_and_wait();
    seen.status = compute(call);
    transport.set_left(!seen.status.ok());
    step.arrive_and_wait();
    transport.set_left(false);
    if (rank == 0 && n >= 0) {
      result.failed = memory->failed();
      memory.reset();
    }
    step.arrive_and_wait();
    seen.sent = communicator.traffic().bytes_sent > 0;
    seen.broken = communicator.internals()->broken;
    seen.results = call.results(backward);
    const bool any_broken = [&] {
      step.arrive_and_wait();
      return result.ranks[0].broken || result.ranks[1].broken;
    }();
    if (any_broken) return;
    seen.after = compute(next);
    seen.results_after = next.results(backward);
  });
  return result;
}

void expect_all_or_none(Method method, bool backward) {
  const Run undisturbed = run(method, backward, -1);
  std::vector<std::string> unwritten;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Seen& seen = undisturbed.ranks[static_cast<size_t>(rank)];
    ASSERT_TRUE(seen.status.ok()) << seen.status.message();
    unwritten.push_back(OwnCall(method, rank).results(backward));
  }
  for (int64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n) + (backward ? " backward" : " forward"));
    ASSERT_LT(n, 10'000);
    const Run got = run(method, backward, n);
    const bool ok = got.ranks[0].status.ok();
    bool timed_out = false;
    for (const Seen& seen : got.ranks) {
      timed_out = timed_out || seen.status.code() == StatusCode::kExchange;
    }
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const Seen& seen = got.ranks[rank];
      ASSERT_EQ(seen.status.ok(), ok) << "rank " << rank << ": " << seen.status.message();
      ASSERT_TRUE(seen.results == (ok ? undisturbed.ranks[rank].results : unwritten[rank]));
      // A rank that left a call alone has sent nothing of it, or takes part in no further call.
      if (timed_out) {
        ASSERT_TRUE(seen.broken || !seen.sent) << "rank " << rank;
      }
      if (timed_out) continue;
      ASSERT_FALSE(seen.broken) << "rank " << rank << ": " << seen.status.message() << "; "
                                << got.ranks[1 - rank].status.message();
      ASSERT_TRUE(seen.after.ok()) << seen.after.message();
      ASSERT_TRUE(seen.results_after == undisturbed.ranks[rank].results);
    }
    if (!got.failed) break;
    ASSERT_FALSE(ok);
  }
}

class DistributedMemory : public ::testing::TestWithParam<Method> {};

TEST_P(DistributedMemory, AFailedRequestEndsTheCallOnAllRanks) {
  expect_all_or_none(GetParam(), false);
  if (GetParam() != Method::kDecode) expect_all_or_none(GetParam(), true);
}

const char* name_of(Method method) {
  const char* const names[] = {"Ring", "AllGather", "Heads", "Decode"};
  return names[static_cast<size_t>(method)];
}

INSTANTIATE_TEST_SUITE_P(Methods, DistributedMemory,
                         ::testing::Values(Method::kRing, Method::kAllGather, Method::kHeads,
                                           Method::kDecode),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace multihead::distributed
