// Attention forward for Hopper (sm_90a): tiles by TMA, products by wgmma. One producer warpgroup
// only loads, two or three consumer warpgroups compute. After FlashAttention-3 (Shah et al. 2024,
// arXiv:2407.08608).
//
// A block computes kRows query rows of one head. Its producer thread copies the tile of queries,
// then tiles of kKeys keys and values into rings of kStages slots, ahead of the consumers; each
// slot has a barrier for "full" and one for "empty". A consumer warpgroup owns 64 rows, and keeps
// their scores, weights and outputs in registers. It enqueues two products together:
//   scores of tile i  and  output += weights of tile i - 1 times its values.
// As soon as the scores of tile i arrive, it takes their exponentials, while the tensor cores
// compute the second product. With kTakesTurns, warpgroups enqueue their products in turns, so that
// one computes exponentials while the products of another run.
//
// No kernel of this file has run on a GPU yet; the tests run it in the emulator of tests/cuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/epilogue.h"
#include "cuda/hopper/forward_tile.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"

namespace multihead::cuda {

// --- The producer: one thread ---

template <class Tile>
__device__ __forceinline__ void load_step(const typename Tile::Steps& ring, const TensorMap& map,
                                          const HopperBlock& block, const HopperSteps& steps,
                                          int step) {
  ring.wait_empty(step);
  load_rows<typename Tile::Keys>(
      ring.at(step), map, ring.full_of(step),
      block.entry.first_key + steps.first_key + int64_t{step} * Tile::kKeys, block.kv_head,
      block.entry.batch);
}

template <class Tile>
__device__ __forceinline__ void produce(const HopperCall& call, const HopperBlock& block,
                                        const HopperSteps& steps,
                                        const HopperShared<Tile>& shared) {
  if (steps.count == 0) return;
  load_rows<typename Tile::Queries>(shared.queries, call.q, shared.queries_full,
                                    block.entry.first_query + block.first_row, block.head,
                                    block.entry.batch);
  // Load in the order in which consumers need the tiles: values one step behind keys.
  for (int step = 0; step <= steps.count; ++step) {
    if (step < steps.count) {
      load_step<Tile>(shared.keys, call.k, block, steps, step);
    }
    if (step > 0) {
      load_step<Tile>(shared.values, call.v, block, steps, step - 1);
    }
  }
}

// --- Consumers ---

// Consumers enqueue their products in turns: warpgroup 1, 2, (3,) 1, ...
template <class Tile>
struct HopperTurns {
  int consumer;  // from 0
  int steps;     // number of steps that have a turn

  __device__ __forceinline__ void begin() const {
    if (Tile::kTakesTurns && steps > 0 && consumer == Tile::kConsumers - 1) pass_to(0);
  }
  __device__ __forceinline__ void wait() const {
    if (Tile::kTakesTurns) barrier_sync(1 + consumer, 2 * kWarpgroupSize);
  }
  // Passes the turn to the next consumer. `step` counts turns from 0. The very last turn has no
  // successor.
  __device__ __forceinline__ void pass(int step) const {
    if (!Tile::kTakesTurns) return;
    if (consumer < Tile::kConsumers - 1) {
      pass_to(consumer + 1);
    } else if (step < steps - 1) {
      pass_to(0);
    }
  }

 private:
  __device__ __forceinline__ void pass_to(int next) const {
    barrier_arrive(1 + next, 2 * kWarpgroupSize);
  }
};

template <class T, class Tile>
__device__ __forceinline__ void consume(const HopperCall& call, const HopperBlock& block,
                                        const HopperSteps& steps, const HopperShared<Tile>& shared,
                                        int consumer) {
  using Queries = typename Tile::Queries;
  using Keys = typename Tile::Keys;
  const int thread_row = block.first_row + consumer * 64 +
                         thread_index() % kWarpgroupSize / kWarpSize * 16 + lane() / 4;
  ColumnRange visible[2];
#pragma unroll
  for (int which = 0; which < 2; ++which) visible[which] = block.visible(thread_row + 8 * which);
  // `common`: keys that all rows of the warpgroup see.
  const int group_row = block.first_row + consumer * 64;
  const ColumnRange common{block.visible(group_row + 63).first, block.visible(group_row).last};

  float o[Tile::kWidth / 2] = {};
  HopperSoftmax softmax;
  if (steps.count > 0) {
    const std::byte* const queries = shared.queries + consumer * 64 * 128;
    const HopperTurns<Tile> turns{consumer, steps.count - 1};
    float s[Tile::kKeys / 2];
    uint32_t weights[Tile::kKeys / 16][4];
    float factor[2];
    const auto soften = [&](int step) {
      const int first_key = steps.first_key + step * Tile::kKeys;
      if (first_key < common.first || first_key + Tile::kKeys > common.last) {
        hide(s, visible, first_key, -std::numeric_limits<float>::infinity());
      }
      softmax.step(s, call.scale_log2, factor);
    };

    turns.begin();
    mbarrier_wait(shared.queries_full, 0);
    shared.keys.wait_full(0);
    wgmma_fence();
    multiply_transposed<T, Queries, Keys>(s, queries, shared.keys.at(0));
    wgmma_wait<0>();
    wgmma_touch(s);
    shared.keys.release(0);
    soften(0);
    pack_weights<T>(s, weights);

    for (int step = 1; step < steps.count; ++step) {
      const int before = step - 1;
      if (step == 1) shared.keys.wait_full(step);
      turns.wait();
      wgmma_fence();
      multiply_transposed<T, Queries, Keys>(s, queries, shared.keys.at(step));
      shared.values.wait_full(before);
      wgmma_fence();
      add_product<T, Keys>(o, weights, shared.values.at(before));
      turns.pass(before);
      wgmma_wait<1>();
      wgmma_touch(s);
      shared.keys.release(step);
      soften(step);
      // Wait for the next keys here: the branch ends a basic block, else ptxas moves
      // wgmma_wait<0>() above the exponentials, and the second product overlaps with nothing.
      if (step + 1 < steps.count) shared.keys.wait_full(step + 1);
      wgmma_wait<0>();
      wgmma_touch(o);
      shared.values.release(before);
#pragma unroll
      for (int i = 0; i < Tile::kWidth / 2; ++i) o[i] *= factor[i / 2 % 2];
      pack_weights<T>(s, weights);
    }

    const int last = steps.count - 1;
    shared.values.wait_full(last);
    const auto present = static_cast<int>(block.entry.visibility.present.last);
    const int first_key = steps.first_key + last * Tile::kKeys;
    if (present < first_key + Tile::kKeys) {
      clear_rows<Keys, Tile::kConsumers>(shared.values.at(last), present - first_key);
      finish_clearing<Tile::kConsumers>();
    }
    wgmma_fence();
    add_product<T, Keys>(o, weights, shared.values.at(last));
    wgmma_wait<0>();
    wgmma_touch(o);
  }
  finish<T, Tile>(call, block, visible, thread_row, softmax, o);
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    forward_hopper(const __grid_constant__ HopperCall call) {
  const auto block = HopperBlock::of<Tile>(call);
  if (block.first_row >= block.end_row) return;
  const auto steps = HopperSteps::of<Tile>(block);
  const auto shared = HopperShared<Tile>::of(shared_memory());
  if (thread_index() == 0) shared.init_barriers();
  sync_threads();
  const int group = uniform(warpgroup());
  if (group == 0) {
    set_max_registers_down<Tile::kProducerRegisters>();
    if (thread_index() == 0) produce<Tile>(call, block, steps, shared);
  } else {
    set_max_registers_up<Tile::kConsumerRegisters>();
    consume<T, Tile>(call, block, steps, shared, group - 1);
  }
}

}  // namespace multihead::cuda
