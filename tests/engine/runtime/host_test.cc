// Contexts on their host's threads and memory, cancelled calls and profiles.
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/linear.h"
#include "multihead/transformer.h"
#include "support/random_case.h"

namespace multihead {
namespace {

// A program with functions for ContextOptions, which count their calls.
struct Host {
  std::atomic<int> calls = 0, workers = 0, foreign_modes = 0;
  std::map<void*, std::pair<size_t, size_t>> blocks;  // by address: bytes and alignment
  int64_t allocated = 0, fails_at = -1, wrong = 0;
  std::atomic<int64_t> polls = 0;
  int64_t cancels_at = -1;
  std::vector<std::string> steps;
  int64_t last_end = 0;
};

Host& host_of(void* user) { return *static_cast<Host*>(user); }

// Each worker on a thread of its own, the last one first.
void on_threads(void* user, int workers, void (*run)(void* state, int worker), void* state) {
  ++host_of(user).calls;
  host_of(user).workers += workers;
  std::vector<std::thread> threads;
  for (int worker = workers; worker-- > 0;) threads.emplace_back([=] { run(state, worker); });
  for (std::thread& thread : threads) thread.join();
}

// One after another, the last one first.
void in_turn(void* user, int workers, void (*run)(void* state, int worker), void* state) {
  ++host_of(user).calls;
  for (int worker = workers; worker-- > 0;) run(state, worker);
}

void* allocate(void* user, size_t bytes, size_t alignment) {
  Host& host = host_of(user);
  if (host.allocated++ == host.fails_at) return nullptr;
  void* const memory = ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
  host.blocks[memory] = {bytes, alignment};
  return memory;
}

void deallocate(void* user, void* memory, size_t bytes, size_t alignment) {
  Host& host = host_of(user);
  const auto block = host.blocks.find(memory);
  if (block == host.blocks.end() || block->second != std::pair{bytes, alignment}) {
    ++host.wrong;
    return;
  }
  host.blocks.erase(block);
  ::operator delete(memory, std::align_val_t(alignment));
}

bool cancelled(void* user) {
  Host& host = host_of(user);
  return host.polls++ == host.cancels_at;  // true only once: the library must remember it
}

void profile(void* user, const char* step, int64_t begin, int64_t end) {
  Host& host = host_of(user);
  EXPECT_LE(host.last_end, begin);
  EXPECT_LE(begin, end);
  host.last_end = end;
  host.steps.emplace_back(step);
}

struct Results {
  std::vector<float> out, lse, d_q, d_k, d_v, y;
  bool operator==(const Results&) const = default;
};

// A forward, a backward, a decoding and a product, each long enough for several threads.
class Calls {
 public:
  static constexpr int64_t kHeads = 3, kTokens = 200, kWidth = 32;

  Status run(Context& context, Results& to) const {
    const Dims shape{1, kHeads, kTokens, kWidth}, rows{1, kHeads, kTokens};
    const auto size = static_cast<size_t>(shape.elements());
    to = {.out = std::vector<float>(size),
          .lse = std::vector<float>(static_cast<size_t>(rows.elements())),
          .d_q = std::vector<float>(size),
          .d_k = std::vector<float>(size),
          .d_v = std::vector<float>(size),
          .y = std::vector<float>(size)};
    const ConstTensor q{x_.data(), shape}, k{x_.data() + size, shape},
        v{x_.data() + 2 * size, shape};
    const AttentionOptions options{.causal = Causal::top_left()};
    const Tensor out{to.out.data(), shape}, lse{to.lse.data(), rows};
    Status status = attention(q, k, v, options, {.out = out, .lse = lse}, context);
    if (!status.ok()) return status;
    status = attention_backward(q, k, v, options, {.out = out, .lse = lse}, v,
                                {.d_q = {to.d_q.data(), shape},
                                 .d_k = {to.d_k.data(), shape},
                                 .d_v = {to.d_v.data(), shape}},
                                context);
    if (!status.ok()) return status;
    const int64_t n = kHeads * kTokens;
    return linear({x_.data(), {n, kWidth}}, ConstTensor{x_.data() + size, {kWidth, kWidth}}, {},
                  {to.y.data(), {n, kWidth}}, context);
  }

 private:
  std::vector<float> x_ = testing::Random(1).floats(3 * kHeads * kTokens * kWidth);
};

TEST(Host, ItsThreadsComputeTheSameBits) {
  const Calls calls;
  Results expected, got;
  Context one(1);
  ASSERT_TRUE(calls.run(one, expected).ok());
  for (const auto parallel_for : {on_threads, in_turn}) {
    Host host;
    Context context({.threads = 4, .parallel_for = parallel_for, .user = &host});
    EXPECT_EQ(context.threads(), 4);
    for (int time = 0; time < 3; ++time) {
      ASSERT_TRUE(calls.run(context, got).ok());
      EXPECT_EQ(got, expected);
    }
    EXPECT_GE(host.calls, 9);
  }
}

TEST(Host, MayCallNoWorker) {
  const Calls calls;
  Results expected, got;
  Context one(1);
  ASSERT_TRUE(calls.run(one, expected).ok());
  Host host;
  Context context({.threads = 4,
                   .parallel_for = [](void*, int, void (*)(void*, int), void*) {},
                   .user = &host});
  ASSERT_TRUE(calls.run(context, got).ok());
  EXPECT_EQ(got, expected);
}

TEST(Host, WorkersUseTheCallersRounding) {
  const Calls calls;
  Results nearest, expected, got;
  Context one(1);
  ASSERT_TRUE(calls.run(one, nearest).ok());
  Host host;
  Context context({.threads = 3, .parallel_for = on_threads, .user = &host});
  const int before = std::fegetround();
  ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
  EXPECT_TRUE(calls.run(one, expected).ok());
  EXPECT_TRUE(calls.run(context, got).ok());
  std::fesetround(before);
  EXPECT_NE(expected, nearest);
  EXPECT_EQ(got, expected);
}

TEST(Host, GetsEveryBlockBack) {
  const Calls calls;
  Results expected, got;
  Context one(1);
  ASSERT_TRUE(calls.run(one, expected).ok());
  Host host;
  {
    Context context({.threads = 2, .allocate = allocate, .deallocate = deallocate, .user = &host});
    ASSERT_TRUE(calls.run(context, got).ok());
    EXPECT_EQ(got, expected);
    EXPECT_FALSE(host.blocks.empty());
    size_t bytes = 0;
    for (const auto& [memory, block] : host.blocks) bytes += block.first;
    EXPECT_EQ(bytes, context.scratch_bytes());
    const int64_t allocated = host.allocated;
    ASSERT_TRUE(calls.run(context, got).ok());
    EXPECT_EQ(host.allocated, allocated);
    Context moved = std::move(context);
    ASSERT_TRUE(calls.run(moved, got).ok());
    EXPECT_EQ(host.allocated, allocated);
  }
  EXPECT_TRUE(host.blocks.empty());
  EXPECT_EQ(host.wrong, 0);
}

TEST(Host, MemoryThatFailsIsAnErrorAndTheNextCallWorks) {
  const Dims shape{1, 2, 90, 16};
  const std::vector<float> x = testing::Random(2).floats(shape.elements(), -1, 1);
  const ConstTensor view{x.data(), shape};
  const AttentionOptions options{.qk_norm = {.enabled = true}};
  for (int64_t request = 0;; ++request) {
    Host host;
    {
      Context context(
          {.threads = 2, .allocate = allocate, .deallocate = deallocate, .user = &host});
      host.fails_at = request;
      std::vector<float> out(x.size(), 7.0F);
      const Status status =
          attention(view, view, view, options, {.out = Tensor(out.data(), shape)}, context);
      if (status.ok()) {
        EXPECT_GE(request, 3);
        break;
      }
      EXPECT_EQ(status.code(), StatusCode::kMemory);
      EXPECT_EQ(out, std::vector<float>(x.size(), 7.0F)) << "request " << request;
      EXPECT_TRUE(
          attention(view, view, view, options, {.out = Tensor(out.data(), shape)}, context).ok());
    }
    EXPECT_TRUE(host.blocks.empty());
  }
}

TEST(Host, CancelsACallAtAnyJob) {
  const Calls calls;
  Results expected, got;
  Context one(1);
  ASSERT_TRUE(calls.run(one, expected).ok());
  for (const bool own_threads : {true, false}) {
    for (const int threads : {1, 4}) {
      Host host;
      Context context({.threads = threads,
                       .parallel_for = own_threads ? nullptr : on_threads,
                       .cancelled = cancelled,
                       .user = &host});
      ASSERT_TRUE(calls.run(context, got).ok());
      const int64_t polls = host.polls;
      EXPECT_GT(polls, 8);
      for (int64_t at = 0; at < polls; at += 3) {
        host.polls = 0;
        host.cancels_at = at;
        const Status status = calls.run(context, got);
        if (!status.ok()) {
          EXPECT_EQ(status.code(), StatusCode::kAborted);
          EXPECT_FALSE(status.message().empty());
        } else {  // asked by a thread that found no job left
          EXPECT_EQ(got, expected) << at << " with " << threads << " threads";
        }
        host.cancels_at = -1;
      }
      ASSERT_TRUE(calls.run(context, got).ok());
      EXPECT_EQ(got, expected);
    }
  }
}

TEST(Host, ACancelledStepLeavesTheCache) {
  Transformer model;
  ASSERT_TRUE(
      Transformer::create({.block = {.attention = {.embed_dim = 16, .num_heads = 2}, .mlp_dim = 32},
                           .num_layers = 3,
                           .vocab_size = 11,
                           .max_positions = 20},
                          model)
          .ok());
  ASSERT_TRUE(model.initialize({}).ok());
  const std::vector<int32_t> ids{1, 2, 3, 4};
  const auto step = [&](Context& context, TransformerCache& cache, std::vector<float>& logits) {
    logits.assign(44, 0.0F);
    return model.step(ids, {}, {.logits = {logits.data(), {1, 4, 11}}}, cache, context);
  };
  Context plain(1);
  std::vector<float> expected, got;
  TransformerCache cache;
  ASSERT_TRUE(model.create_cache({.capacity = 20}, cache).ok());
  ASSERT_TRUE(step(plain, cache, expected).ok());

  Host host;
  Context context({.threads = 2, .cancelled = cancelled, .user = &host});
  int64_t ended = 0;
  for (host.cancels_at = 0;; ++host.cancels_at) {
    TransformerCache other;
    ASSERT_TRUE(model.create_cache({.capacity = 20}, other).ok());
    host.polls = 0;
    const Status status = step(context, other, got);
    if (host.polls <= host.cancels_at) break;
    if (!status.ok()) {
      ++ended;
      EXPECT_EQ(status.code(), StatusCode::kAborted);
      EXPECT_EQ(other.length(), 0);
      ASSERT_TRUE(step(context, other, got).ok());
    }
    EXPECT_EQ(got, expected);
  }
  EXPECT_GT(ended, 10);
}

TEST(Host, IsToldOfTheSteps) {
  const Calls calls;
  Results got;
  Host host;
  Context context({.threads = 2, .profile = profile, .user = &host});
  ASSERT_TRUE(calls.run(context, got).ok());
  EXPECT_EQ(host.steps,
            (std::vector<std::string>{"attention", "row sums", "attention backward", "linear"}));
}

TEST(Host, OptionsWithThreadsAloneAreAContext) {
  const Calls calls;
  Results expected, got;
  Context one(1), context(ContextOptions{.threads = 3});
  EXPECT_EQ(context.threads(), 3);
  ASSERT_TRUE(calls.run(one, expected).ok());
  ASSERT_TRUE(calls.run(context, got).ok());
  EXPECT_EQ(got, expected);
}

}  // namespace
}  // namespace multihead
