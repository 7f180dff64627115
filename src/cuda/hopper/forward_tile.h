// The Hopper forward kernel: tile sizes, the work of a block, and its shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/ring.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/tiles.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// Tile sizes for rows of kWidth_ elements, as in FlashAttention-3.
template <int kWidth_, int kKeys_, int kConsumers_, bool kTakesTurns_>
struct HopperTile {
  static constexpr int kWidth = kWidth_;          // d of q, k and v
  static constexpr int kKeys = kKeys_;            // keys per step
  static constexpr int kConsumers = kConsumers_;  // warpgroups
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr int kStages = 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = kWarpgroupSize * (kConsumers + 1);
  // Registers of each producer and consumer thread.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static_assert(registers_suffice(kProducerRegisters, kConsumers, kConsumerRegisters));

  using Queries = HopperRows<kWidth, kRows>;
  using Keys = HopperRows<kWidth, kKeys>;  // for keys and values
  using Steps = Ring<kStages, Keys::kBytes>;
  static constexpr int kBarrierBytes = 8 * (1 + 2 * Steps::kBarriers);
  static constexpr int kSharedBytes = Queries::kBytes + 2 * Steps::kBytes + kBarrierBytes;
  static_assert(kSharedBytes <= kHopperSharedBytes);
};

struct HopperCall {
  ForwardParams params;
  TensorMap q, k, v;
  float scale_log2;       // scale * log2(e), positive
  int64_t row_tiles;      // per head: slots of query_axis()
  int64_t heads;          // of all batch entries, or of the packed sequences
  int64_t heads_at_once;  // see HopperPlace
};

// The work of one block: a tile of query rows of one head.
struct HopperBlock {
  Entry entry;
  int64_t head, kv_head;
  int first_row, end_row;  // queries of the entry; empty for a block without work

  template <class Tile>
  static __device__ __forceinline__ HopperBlock of(const HopperCall& call) {
    const rules::AttentionParams& attention = call.params.call;
    const auto [head, rank] = HopperPlace::of(call.row_tiles, call.heads, call.heads_at_once);
    HopperBlock block{};
    if (head >= call.heads) return block;
    TilePlace place{head / attention.heads, rank};
    if (call.params.cu_q != nullptr) place = query_axis(call.params, Tile::kRows, 1).place_of(rank);
    block.entry = entry_of(call.params, place.entry);
    block.head = head % attention.heads;
    block.kv_head = block.head / attention.group();
    const int64_t end = rules::least_of(attention.end_query, block.entry.queries);
    // Last rows first: with a causal mask they see the most keys.
    const int64_t tile = tiles_of(end - attention.first_query, Tile::kRows) - 1 - place.tile;
    if (place.tile < 0 || tile < 0) return block;
    const int64_t first = attention.first_query + tile * Tile::kRows;
    block.first_row = static_cast<int>(first);
    block.end_row = static_cast<int>(rules::least_of(end, first + Tile::kRows));
    return block;
  }

  // Keys that row `row` sees. Rows beyond the block's last row get the keys of the last row; they
  // are computed but not stored.
  __device__ __forceinline__ ColumnRange visible(int row) const {
    return seen_columns(entry.visibility, rules::least_of(row, end_row - 1));
  }
};

// The keys that a block sees, divided into steps of kKeys. The first and the last visible key never
// decrease as the row rises, so the range goes from the first row's first key to the last row's
// last key.
struct HopperSteps {
  int first_key, count;

  template <class Tile>
  static __device__ __forceinline__ HopperSteps of(const HopperBlock& block) {
    const int first = block.visible(block.first_row).first;
    const int last = block.visible(block.end_row - 1).last;
    return {first, last <= first ? 0 : (last - first + Tile::kKeys - 1) / Tile::kKeys};
  }
};

template <class Tile>
struct HopperShared {
  using Steps = typename Tile::Steps;

  std::byte* queries;
  uint64_t* queries_full;
  Steps keys, values;

  static __device__ __forceinline__ HopperShared of(std::byte* memory) {
    std::byte* const keys = memory + Tile::Queries::kBytes;
    std::byte* const values = keys + Steps::kBytes;
    auto* const barriers = reinterpret_cast<uint64_t*>(values + Steps::kBytes);
    return {.queries = memory,
            .queries_full = barriers,
            .keys = Steps::of(keys, barriers + 1),
            .values = Steps::of(values, barriers + 1 + Steps::kBarriers)};
  }

  __device__ __forceinline__ void init_barriers() const {
    mbarrier_init(queries_full, 1);
    keys.init_barriers(1, 4 * Tile::kConsumers);
    values.init_barriers(1, 4 * Tile::kConsumers);
    mbarrier_init_fence();
  }
};

}  // namespace multihead::cuda
