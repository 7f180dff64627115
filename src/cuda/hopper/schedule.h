// The order in which the blocks of the Hopper forward kernel compute the tiles of a call.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rules/integers.h"

namespace multihead::cuda {

// Each block computes several tiles, chosen before the launch, so no block waits for a common
// counter and results do not depend on the order of blocks.
//
// Heads that share tiles count as one head here. Heads are served in groups whose keys and values
// fit in the L2 cache. The tiles of a group are numbered from the longest to the shortest: rank 0
// of all heads, then rank 1, and so on. The first tile forms a pair with the last one, the second
// with the last but one: with a causal mask, all pairs are equally long. Block i computes pairs i,
// i + blocks, ... If the last round has fewer pairs than blocks, its tiles are dealt out one by
// one, the longest first: one to each block from the first to the last, then from the last to the
// first.
struct HopperSchedule {
  uint32_t row_tiles;      // tiles of a head
  uint32_t heads;          // of all batch entries, or of the packed sequences
  uint32_t heads_at_once;  // per group
  uint32_t blocks;
  uint32_t group_pairs;  // of all groups but the last one
  uint32_t rounds;       // full rounds: each block computes a pair
  uint32_t rest;         // pairs of the last round, fewer than blocks

  // There are less than 2^31 tiles.
  static constexpr HopperSchedule of(int64_t row_tiles, int64_t heads, int64_t heads_at_once,
                                     int64_t multiprocessors) {
    const int64_t blocks =
        std::clamp<int64_t>(row_tiles * heads, 1, std::max<int64_t>(1, multiprocessors));
    const int64_t group_pairs = rules::ceil_div(row_tiles * heads_at_once, 2);
    const int64_t pairs = heads / heads_at_once * group_pairs +
                          rules::ceil_div(row_tiles * (heads % heads_at_once), 2);
    const auto count = [](int64_t value) { return static_cast<uint32_t>(value); };
    return {.row_tiles = count(row_tiles),
            .heads = count(heads),
            .heads_at_once = count(heads_at_once),
            .blocks = count(blocks),
            .group_pairs = count(group_pairs),
            .rounds = count(pairs / blocks),
            .rest = count(pairs % blocks)};
  }

  // Upper limit for the number of tiles of a block.
  constexpr uint32_t tiles_of_block() const { return 2 * (rounds + 1); }

  struct Place {
    uint32_t head, rank;
    bool exists;
  };
  // Returns the tile that block `block` computes as number `i`.
  constexpr Place place(uint32_t block, uint32_t i) const {
    if (block >= blocks) return {};
    uint32_t pair = block + i / 2 * blocks;
    bool second = i % 2 != 0;
    if (i >= 2 * rounds) {
      const uint32_t tile = second ? 2 * blocks - 1 - block : block;
      if (tile >= 2 * rest) return {};
      second = tile >= rest;
      pair = rounds * blocks + (second ? 2 * rest - 1 - tile : tile);
    }
    const uint32_t group = pair / group_pairs;
    const uint32_t first_head = group * heads_at_once;
    const uint32_t left = heads - first_head;
    const uint32_t in_group = left < heads_at_once ? left : heads_at_once;
    uint32_t tile = pair - group * group_pairs;
    if (second) {
      const uint32_t first = tile;
      tile = row_tiles * in_group - 1 - first;
      if (tile == first) return {};
    }
    return {first_head + tile % in_group, tile / in_group, true};
  }
};

}  // namespace multihead::cuda
