// Tests the traffic between ranks, and the result of bad input, differing ranks and silent ranks:
// an error on every rank, and nothing written.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "multihead/distributed.h"
#include "support/random_case.h"
#include "support/thread_ranks.h"

namespace multihead::distributed {
namespace {

using testing::in_ranks;
using testing::Random;
using testing::ThreadRanksOptions;

// A call of one rank with even shards, before a test changes it.
struct OwnCall {
  int64_t heads = 4, kv_heads = 4, rows, key_rows, width = 8, value_dim = 6;
  AttentionOptions options;
  Sharding sharding;
  std::vector<float> q, k, v, out, lse, extra;
  DType kv_dtype = DType::kF32;     // if elements are smaller, only the first bytes are read
  std::vector<int32_t> cu_q, cu_k;  // attention_varlen() only
  ScoreCapture capture;
  bool captures = false;

  OwnCall(const Communicator& communicator, Method method, int64_t all_rows, uint64_t seed) {
    const RowRange own =
        rows_of_rank(all_rows, Layout::kContiguous, communicator.size(), communicator.rank())[0];
    rows = method == Method::kDecode ? all_rows : own.count();
    key_rows = own.count();
    sharding = {.method = method, .queries = all_rows, .keys = all_rows, .time_limit = 20};
    Random random(seed);
    q = random.floats(heads * all_rows * width);
    k = random.floats(kv_heads * all_rows * width);
    v = random.floats(kv_heads * all_rows * value_dim);
  }

  Status run(Communicator& communicator) {
    out.assign(static_cast<size_t>(heads * rows * value_dim), -7.0F);
    lse.assign(static_cast<size_t>(heads * rows), -7.0F);
    Context context(1);
    AttentionOutputs outputs{.out = Tensor(out.data(), {1, heads, rows, value_dim}),
                             .lse = {lse.data(), {1, heads, rows}}};
    if (captures) outputs.captures = {&capture, 1};
    if (!cu_q.empty()) {
      outputs.out = Tensor(out.data(), {rows, heads, value_dim});
      outputs.lse = {lse.data(), {heads, rows}};
      return attention_varlen(ConstTensor(q.data(), {rows, heads, width}),
                              ConstTensor(k.data(), {key_rows, kv_heads, width}),
                              ConstTensor(v.data(), {key_rows, kv_heads, value_dim}), cu_q, cu_k,
                              options, outputs, sharding, communicator, context);
    }
    const Dims of_keys{1, kv_heads, key_rows, width}, of_values{1, kv_heads, key_rows, value_dim};
    return attention(ConstTensor(q.data(), {1, heads, rows, width}),
                     ConstAnyTensor(k.data(), kv_dtype, of_keys, contiguous_strides(of_keys)),
                     ConstAnyTensor(v.data(), kv_dtype, of_values, contiguous_strides(of_values)),
                     options, outputs, sharding, communicator, context);
  }
  bool has_written() const {
    const auto is_new = [](float value) { return value != -7.0F; };
    return std::any_of(out.begin(), out.end(), is_new) ||
           std::any_of(lse.begin(), lse.end(), is_new);
  }
};

// Every rank refuses the call that `change` modifies on some ranks; afterwards the communicator
// still works.
struct Refusal {
  std::string argument;
  std::string message;
};
std::vector<Refusal> refusals(int ranks, Method method,
                              const std::function<void(OwnCall&, int rank)>& change) {
  std::vector<Refusal> result(static_cast<size_t>(ranks));
  in_ranks(ranks, {}, [&](Communicator& communicator) {
    OwnCall call(communicator, method, 12, 1);
    change(call, communicator.rank());
    const Status status = call.run(communicator);
    EXPECT_FALSE(status.ok()) << "rank " << communicator.rank();
    EXPECT_FALSE(call.has_written());
    result[static_cast<size_t>(communicator.rank())] = {status.argument(), status.message()};
    OwnCall good(communicator, method, 12, 1);
    const Status after = good.run(communicator);
    EXPECT_TRUE(after.ok()) << after.message();
  });
  return result;
}

void expect_all(const std::vector<Refusal>& refusals, const std::string& argument) {
  for (const Refusal& refusal : refusals) EXPECT_EQ(refusal.argument, argument) << refusal.message;
}

constexpr Method kMethods[] = {Method::kRing, Method::kAllGather, Method::kHeads, Method::kDecode};

TEST(Agreement, RefusesOptionsThatDiffer) {
  const std::vector<float> slopes(4, 0.5F), other_slopes(4, 0.25F);
  const std::vector<int32_t> lengths(1, 7);
  const std::vector<uint8_t> mask(48, 1);
  const struct {
    const char* name;
    std::function<void(OwnCall&)> on_rank_1;
  } changes[] = {
      {"scale", [](OwnCall& c) { c.options.scale = 0.5F; }},
      {"causal", [](OwnCall& c) { c.options.causal = Causal::top_left(); }},
      {"window", [](OwnCall& c) { c.options.window.left = 3; }},
      {"softcap", [](OwnCall& c) { c.options.softcap = 2.0F; }},
      {"dropout",
       [](OwnCall& c) {
         c.options.dropout = {0.5F, 1};
       }},
      {"rope", [](OwnCall& c) { c.options.rope.style = Rope::Style::kHalf; }},
      {"qk_norm", [](OwnCall& c) { c.options.qk_norm.enabled = true; }},
      {"alibi_slopes", [&](OwnCall& c) { c.options.alibi_slopes = slopes; }},
      {"sinks", [&](OwnCall& c) { c.options.sinks = slopes; }},
      {"sharding.queries", [](OwnCall& c) { ++c.sharding.queries; }},
      {"sharding.keys", [](OwnCall& c) { ++c.sharding.keys; }},
      {"sharding.layout", [](OwnCall& c) { c.sharding.layout = Layout::kZigzag; }},
      {"d_k and d_v", [](OwnCall& c) { c.value_dim = 5; }},
      {"heads", [](OwnCall& c) { c.kv_heads = 2; }},
      {"element types", [](OwnCall& c) { c.kv_dtype = DType::kBF16; }},
      {"precision", [](OwnCall& c) { c.options.precision = Precision::kBf16; }},
      {"kv_lengths", [&](OwnCall& c) { c.options.kv_lengths = lengths; }},
      {"mask",
       [&](OwnCall& c) {
         c.options.mask = {mask.data(), {c.rows, 12}};
       }},
      {"bias",
       [&](OwnCall& c) {
         c.options.bias = {slopes.data(), {c.rows, 1}};
       }},
      {"call",
       [](OwnCall& c) {
         c.cu_q = c.cu_k = {0, 12};
       }},
  };
  for (const auto& [name, change] : changes) {
    const std::vector<Refusal> got =
        refusals(3, Method::kRing, [&, &changes_call = change](OwnCall& call, int rank) {
          if (rank == 1) changes_call(call);
        });
    expect_all(got, name);
    EXPECT_NE(got[2].message.find("rank 1"), std::string::npos) << got[2].message;
  }
  expect_all(refusals(2, Method::kRing,
                      [&](OwnCall& call, int rank) {
                        call.options.alibi_slopes = rank == 0 ? slopes : other_slopes;
                      }),
             "alibi_slopes");
  expect_all(refusals(2, Method::kRing,
                      [](OwnCall& call, int rank) {
                        if (rank == 1) call.sharding.method = Method::kAllGather;
                      }),
             "sharding.method");
  expect_all(refusals(2, Method::kRing,
                      [&](OwnCall& call, int rank) {
                        call.extra.resize(12);
                        const int64_t columns = rank == 0 ? 12 : 1;
                        call.options.bias = {call.extra.data(), {1, columns}};
                      }),
             "bias");
  for (const bool of_keys : {false, true}) {
    expect_all(refusals(2, Method::kRing,
                        [&](OwnCall& call, int rank) {
                          call.cu_q = call.cu_k = {0, 5, 12};
                          if (rank == 1) (of_keys ? call.cu_k : call.cu_q)[1] = 6;
                        }),
               of_keys ? "cu_k" : "cu_q");
  }
}

TEST(Agreement, RefusesShardsThatDoNotAddUp) {
  for (const Method method : kMethods) {
    expect_all(refusals(3, method,
                        [](OwnCall& call, int rank) {
                          if (rank == 2) --call.key_rows;
                        }),
               "k");
  }
  expect_all(refusals(3, Method::kRing,
                      [](OwnCall& call, int rank) {
                        if (rank == 0) --call.rows;
                      }),
             "q");
  expect_all(refusals(3, Method::kRing,
                      [](OwnCall& call, int rank) {
                        call.sharding.layout = Layout::kZigzag;
                        // 4 of 12 rows on each rank: the total is right, but the shards are not the
                        // zigzag's.
                        if (rank == 0) --call.rows;
                        if (rank == 1) ++call.rows, call.q.resize(1000), call.out.resize(1000);
                      }),
             "q");
  const std::vector<Refusal> of_decode = refusals(2, Method::kDecode, [](OwnCall& call, int rank) {
    if (rank == 1) --call.rows;
  });
  expect_all(of_decode, "q");
}

TEST(Agreement, RefusesTooFewHeads) {
  const std::vector<Refusal> got =
      refusals(3, Method::kHeads, [](OwnCall& call, int) { call.kv_heads = 2; });
  expect_all(got, "sharding.method");
  EXPECT_NE(got[0].message.find("3 ranks"), std::string::npos) << got[0].message;
}

TEST(Agreement, TellsTheOthersWhatOneRankRefuses) {
  const std::vector<Refusal> got = refusals(3, Method::kRing, [](OwnCall& call, int rank) {
    if (rank == 1) call.options.softcap = -1.0F;
  });
  EXPECT_EQ(got[1].argument, "softcap");
  EXPECT_EQ(got[0].argument, "communicator");
  EXPECT_NE(got[2].message.find("rank 1 refused"), std::string::npos) << got[2].message;
}

TEST(Agreement, RefusesWhatNoRankCanHave) {
  expect_all(refusals(2, Method::kRing, [](OwnCall& call, int) { call.captures = true; }),
             "captures");
  expect_all(refusals(2, Method::kRing, [](OwnCall& call, int) { call.sharding.time_limit = 0; }),
             "sharding.time_limit");
  expect_all(refusals(2, Method::kRing, [](OwnCall& call, int) { call.sharding.queries = -1; }),
             "sharding.queries");
  expect_all(refusals(2, Method::kDecode,
                      [](OwnCall& call, int) { call.sharding.layout = Layout::kZigzag; }),
             "sharding.layout");
  expect_all(refusals(2, Method::kHeads,
                      [](OwnCall& call, int) {
                        call.extra.resize(static_cast<size_t>(call.rows * 12));
                        call.options.bias = {call.extra.data(), {call.rows, 12}};
                      }),
             "bias");
}

TEST(Agreement, ACommunicatorOfNoneIsRefused) {
  Communicator none;
  EXPECT_EQ(none.size(), 0);
  in_ranks(1, {}, [&](Communicator& one) {
    OwnCall call(one, Method::kRing, 8, 1);
    EXPECT_EQ(call.run(none).argument(), "communicator");
    EXPECT_TRUE(call.run(one).ok());
    --call.sharding.keys;
    EXPECT_EQ(call.run(one).argument(), "k");
  });
}

// A rank that falls silent at any message ends the call on all others, and their communicators then
// refuse calls. With 3 ranks, each rank sends 2 messages to agree on the call, on its memory and at
// the end.
TEST(SilentRank, EndsTheCallOnAllOthers) {
  const struct {
    Method method;
    int64_t messages;
  } of_rank[] = {
      {Method::kRing, 10}, {Method::kAllGather, 10}, {Method::kHeads, 16}, {Method::kDecode, 10}};
  for (const auto& [method, messages] : of_rank) {
    for (const int64_t after : {int64_t{0}, int64_t{2}, int64_t{4}, messages - 5, messages - 2}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(method)) + " " + std::to_string(after));
      const auto run_silent_rank = [wanted = method](Communicator& communicator) {
        OwnCall call(communicator, wanted, 12, 1);
        call.sharding.time_limit = 0.05;
        const Status status = call.run(communicator);
        if (communicator.rank() == 1) return;
        EXPECT_EQ(status.code(), StatusCode::kExchange) << status.message();
        EXPECT_FALSE(call.has_written());
        EXPECT_EQ(call.run(communicator).code(), StatusCode::kExchange);
      };
      in_ranks(3, {.silent_rank = 1, .silent_after = after}, run_silent_rank);
    }
  }
}

struct Exchanged {
  uint64_t sent = 0, received = 0;
  size_t overlapped_waits = 0;
};

// Returns each rank's traffic in a call beyond the agreement.
std::vector<Exchanged> exchanged(Method method, int ranks, int64_t rows,
                                 const ThreadRanksOptions& options,
                                 const AttentionOptions& of_call = {}) {
  std::vector<Exchanged> result(static_cast<size_t>(ranks));
  in_ranks(ranks, options, [&](Communicator& communicator) {
    // An empty problem has only the traffic that every call has.
    OwnCall nothing(communicator, method, 0, 1);
    nothing.options = of_call;
    ASSERT_TRUE(nothing.run(communicator).ok());
    const Communicator::Traffic before = communicator.traffic();
    OwnCall call(communicator, method, rows, 1);
    call.options = of_call;
    ASSERT_TRUE(call.run(communicator).ok());
    const Communicator::Traffic after = communicator.traffic();
    const auto& transport =
        static_cast<testing::ThreadTransport&>(*communicator.internals()->transport);
    result[static_cast<size_t>(communicator.rank())] = {
        after.bytes_sent - 2 * before.bytes_sent, after.bytes_received - 2 * before.bytes_received,
        transport.overlapped_waits()};
  });
  return result;
}

// Per rank, with 4 ranks, 40 rows each, 4 heads, d_k = 8 and d_v = 6, in bytes.
TEST(Traffic, IsThatOfTheFormula) {
  constexpr uint64_t kRanks = 4, kRows = 40, kHeads = 4, kWidths = 8 + 6, kFloat = 4;
  const struct {
    Method method;
    uint64_t bytes;
  } formulas[] = {
      {Method::kRing, (kRanks - 1) * kRows * kHeads * kWidths * kFloat},
      {Method::kAllGather, (kRanks - 1) * kRows * kHeads * kWidths * kFloat},
      // q, k and v are sent to the ranks of their heads; outputs and log-sum-exp are sent back.
      {Method::kHeads, (kRanks - 1) * kRows * kHeads / kRanks * (8 + 8 + 6 + 6 + 1) * kFloat},
      // Every rank has all queries.
      {Method::kDecode, (kRanks - 1) * kRanks * kRows * kHeads * (6 + 1) * kFloat}};
  for (const auto& [method, bytes] : formulas) {
    for (const Exchanged& of : exchanged(method, kRanks, kRanks * kRows, {})) {
      EXPECT_EQ(of.sent, bytes) << static_cast<int>(method);
      EXPECT_EQ(of.received, bytes) << static_cast<int>(method);
    }
  }
}

// Only keys are sent that a rank ahead (ring) or the receiver (all_gather) sees: with causal order
// the keys of earlier ranks, with a window of 10 tokens the last 10 keys of the previous rank.
TEST(Traffic, LeavesOutHiddenKeys) {
  constexpr uint64_t kRanks = 4, kRows = 40, kSeen = 10, kRowBytes = 4 * (8 + 6) * 4;
  AttentionOptions causal{.causal = Causal::bottom_right()}, window = causal;
  window.window.left = kSeen;
  for (const Method method : {Method::kRing, Method::kAllGather}) {
    const std::vector<Exchanged> of_causal = exchanged(method, kRanks, kRanks * kRows, {}, causal);
    const std::vector<Exchanged> of_window = exchanged(method, kRanks, kRanks * kRows, {}, window);
    for (uint64_t rank = 0; rank < kRanks; ++rank) {
      SCOPED_TRACE(std::to_string(static_cast<int>(method)) + " rank " + std::to_string(rank));
      const uint64_t after = kRanks - 1 - rank, shards = after == 0 ? 0 : rank + 1;
      const uint64_t sent = method == Method::kRing ? shards : after;
      EXPECT_EQ(of_causal[rank].sent, sent * kRows * kRowBytes);
      EXPECT_EQ(of_causal[rank].received, rank * kRows * kRowBytes);
      EXPECT_EQ(of_window[rank].sent, after == 0 ? 0 : kSeen * kRowBytes);
      EXPECT_EQ(of_window[rank].received, rank == 0 ? 0 : kSeen * kRowBytes);
    }
  }
}

// The keys of the next step are transferred while the current keys are used, also between tiles.
TEST(Ring, SendsWhileItComputes) {
  constexpr int kRanks = 3;
  for (const Exchanged& of :
       exchanged(Method::kRing, kRanks, 600, {.delay = std::chrono::milliseconds(2)})) {
    EXPECT_GE(of.overlapped_waits, static_cast<size_t>(kRanks - 1));
  }
}

}  // namespace
}  // namespace multihead::distributed
