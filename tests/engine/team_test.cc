// Members of a team, here threads, compared with a single instance, bit for bit.
#include "engine/team.h"

#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "multihead/attention.h"
#include "multihead/linear.h"
#include "support/random_case.h"

namespace multihead {
namespace {

using testing::Random;

constexpr int kMembers = 3;

// What the members exchange. Each thread has its own copy of all data.
struct Board {
  std::barrier<> all{kMembers};
  std::array<std::byte*, kMembers> memory{};
  bool left = false;
};
Board* board = nullptr;
thread_local int rank = 0;

bool exchange(void* data, int64_t rows, int64_t stride, const uint32_t* bounds) {
  board->memory[static_cast<size_t>(rank)] = static_cast<std::byte*>(data);
  board->all.arrive_and_wait();
  if (board->left) return false;
  for (int member = 0; member < kMembers; ++member) {
    if (member == rank) continue;
    const std::byte* const from = board->memory[static_cast<size_t>(member)];
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(data) + row * stride + bounds[member],
                  from + row * stride + bounds[member], bounds[member + 1] - bounds[member]);
    }
  }
  board->all.arrive_and_wait();
  return true;
}

// Runs `call` with each member's context, and gives the results of all.
template <class Call>
std::vector<std::vector<float>> in_team(const Call& call) {
  Board shared;
  board = &shared;
  std::vector<std::vector<float>> results(kMembers);
  std::vector<std::thread> threads;
  threads.reserve(kMembers);
  for (int member = 0; member < kMembers; ++member) {
    threads.emplace_back([&, member] {
      rank = member;
      Context context(1);
      engine::Team team(member, kMembers, exchange);
      engine::set_team(context, &team);
      results[static_cast<size_t>(member)] = call(context);
      engine::set_team(context, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  board = nullptr;
  return results;
}

template <class Call>
void expect_bits_of_one(const Call& call) {
  Context alone(1);
  const std::vector<float> expected = call(alone);
  for (const std::vector<float>& actual : in_team(call)) EXPECT_EQ(expected, actual);
}

TEST(Team, SharesTheOutputsOfAProduct) {
  Random random(1);
  for (const int64_t rows : {1, 3, 200}) {
    constexpr int64_t kIn = 300, kOut = 5003;
    const std::vector<float> x = random.floats(rows * kIn), weight = random.floats(kIn * kOut),
                             bias = random.floats(kOut);
    expect_bits_of_one([&](Context& context) {
      std::vector<float> y(static_cast<size_t>(rows * kOut));
      EXPECT_TRUE(linear({x.data(), {rows, kIn}}, ConstTensor(weight.data(), {kOut, kIn}),
                         {bias.data(), {kOut}}, {y.data(), {rows, kOut}}, context)
                      .ok());
      return y;
    });
  }
}

TEST(Team, SharesTheHeadsOfAttention) {
  Random random(2);
  // Blocks and decoding; outputs (B, H, N, d), and (B, N, H, d) as modules have them.
  for (const int64_t queries : {1, 150}) {
    for (const bool interleaved : {false, true}) {
      const Dims q_shape{2, 8, queries, 32}, k_shape{2, 4, 700, 32};
      const std::vector<float> q = random.floats(q_shape.elements()),
                               k = random.floats(k_shape.elements()),
                               v = random.floats(k_shape.elements());
      expect_bits_of_one([&](Context& context) {
        const auto rows = static_cast<size_t>(2 * 8 * queries);
        std::vector<float> results(rows * 33);
        Tensor out(results.data(), q_shape);
        if (interleaved) out.strides = {queries * 8 * 32, 32, 8 * 32, 1};
        const Tensor lse(results.data() + rows * 32, {2, 8, queries});
        EXPECT_TRUE(attention(ConstTensor(q.data(), q_shape), ConstTensor(k.data(), k_shape),
                              ConstTensor(v.data(), k_shape), {.causal = Causal::bottom_right()},
                              {.out = out, .lse = lse}, context)
                        .ok());
        return results;
      });
    }
  }
}

TEST(Team, ReportsAMemberThatHasLeft) {
  Board shared;
  board = &shared;
  shared.left = true;
  std::vector<std::thread> threads;
  threads.reserve(kMembers);
  for (int member = 0; member < kMembers; ++member) {
    threads.emplace_back([member] {
      rank = member;
      Context context(1);
      engine::Team team(member, kMembers, exchange);
      engine::set_team(context, &team);
      const std::vector<float> x(2000, 1.0F), weight(2000 * 1000, 1.0F);
      std::vector<float> y(1000);
      const Status status = linear({x.data(), {1, 2000}}, ConstTensor(weight.data(), {1000, 2000}),
                                   {}, {y.data(), {1, 1000}}, context);
      EXPECT_EQ(status.code(), StatusCode::kOption);
    });
  }
  for (std::thread& thread : threads) thread.join();
  board = nullptr;
}

}  // namespace
}  // namespace multihead
