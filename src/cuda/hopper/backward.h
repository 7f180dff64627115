// Attention backward for Hopper (sm_90a): d_q, d_k and d_v through TMA and wgmma. One producer
// warpgroup only loads, two consumer warpgroups compute. backward_tile.h lists the products.
//
// FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) uses one kernel, whose blocks add their
// parts of d_q in no fixed order. Here there are two kernels: weights and their gradients are
// computed twice, 7 products instead of 5, but one block computes each sum, in a fixed order.
// By FlashAttention-3's own figures, one kernel with a fixed order is hardly faster
// (native/BENCHMARKS.md).
//
// In each step, a consumer warpgroup enqueues both products of scores, takes the exponentials of
// the first while the second runs, enqueues P^T d_out, computes dS while P^T d_out runs, and
// enqueues the product with dS, which overlaps the scores of the next step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/backward_singly.h"
#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/backward_tile.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"
#include "cuda/params.h"
#include "rules/attention_params.h"

namespace multihead::cuda {

// --- The producer: one thread copies; for d_k and d_v one warp stores references and deltas ---

// Calls visit(step, head, first) for all steps, head after head. `first`: first passing row of the
// step.
template <class Tile, class Visit>
__device__ __forceinline__ void for_each_step(const HopperBackwardBlock& block,
                                              const Visit& visit) {
  const int steps = block.steps_of_head(Tile::kStep);
  int step = 0;
  for (int head = 0; head < block.heads; ++head) {
    for (int i = 0; i < steps; ++i, ++step) {
      visit(step, head, block.first_passing + i * Tile::kStep);
    }
  }
}

template <class Tile>
__device__ __forceinline__ void copy_tiles(const HopperBackwardCall& call,
                                           const HopperBackwardBlock& block,
                                           const HopperBackwardShared<Tile>& shared) {
  using Kept = typename Tile::Kept;
  using Passing = typename Tile::Passing;
  const TensorMap& kept = Tile::kOfKeys ? call.k : call.q;
  const TensorMap& second_kept = Tile::kOfKeys ? call.v : call.d_out;
  const TensorMap& passing = Tile::kOfKeys ? call.q : call.k;
  const TensorMap& second_passing = Tile::kOfKeys ? call.d_out : call.v;
  const Entry& entry = block.entry;
  const int64_t kept_head = Tile::kOfKeys ? block.kv_head : block.head;
  const int64_t first_kept =
      (Tile::kOfKeys ? entry.first_key : entry.first_query) + block.first_kept;
  if (block.passing == 0) return;
  load_rows<Kept>(shared.kept, kept, shared.kept_full, first_kept, kept_head, entry.batch);
  for_each_step<Tile>(block, [&](int step, int head_of_step, int first) {
    const int64_t head = Tile::kOfKeys ? block.head + head_of_step : block.kv_head;
    const int64_t row = (Tile::kOfKeys ? entry.first_query : entry.first_key) + first;
    shared.first.wait_empty(step);
    load_rows<Passing>(shared.first.at(step), passing, shared.first.full_of(step), row, head,
                       entry.batch);
    if constexpr (Tile::kSumsScores) {
      if (step == 0) {
        load_rows<Kept>(shared.second_kept, second_kept, shared.second_kept_full, first_kept,
                        kept_head, entry.batch);
      }
    }
    shared.second.wait_empty(step);
    load_rows<Passing>(shared.second.at(step), second_passing, shared.second.full_of(step), row,
                       head, entry.batch);
  });
}

// One warp calls it. Converts references to base-2 exponents.
template <class Tile>
__device__ __forceinline__ void store_rows(const HopperBackwardCall& call,
                                           const HopperBackwardBlock& block,
                                           const HopperBackwardShared<Tile>& shared) {
  const Entry& entry = block.entry;
  for_each_step<Tile>(block, [&](int step, int head, int first) {
    // Load all rows before storing the first: with one latency of memory for each 32 rows, this
    // warp took longer than the products of a step of d 64.
    constexpr int kOfLane = (Tile::kStep + kWarpSize - 1) / kWarpSize;
    float reference[kOfLane] = {}, delta[kOfLane] = {};
    const int64_t first_row = entry.first_query + first + lane();
    const float* const references =
        call.params.reference.row(entry.batch, block.head + head, first_row);
    const float* const deltas = call.params.delta.row(entry.batch, block.head + head, first_row);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int row = i * kWarpSize;
      if (row + lane() >= Tile::kStep || first + row + lane() >= entry.queries) continue;
      reference[i] = references[row];
      delta[i] = deltas[row];
    }
    float* const rows = shared.rows_of(step) + lane();
    shared.first.wait_empty(step);
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int row = i * kWarpSize;
      if (row + lane() >= Tile::kStep) continue;
      rows[row] = reference[i] * call.reference_log2;
      rows[Tile::kStep + row] = delta[i];
    }
    sync_warp();
    if (lane() == 0) mbarrier_arrive(shared.first.full_of(step));
  });
}

// --- Consumers ---

struct alignas(8) FloatPair {
  float left, right;
};

// The references, or the deltas, that belong to a thread's scores. Kept queries are the thread's
// two rows, passing queries its columns.
template <class Tile>
struct HopperQueries {
  float values[Tile::kOfKeys ? Tile::kStep / 4 : 2];

  // Loads the values of passing queries from `rows`, see HopperBackwardShared.
  static __device__ __forceinline__ HopperQueries load(const float* rows) {
    HopperQueries loaded;
#pragma unroll
    for (int i = 0; i < Tile::kStep / 8; ++i) {
      const auto pair = reinterpret_cast<const FloatPair*>(rows)[4 * i + lane() % 4];
      loaded.values[2 * i] = pair.left;
      loaded.values[2 * i + 1] = pair.right;
    }
    return loaded;
  }
  // Returns the value of the query that score i belongs to.
  __device__ __forceinline__ float of(int i) const {
    return values[Tile::kOfKeys ? i / 4 * 2 + i % 2 : i / 2 % 2];
  }
};

// Stores a warpgroup's 64 rows of one gradient. Sets wrong[i] if this thread has a number of its
// row i that is not finite.
template <size_t kCount>
__device__ __forceinline__ void store_sums(const rules::Rows<float>& to, int64_t batch,
                                           int64_t head, int64_t first_row, int thread_row,
                                           int end_row, const float (&sums)[kCount], float factor,
                                           bool (&wrong)[2]) {
  if (to.data == nullptr) return;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int row = thread_row + 8 * which;
    if (row >= end_row) continue;
    auto* const pairs =
        reinterpret_cast<FloatPair*>(to.row(batch, head, first_row + row)) + lane() % 4;
    // The sum of all numbers times 0 is NaN if one of them is not finite, else 0.
    float total = 0.0F;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kCount); i += 4) {
      const FloatPair pair{sums[i + 2 * which] * factor, sums[i + 2 * which + 1] * factor};
      total += pair.left * 0.0F + pair.right * 0.0F;
      pairs[i] = pair;
    }
    wrong[which] = wrong[which] || total != 0.0F;
  }
}

// Not inlined, so that it takes no registers from the products.
template <class Tile>
__device__ __noinline__ void correct_row(const HopperBackwardCall& call, int row, bool of_scores,
                                         bool of_values) {
  const HopperBackwardBlock block = HopperBackwardBlock::of<Tile>(call);
  if constexpr (Tile::kOfKeys) {
    const int64_t group = call.params.forward.call.group();
    const ColumnRange queries = block.visible<Tile>(row);
    write_key_singly(call.params, block.entry, block.kv_head, row,
                     {queries.first * group, queries.last * group}, of_scores, of_values);
  } else {
    write_query_singly(call.params, block.entry, block.head, row);
  }
}

// Recomputes each row of d_q or d_k for which some lane has set `scores`, and each row of d_v for
// which one has set `values`. The products of tiles give NaN where a hidden weight of 0 meets a
// NaN, and an f16 gradient of a score may overflow.
template <class Tile>
__device__ __forceinline__ void correct_rows(const HopperBackwardCall& call, int thread_row,
                                             const bool (&scores)[2], const bool (&values)[2]) {
  for (int which = 0; which < 2; ++which) {
    const uint32_t of_scores = ballot(scores[which]), of_values = ballot(values[which]);
    if ((of_scores | of_values) == 0) continue;
    for (int row = 0; row < 8; ++row) {
      const uint32_t lanes = 0xFU << (4 * row);
      if (((of_scores | of_values) & lanes) == 0) continue;
      correct_row<Tile>(call, thread_row - lane() / 4 + 8 * which + row, (of_scores & lanes) != 0,
                        (of_values & lanes) != 0);
    }
  }
}

template <class T, class Tile>
__device__ __forceinline__ void consume(const HopperBackwardCall& call,
                                        const HopperBackwardBlock& block,
                                        const HopperBackwardShared<Tile>& shared, int consumer) {
  using Kept = typename Tile::Kept;
  using Passing = typename Tile::Passing;
  constexpr int kScores = Tile::kStep / 2;
  const Entry& entry = block.entry;
  const int group_row = block.first_kept + consumer * 64;
  const int thread_row = group_row + thread_index() % kWarpgroupSize / kWarpSize * 16 + lane() / 4;
  HopperQueries<Tile> references{}, deltas{};
  ColumnRange visible[2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int row = thread_row + 8 * which;
    visible[which] = block.visible<Tile>(row);
    if constexpr (!Tile::kOfKeys) {
      if (row < block.end_kept) {
        const int64_t query = entry.first_query + row;
        references.values[which] =
            *call.params.reference.row(entry.batch, block.head, query) * call.reference_log2;
        deltas.values[which] = *call.params.delta.row(entry.batch, block.head, query);
      }
    }
  }
  // `common`: passing rows that are visible to (or that see) every kept row of the warpgroup. A key
  // that no query sees has an empty range, and its ends need not lie between the ends of its
  // neighbors.
  const ColumnRange of_first = block.visible<Tile>(group_row);
  const ColumnRange of_last = block.visible<Tile>(group_row + 63);
  const ColumnRange common{of_last.first,
                           of_last.first < of_last.last ? of_first.last : of_last.first};

  float score_sums[Tile::kWidth / 2] = {};  // sums of d_q or d_k
  float value_sums[Tile::kSumsValues ? Tile::kWidth / 2 : 1] = {};
  float s[kScores];
  float d[kScores];
  uint32_t weights[Tile::kStep / 16][4];
  uint32_t d_scores[Tile::kStep / 16][4];
  const std::byte* const kept = shared.kept + consumer * 64 * 128;
  const std::byte* const second_kept = shared.second_kept + consumer * 64 * 128;
  if (block.passing > 0) mbarrier_wait(shared.kept_full, 0);
  for_each_step<Tile>(block, [&](int step, int /*head*/, int first) {
    std::byte* const tile = shared.first.at(step);
    std::byte* const second = shared.second.at(step);
    const bool all_visible = first >= common.first && first + Tile::kStep <= common.last;
    shared.first.wait_full(step);
    if (first + Tile::kStep > block.end_present) {
      clear_rows<Passing, Tile::kConsumers>(tile, block.end_present - first);
      if constexpr (Tile::kSumsValues) {
        shared.second.wait_full(step);
        clear_rows<Passing, Tile::kConsumers>(second, block.end_present - first);
      }
      finish_clearing<Tile::kConsumers>();
    }
    wgmma_fence();
    multiply_transposed<T, Kept, Passing>(s, kept, tile);
    if (step == 0 && Tile::kSumsScores) mbarrier_wait(shared.second_kept_full, 0);
    shared.second.wait_full(step);
    if constexpr (Tile::kSumsScores) {
      wgmma_fence();
      multiply_transposed<T, Kept, Passing>(d, second_kept, second);
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    wgmma_touch(s);
    // The products of the previous step have ended too.
    if (step > 0) {
      shared.first.release(step - 1);
      if constexpr (Tile::kSumsValues) shared.second.release(step - 1);
    }
    if constexpr (Tile::kOfKeys) references = HopperQueries<Tile>::load(shared.rows_of(step));
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_approx(fmaf(s[i], call.scale_log2, -references.of(i)));
    }
    if (!all_visible) hide(s, visible, first, 0.0F);
    if constexpr (Tile::kSumsValues) {
      pack_weights<T>(s, weights);
      wgmma_fence();
      add_product<T, Passing>(value_sums, weights, second);
    }
    if constexpr (Tile::kSumsScores) {
      wgmma_wait<Tile::kSumsValues ? 1 : 0>();
      wgmma_touch(d);
      if constexpr (!Tile::kSumsValues) shared.second.release(step);
      if constexpr (Tile::kOfKeys) {
        deltas = HopperQueries<Tile>::load(shared.rows_of(step) + Tile::kStep);
      }
#pragma unroll
      for (int i = 0; i < kScores; ++i) d[i] = s[i] * (d[i] - deltas.of(i));
      // A hidden weight of 0 times a NaN gradient is NaN.
      if (!all_visible) hide(d, visible, first, 0.0F);
      // Wait for P^T d_out, which overlapped the work above. If registers of the next product were
      // written while it runs, ptxas would serialize all products.
      wgmma_wait<0>();
      pack_weights<T>(d, d_scores);
      wgmma_fence();
      add_product<T, Passing>(score_sums, d_scores, tile);
    }
  });
  wgmma_wait<0>();
  wgmma_touch(score_sums);
  wgmma_touch(value_sums);

  const BackwardParams& params = call.params;
  bool wrong_scores[2] = {false, false}, wrong_values[2] = {false, false};
  if constexpr (!Tile::kOfKeys) {
    store_sums(params.d_q, entry.batch, block.head, entry.first_query, thread_row, block.end_kept,
               score_sums, params.scale, wrong_scores);
  } else {
    if constexpr (Tile::kSumsScores) {
      store_sums(params.d_k, entry.batch, block.kv_head, entry.first_key, thread_row,
                 block.end_kept, score_sums, params.scale, wrong_scores);
    }
    if constexpr (Tile::kSumsValues) {
      store_sums(params.d_v, entry.batch, block.kv_head, entry.first_key, thread_row,
                 block.end_kept, value_sums, 1.0F, wrong_values);
    }
  }
  sync_warp();  // corrected rows must be written after the rows above
  correct_rows<Tile>(call, thread_row, wrong_scores, wrong_values);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    backward_hopper(const __grid_constant__ HopperBackwardCall call) {
  let_next_kernel_start();
  const auto block = HopperBackwardBlock::of<Tile>(call);
  if (block.first_kept >= block.end_kept) {
    wait_for_previous_kernel();
    return;
  }
  const auto shared = HopperBackwardShared<Tile>::of(shared_memory());
  if (thread_index() == 0) shared.init_barriers();
  sync_threads();
  const int group = uniform(warpgroup());
  if (group == 0) {
    set_max_registers_down<Tile::kProducerRegisters>();
    if (thread_index() == 0) {
      copy_tiles<Tile>(call, block, shared);
      // This kernel must not end before the call's previous ones.
      wait_for_previous_kernel();
    }
    if (Tile::kOfKeys && uniform(warp()) == 1) store_rows<Tile>(call, block, shared);
  } else {
    set_max_registers_up<Tile::kConsumerRegisters>();
    consume<T, Tile>(call, block, shared, group - 1);
  }
}

}  // namespace multihead::cuda
