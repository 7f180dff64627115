// Runs the members of a team as threads of one process.
#pragma once

#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/runtime/team.h"
#include "multihead/context.h"

namespace multihead::testing {

inline constexpr int kMembers = 3;

// Shared memory for the members' exchanges. Each thread has its own copy of all data.
struct Board {
  std::barrier<> all{kMembers};
  std::array<std::byte*, kMembers> memory{};
  std::atomic<bool> left = false;  // a member has ended; exchanges of the others fail
};
inline Board* board = nullptr;
inline thread_local int rank = 0;
inline thread_local int64_t exchanges = 0;

inline bool exchange(void* data, int64_t rows, int64_t stride, const uint32_t* bounds) {
  ++exchanges;
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

// Runs `call` with each member's context, and returns the results of all members.
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
      engine::WorkerTeam team(member, kMembers, exchange);
      engine::set_team(context, &team);
      results[static_cast<size_t>(member)] = call(context);
      engine::set_team(context, nullptr);
      // After an error of one member alone, the others would wait for it forever.
      shared.left = true;
      shared.all.arrive_and_drop();
    });
  }
  for (std::thread& thread : threads) thread.join();
  board = nullptr;
  return results;
}

}  // namespace multihead::testing
