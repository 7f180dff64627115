// The order of tiles of the Hopper forward kernel.
#include "cuda/hopper/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random_case.h"

namespace multihead::cuda::testing {
namespace {

using multihead::testing::Random;
using multihead::testing::random_seeds;

TEST(HopperSchedule, ComputesEachTileOnce) {
  for (const uint64_t seed : random_seeds(500)) {
    Random random(seed);
    const int64_t row_tiles = random.integer(1, 20), heads = random.integer(1, 12);
    const int64_t at_once = random.integer(1, heads), processors = random.integer(0, 40);
    const auto schedule = HopperSchedule::of(row_tiles, heads, at_once, processors);
    SCOPED_TRACE(std::to_string(row_tiles) + " tiles, " + std::to_string(heads) + " heads, " +
                 std::to_string(at_once) + " at once, " + std::to_string(processors) +
                 " multiprocessors");
    EXPECT_LE(schedule.blocks, std::max<int64_t>(1, processors));
    std::vector<int> computed(static_cast<size_t>(row_tiles * heads));
    // A grid may have blocks beyond the last one.
    for (uint32_t block = 0; block < schedule.blocks + 3; ++block) {
      for (uint32_t i = 0; i < schedule.tiles_of_block(); ++i) {
        const HopperSchedule::Place place = schedule.place(block, i);
        if (!place.exists) continue;
        ASSERT_LT(place.head, heads);
        ASSERT_LT(place.rank, row_tiles);
        ++computed[static_cast<size_t>(place.head * row_tiles + place.rank)];
      }
    }
    EXPECT_EQ(computed, std::vector<int>(computed.size(), 1));
  }
}

// 128 heads of 16 tiles; 32 heads are served at once. With a causal mask, tile i sees i + 1
// times as many keys as the first one.
TEST(HopperSchedule, GivesAllBlocksTheSameWork) {
  const auto schedule = HopperSchedule::of(16, 128, 32, 132);
  std::vector<uint32_t> work;
  uint32_t sum = 0;
  for (uint32_t block = 0; block < schedule.blocks; ++block) {
    work.push_back(0);
    for (uint32_t i = 0; i < schedule.tiles_of_block(); ++i) {
      const HopperSchedule::Place place = schedule.place(block, i);
      if (place.exists) work.back() += 16 - place.rank;
    }
    sum += work.back();
  }
  EXPECT_LE(*std::max_element(work.begin(), work.end()), 1.04 * sum / schedule.blocks);
}

}  // namespace
}  // namespace multihead::cuda::testing
