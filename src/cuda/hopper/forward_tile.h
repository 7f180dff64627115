// The Hopper forward kernel: tile sizes, the tiles of a block, and its shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/ring.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/schedule.h"
#include "cuda/hopper/softmax.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/tiles.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// Tile sizes for rows of kWidth_ elements, as in FlashAttention-3.
template <int kWidth_, int kKeys_, int kConsumers_, bool kTakesTurns_, bool kOptions_ = false>
struct HopperTile {
  static constexpr int kWidth = kWidth_;          // d of q, k and v
  static constexpr int kKeys = kKeys_;            // keys per step
  static constexpr int kConsumers = kConsumers_;  // warpgroups
  static constexpr bool kTakesTurns = kTakesTurns_;
  static constexpr bool kOptions = kOptions_;  // serves the options of mma/options.h but dropout
  static constexpr int kStages = 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kThreads = kWarpgroupSize * (kConsumers + 1);
  // Registers of each producer and consumer thread.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 24 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 240 : 160;
  static_assert(registers_suffice(kProducerRegisters, kConsumers, kConsumerRegisters));

  using Queries = HopperRows<kWidth, 64>;  // of one consumer
  using Keys = HopperRows<kWidth, kKeys>;  // for keys and values
  using Steps = Ring<kStages, Keys::kBytes>;
  // With two slots, the queries of the next tile are loaded while a tile is computed. There is one
  // slot where the rings of keys and values leave no room for two.
  static constexpr int kQuerySlots =
      2 * (kConsumers * Queries::kBytes + Steps::kBytes) + 2048 <= kHopperSharedBytes ? 2 : 1;
  using QuerySlots = Ring<kQuerySlots, Queries::kBytes>;
  static constexpr int kTileBytes = kConsumers * QuerySlots::kBytes + 2 * Steps::kBytes;
};

struct HopperCall {
  ForwardParams params;
  TensorMap q, k, v;
  float scale_log2;                // scale * log2(e), positive
  uint32_t group;                  // query heads per key/value head
  uint32_t head_bits, query_bits;  // see HopperBlock; query_bits is 6 - head_bits
  HopperSchedule schedule;
};

// A tile of query rows of 2^head_bits heads that share a key/value head. Each consumer has 64 rows:
// 2^query_bits queries of the first head, then the same queries of the next one, and so on. So
// fewer rows of a tile are unused if each head has few queries. hopper_objection() leaves 32-bit
// indices room for more than a tile.
struct HopperBlock {
  int batch, head, kv_head;        // of the tensors; `head`: the tile's first one
  int first_query, first_key;      // of the batch entry or packed sequence
  int first_of_tile, end_of_tile;  // queries of the entry; may be empty
  int first_present, end_present;  // keys of the entry
  int first_seen, end_seen;        // keys that the first query sees by position
  int first_absent;                // values of keys from this one on must be cleared after loading
  int64_t alibi_shift;             // see Entry

  template <class Tile>
  static __device__ __forceinline__ HopperBlock of(const HopperCall& call,
                                                   const HopperSchedule::Place& from) {
    const rules::AttentionParams& attention = call.params.call;
    const uint32_t heads = static_cast<uint32_t>(attention.heads) >> call.head_bits;
    const uint32_t index = from.head / heads;
    const uint32_t head = (from.head - index * heads) << call.head_bits;
    const int64_t queries = Tile::kRows >> call.head_bits;
    HopperBlock block{};
    TilePlace place{index, from.rank};
    if (call.params.cu_q != nullptr) {
      place = query_axis(call.params, queries, 1).place_of(from.rank);
    }
    const Entry entry = entry_of(call.params, place.entry);
    const int64_t end = rules::least_of(attention.end_query, entry.queries);
    // Last rows first: with a causal mask they see the most keys.
    const int64_t tile = tiles_of(end - attention.first_query, queries) - 1 - place.tile;
    if (place.tile < 0 || tile < 0) return block;
    const int64_t first = attention.first_query + tile * queries;
    constexpr int kFar = INT32_MAX - 1023;
    const auto near = [](int64_t position) {
      return static_cast<int>(rules::limited(position, -kFar, kFar));
    };
    block.batch = static_cast<int>(entry.batch);
    block.head = static_cast<int>(head);
    block.kv_head = static_cast<int>(head / call.group);
    block.first_query = static_cast<int>(entry.first_query);
    block.first_key = static_cast<int>(entry.first_key);
    block.first_of_tile = static_cast<int>(first);
    block.end_of_tile = static_cast<int>(rules::least_of(end, first + queries));
    block.first_present = static_cast<int>(entry.visibility.present.first);
    block.end_present = static_cast<int>(entry.visibility.present.last);
    // TMA writes zeros for rows beyond the tensor.
    const bool is_end =
        entry.first_key + entry.visibility.present.last >= extents_of(call.params).keys;
    block.first_absent = is_end ? kFar : block.end_present;
    block.first_seen = near(first + entry.visibility.first_shift);
    block.end_seen = near(first + entry.visibility.last_shift);
    block.alibi_shift = entry.alibi_shift;
    return block;
  }

  // What options need of the batch entry or packed sequence.
  __device__ __forceinline__ Entry entry() const {
    Entry entry{};
    entry.batch = batch;
    entry.alibi_shift = alibi_shift;
    return entry;
  }

  // Keys that a query sees, as EntryVisibility::seen_by() says. Queries beyond the tile's last one
  // get the keys of the last one; they are computed but not stored.
  __device__ __forceinline__ ColumnRange visible(int query) const {
    const int at = (query < end_of_tile ? query : end_of_tile - 1) - first_of_tile;
    const int first = first_seen + at, last = end_seen + at;
    const int from = first < first_present ? first_present : first;
    const int to = last < end_present ? last : end_present;
    return {from < end_present ? from : end_present, to < 0 ? 0 : to};
  }
};

// A row of a tile: its position in the batch entry or packed sequence, and its head of q.
struct HopperRow {
  int query, head;
};
// `row`: counted from 0 in the tile.
__device__ __forceinline__ HopperRow row_of_tile(const HopperCall& call, const HopperBlock& block,
                                                 int row) {
  const uint32_t of_consumer = static_cast<uint32_t>(row) % 64;
  const uint32_t first = static_cast<uint32_t>(row) / 64 << call.query_bits;
  const uint32_t in_head = of_consumer & ((1U << call.query_bits) - 1);
  return {block.first_of_tile + static_cast<int>(first + in_head),
          block.head + static_cast<int>(of_consumer >> call.query_bits)};
}

// The keys that a tile sees, divided into steps of kKeys. The first and the last visible key never
// decrease as the query rises, so the range goes from the first query's first key to the last
// query's last key.
struct HopperSteps {
  int first_key, count;

  template <class Tile>
  static __device__ __forceinline__ HopperSteps of(const HopperBlock& block) {
    // An even key: options are loaded in pairs.
    const int first = block.visible(block.first_of_tile).first & ~1;
    const int last = block.visible(block.end_of_tile - 1).last;
    return {first, last <= first ? 0 : (last - first + Tile::kKeys - 1) / Tile::kKeys};
  }
};

struct StepRange {
  int first, last;
};

// Describes a tile to the consumers. The producer writes it.
template <class Tile>
struct alignas(16) HopperWork {
  HopperBlock block;
  HopperSteps steps;                  // count: -1 after the last tile
  int first_step;                     // steps are numbered through all tiles of the block
  StepRange whole[Tile::kConsumers];  // steps whose keys are visible to all rows of a consumer

  __device__ __forceinline__ void set_whole_steps(const HopperCall& call) {
    for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
      const int row = consumer * 64;
      const int first = block.visible(row_of_tile(call, block, row + 63).query).first;
      const int last = block.visible(row_of_tile(call, block, row).query).last;
      whole[consumer] = {(first - steps.first_key + Tile::kKeys - 1) / Tile::kKeys,
                         (last - steps.first_key) / Tile::kKeys};
    }
  }
};

template <class Tile>
struct HopperShared {
  using Steps = typename Tile::Steps;
  using QuerySlots = typename Tile::QuerySlots;
  using Works = Ring<2, sizeof(HopperWork<Tile>)>;
  static constexpr int kBarriers =
      Tile::kConsumers * QuerySlots::kBarriers + 2 * Steps::kBarriers + Works::kBarriers;
  static constexpr int kBytes = Tile::kTileBytes + Works::kBytes + 8 * kBarriers;
  static_assert(kBytes <= kHopperSharedBytes);

  std::byte* memory;

  // The rings of keys and of values, and one of queries for each consumer: its next queries can
  // arrive while the other consumers still use theirs.
  __device__ __forceinline__ Steps keys() const { return Steps::of(memory + kKeysAt, barriers()); }
  __device__ __forceinline__ Steps values() const {
    return Steps::of(memory + kKeysAt + Steps::kBytes, barriers() + Steps::kBarriers);
  }
  __device__ __forceinline__ QuerySlots queries(int consumer) const {
    return QuerySlots::of(memory + consumer * QuerySlots::kBytes,
                          barriers() + 2 * Steps::kBarriers + consumer * QuerySlots::kBarriers);
  }
  // Descriptions of the block's tiles. A slot is released when its tile is stored.
  __device__ __forceinline__ Works works() const {
    return Works::of(memory + Tile::kTileBytes, barriers() + kBarriers - Works::kBarriers);
  }
  __device__ __forceinline__ HopperWork<Tile>& work(int tile) const {
    return *reinterpret_cast<HopperWork<Tile>*>(works().at(tile));
  }

  __device__ __forceinline__ void init_barriers() const {
    keys().init_barriers(1, 4 * Tile::kConsumers);
    values().init_barriers(1, 4 * Tile::kConsumers);
    for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
      queries(consumer).init_barriers(1, 4);
    }
    works().init_barriers(1, 4 * Tile::kConsumers);
    mbarrier_init_fence();
  }

 private:
  static constexpr int kKeysAt = Tile::kConsumers * QuerySlots::kBytes;

  __device__ __forceinline__ uint64_t* barriers() const {
    return reinterpret_cast<uint64_t*>(memory + Tile::kTileBytes + Works::kBytes);
  }
};

}  // namespace multihead::cuda
