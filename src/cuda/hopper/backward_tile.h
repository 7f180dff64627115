// The Hopper backward kernels: tile sizes, the work of a block, and its shared memory.
//
// A block keeps kKept rows of two tensors, 64 for each consumer warpgroup, and loops over the rows
// of the two other tensors ("passing" rows), kStep at a time:
//
//                  kept       passing    products of a step   sums
//   d_k and d_v    K, V       Q, d_out   K Q^T, V d_out^T     dS^T Q, P^T d_out
//   d_q            Q, d_out   K, V       Q K^T, d_out V^T     dS K
//
// Kept rows in shared memory are the left operand of the first two products. Their results stay in
// registers, in the layout that the next products need for their left operand, so weights never go
// through shared memory.
//
//   d, sums           step  slots  registers of sums and products   shared memory
//   64, d_k and d_v    112  3 + 3           64 + 112                   119 KiB
//   64, d_q            128  3 + 3           32 + 128                   128 KiB
//   128, d_k and d_v    64  3 + 3           128 + 64                   162 KiB
//   128, d_q           112  3 + 2           64 + 112                   204 KiB
//   256, d_k            64  2 + 1           128 + 64                   225 KiB
//   256, d_v            64  2 + 2           128 + 32                   193 KiB
//   256, d_q            64  2 + 1           128 + 64                   224 KiB
//
// With a step of 128 in the first and fourth line, ptxas has too few registers to let products
// overlap. Packed weights take step / 4 more registers, for d_k and d_v twice that. At d 256, the
// sums of d_k and d_v together would take all registers, so each has its own kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/divide.h"
#include "cuda/hopper/ring.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/tiles.h"
#include "rules/visibility.h"

namespace multihead::cuda {

enum class HopperSums : uint8_t { kQueries, kKeys, kValues, kKeysAndValues };

// kSlots: slots of the ring of Q or K. kSecondSlots: slots of the ring of d_out or V.
template <HopperSums kSums, int kWidth_, int kStep_, int kSlots_, int kSecondSlots_>
struct HopperBackwardTile {
  static constexpr bool kOfKeys = kSums != HopperSums::kQueries;     // false: queries are kept
  static constexpr bool kSumsScores = kSums != HopperSums::kValues;  // d_q or d_k
  static constexpr bool kSumsValues = kOfKeys && kSums != HopperSums::kKeys;  // d_v
  static constexpr int kWidth = kWidth_;
  static constexpr int kStep = kStep_;
  static constexpr int kSlots = kSlots_;
  static constexpr int kSecondSlots = kSecondSlots_;
  static constexpr int kConsumers = 2;  // warpgroups
  static constexpr int kKept = 64 * kConsumers;
  static constexpr int kThreads = kWarpgroupSize * (kConsumers + 1);
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;
  static_assert(registers_suffice(kProducerRegisters, kConsumers, kConsumerRegisters));
  // A slot is released one step after its last product was enqueued, and that step needs another
  // slot.
  static_assert(kSlots >= 2 && (kSecondSlots >= 2 || !kSumsValues));

  using Kept = HopperRows<kWidth, kKept>;
  using Passing = HopperRows<kWidth, kStep>;
  static constexpr int kKeptBytes = (kSumsScores ? 2 : 1) * Kept::kBytes;
  using First = Ring<kSlots, Passing::kBytes>;
  using Second = Ring<kSecondSlots, Passing::kBytes>;
  static constexpr int kPassingBytes = First::kBytes + Second::kBytes;
  // Reference and delta of passing queries, as floats.
  static constexpr int kRowBytes = kOfKeys ? kSlots * 2 * kStep * 4 : 0;
  static constexpr int kBarrierBytes = 8 * (2 + First::kBarriers + Second::kBarriers);
  static constexpr int kSharedBytes = kKeptBytes + kPassingBytes + kRowBytes + kBarrierBytes;
  static_assert(kSharedBytes <= kHopperSharedBytes);
};

// The tile scheduler: maps a block index to a head and the rank of a tile. Heads are served in
// groups whose shared operands fit in the L2 cache. Within a group, tiles of rank 0 of all heads
// come first, then rank 1, and so on. Give rank 0 to the longest tiles: long tiles that start late
// would leave other multiprocessors idle.
struct HopperPlace {
  int64_t head, rank;  // head: `heads` or more for a block without work

  static __device__ __forceinline__ HopperPlace of(int64_t tiles, int64_t heads,
                                                   int64_t heads_at_once) {
    const int64_t index = block_number();
    if (index >= tiles * heads) return {heads, 0};
    const int64_t first_head = divide(index, tiles * heads_at_once).quotient * heads_at_once;
    const int64_t in_group = rules::least_of(heads_at_once, heads - first_head);
    const auto [rank, head] = divide(index - first_head * tiles, in_group);
    return {first_head + head, rank};
  }
};

struct HopperBackwardCall {
  BackwardParams params;
  TensorMap q, k, v, d_out;
  float scale_log2;       // scale * log2(e), applied to products of q and k
  float reference_log2;   // converts BackwardParams::reference to the same exponent
  int64_t tiles;          // of kept rows per head: slots of axis_of()
  int64_t heads;          // with kept rows, of all batch entries, or of the packed sequences
  int64_t heads_at_once;  // see HopperPlace
};

template <class Tile>
constexpr TileAxis axis_of(const ForwardParams& params) {
  return Tile::kOfKeys ? key_axis(params, Tile::kKept) : query_axis(params, Tile::kKept, 1);
}

struct HopperBackwardBlock {
  Entry entry;
  int64_t head, kv_head;       // head: of kept queries, or the first query head of kv_head
  int first_kept, end_kept;    // kept keys or queries of the entry; may be empty
  int first_passing, passing;  // passing rows per head
  int heads;                   // heads with passing rows
  int end_present;             // first passing row that must be cleared after loading

  template <class Tile>
  static __device__ __forceinline__ HopperBackwardBlock of(const HopperBackwardCall& call) {
    const rules::AttentionParams& attention = call.params.forward.call;
    const int64_t kept_heads = Tile::kOfKeys ? attention.kv_heads : attention.heads;
    const auto [index, rank] = HopperPlace::of(call.tiles, call.heads, call.heads_at_once);
    HopperBackwardBlock block{};
    if (index >= call.heads) return block;
    const auto [batch, kept_head] = divide(index, kept_heads);
    TilePlace place{batch, rank};
    const ForwardParams& forward = call.params.forward;
    if (forward.cu_q != nullptr) place = axis_of<Tile>(forward).place_of(rank);
    block.entry = entry_of(forward, place.entry);
    const auto group = static_cast<int>(attention.group());
    block.head = kept_head * (Tile::kOfKeys ? group : 1);
    block.kv_head = Tile::kOfKeys ? kept_head : divide(kept_head, group).quotient;
    block.heads = Tile::kOfKeys ? group : 1;
    // Longest tiles first. With a causal mask, most queries see the first keys, and the last
    // queries see the most keys.
    const int64_t kept = Tile::kOfKeys ? block.entry.keys : block.entry.queries;
    const int64_t last = tiles_of(kept, Tile::kKept) - 1;
    if (place.tile < 0 || place.tile > last) return block;
    const int64_t first = (Tile::kOfKeys ? place.tile : last - place.tile) * Tile::kKept;
    block.first_kept = static_cast<int>(first);
    block.end_kept = static_cast<int>(rules::least_of(kept, first + Tile::kKept));
    ColumnRange passing{};
    if constexpr (Tile::kOfKeys) {
      passing = block.seeing({first, block.end_kept});
      // TMA writes zeros for rows beyond the last query of the tensor.
      block.end_present = forward.cu_q == nullptr ? passing.last + Tile::kStep
                                                  : static_cast<int>(block.entry.queries);
    } else {
      // The first and the last visible key never decrease as the query rises.
      passing = {block.visible<Tile>(block.first_kept).first,
                 block.visible<Tile>(block.end_kept - 1).last};
      block.end_present = static_cast<int>(block.entry.visibility.present.last);
    }
    block.first_passing = passing.first;
    block.passing = passing.last > passing.first ? passing.last - passing.first : 0;
    return block;
  }

  // The range of passing rows that a kept row sees or is seen by. Both ends never decrease as the
  // row rises, except for keys that no query sees. Kept rows beyond the last one get the range of
  // the last one; they are computed but not stored.
  template <class Tile>
  __device__ __forceinline__ ColumnRange visible(int row) const {
    const int64_t kept = rules::least_of(row, end_kept - 1);
    if constexpr (Tile::kOfKeys) return seeing({kept, kept + 1});
    return seen_columns(entry.visibility, kept);
  }

  __device__ __forceinline__ int steps_of_head(int step_rows) const {
    return (passing + step_rows - 1) / step_rows;
  }

 private:
  __device__ __forceinline__ ColumnRange seeing(const rules::KeyRange& keys) const {
    const rules::QueryRange queries = entry.visibility.queries_seeing(keys);
    return {static_cast<int>(rules::limited(queries.first, 0, entry.queries)),
            static_cast<int>(rules::limited(queries.last, 0, entry.queries))};
  }
};

template <class Tile>
struct HopperBackwardShared {
  using First = typename Tile::First;
  using Second = typename Tile::Second;

  std::byte *kept, *second_kept;  // K and V, or Q and d_out
  uint64_t *kept_full, *second_kept_full;
  First first;    // of Q or K
  Second second;  // of d_out or V
  float* rows;    // per slot of the first ring: kStep references, then kStep deltas

  static __device__ __forceinline__ HopperBackwardShared of(std::byte* memory) {
    std::byte* const ring = memory + Tile::kKeptBytes;
    std::byte* const rows = ring + Tile::kPassingBytes;
    auto* const barriers = reinterpret_cast<uint64_t*>(rows + Tile::kRowBytes);
    return {.kept = memory,
            .second_kept = memory + Tile::Kept::kBytes,
            .kept_full = barriers,
            .second_kept_full = barriers + 1,
            .first = First::of(ring, barriers + 2),
            .second = Second::of(ring + First::kBytes, barriers + 2 + First::kBarriers),
            .rows = reinterpret_cast<float*>(rows)};
  }

  // The references of a step's queries; kStep floats further: their deltas.
  __device__ __forceinline__ float* rows_of(int step) const {
    return rows + First::slot_of(step) * 2 * Tile::kStep;
  }

  __device__ __forceinline__ void init_barriers() const {
    mbarrier_init(kept_full, 1);
    mbarrier_init(second_kept_full, 1);
    // One more arrival than the copying thread's: the warp that stores references and deltas.
    first.init_barriers(Tile::kOfKeys ? 2 : 1, 4 * Tile::kConsumers);
    second.init_barriers(1, 4 * Tile::kConsumers);
    mbarrier_init_fence();
  }
};

}  // namespace multihead::cuda
