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

// Where the keys and values of a step are.
struct HopperKeyPlace {
  int64_t row, head, batch;
};

template <class Tile>
__device__ __forceinline__ void load_step(const typename Tile::Steps& ring, const TensorMap& map,
                                          const HopperKeyPlace& place, int step) {
  ring.wait_empty(step);
  load_rows<typename Tile::Keys>(ring.at(step), map, ring.full_of(step), place.row, place.head,
                                 place.batch);
}

// Describes a tile to the consumers.
template <class Tile>
__device__ __forceinline__ void publish(const HopperWork& work, const HopperShared<Tile>& shared,
                                        int tile) {
  const auto works = shared.works();
  works.wait_empty(tile);
  shared.work(tile) = work;
  mbarrier_arrive(works.full_of(tile));
}

template <class Tile>
__device__ __forceinline__ void load_queries(const HopperCall& call, const HopperBlock& block,
                                             const HopperShared<Tile>& shared, int tile) {
  for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
    const auto slots = shared.queries(consumer);
    slots.wait_empty(tile);
    load_rows<typename Tile::Queries>(slots.at(tile), call.q, slots.full_of(tile),
                                      block.entry.first_query + block.first_row + consumer * 64,
                                      block.head, block.entry.batch);
  }
}

// Loads in the order in which slots become empty. Values are one step behind keys, also from one
// tile to the next.
template <class Tile>
__device__ __forceinline__ void produce(const HopperCall& call, const HopperShared<Tile>& shared) {
  const auto keys = shared.keys(), values = shared.values();
  int step = 0;              // number of tiles of keys that are loaded
  bool has_values = false;   // the values of step - 1 are not loaded yet
  int tile = 0, seeing = 0;  // numbers of tiles, and of those that see keys
  HopperKeyPlace before{};   // of step - 1
  const auto load_values = [&] {
    if (has_values) load_step<Tile>(values, call.v, before, step - 1);
    has_values = false;
  };
  for (uint32_t i = 0; i < call.schedule.tiles_of_block(); ++i) {
    const auto place = call.schedule.place(static_cast<uint32_t>(block_number()), i);
    if (!place.exists) continue;
    HopperWork work;
    work.block = HopperBlock::of<Tile>(call, place);
    if (work.block.first_row >= work.block.end_row) continue;
    work.steps = HopperSteps::of<Tile>(work.block);
    const Entry& entry = work.block.entry;
    HopperKeyPlace from{entry.first_key + work.steps.first_key, work.block.kv_head, entry.batch};
    if (work.steps.count == 0) {
      load_values();
      publish(work, shared, tile++);
    }
    for (int left = work.steps.count; left > 0; --left) {
      load_step<Tile>(keys, call.k, from, step);
      load_values();
      if (left == work.steps.count) {
        publish(work, shared, tile++);
        load_queries(call, work.block, shared, seeing++);
      }
      has_values = true;
      before = from;
      from.row += Tile::kKeys;
      ++step;
    }
  }
  load_values();
  HopperWork end{};
  end.steps.count = -1;
  publish(end, shared, tile);
}

// --- Consumers ---

// Consumers enqueue their products in turns: warpgroup 1, 2, (3,) 1, ...
template <class Tile>
struct HopperTurns {
  int consumer;  // from 0

  __device__ __forceinline__ void begin() const {
    if (is_last()) pass_to(0);
  }
  __device__ __forceinline__ void wait() const {
    if (Tile::kTakesTurns) barrier_sync(1 + consumer, 2 * kWarpgroupSize);
  }
  // Passes the turn to the next consumer.
  __device__ __forceinline__ void pass() const { pass_to(is_last() ? 0 : consumer + 1); }
  // The very last turn has no successor.
  __device__ __forceinline__ void end() const {
    if (!is_last()) pass_to(consumer + 1);
  }

 private:
  __device__ __forceinline__ bool is_last() const { return consumer == Tile::kConsumers - 1; }
  __device__ __forceinline__ void pass_to(int next) const {
    if (Tile::kTakesTurns) barrier_arrive(1 + next, 2 * kWarpgroupSize);
  }
};

__device__ __forceinline__ int thread_row(const HopperBlock& block, int consumer) {
  return block.first_row + consumer * 64 + warp() % 4 * 16 + lane() / 4;
}

// The tile and the step whose scores a consumer computes.
template <class Tile>
struct HopperReader {
  const HopperShared<Tile>& shared;
  int consumer;  // from 0

  int tile = -1, seeing = -1;   // numbers in the block: of the tile, and among those that see keys
  ColumnRange visible[2]{};     // keys that the thread's two rows see
  ColumnRange common{};         // keys that all rows of the warpgroup see
  int first_key = 0, left = 0;  // of the step; steps of the tile after it

  __device__ __forceinline__ const HopperWork& work() const { return shared.work(tile); }
  // Waits for the description of the next tile, and returns its number of steps.
  __device__ __forceinline__ int next_steps() const {
    shared.works().wait_full(tile + 1);
    return shared.work(tile + 1).steps.count;
  }
  __device__ __forceinline__ void next_tile() {
    ++tile;
    ++seeing;
    const HopperBlock& block = work().block;
    const int row = thread_row(block, consumer);
#pragma unroll
    for (int which = 0; which < 2; ++which) visible[which] = block.visible(row + 8 * which);
    const int group_row = block.first_row + consumer * 64;
    common = {block.visible(group_row + 63).first, block.visible(group_row).last};
    first_key = work().steps.first_key;
    left = work().steps.count - 1;
    shared.queries(consumer).wait_full(seeing);
  }
  __device__ __forceinline__ void next_step() {
    first_key += Tile::kKeys;
    --left;
  }
  __device__ __forceinline__ const std::byte* queries() const {
    return shared.queries(consumer).at(seeing);
  }
};

template <class T, class Tile>
__device__ __forceinline__ void consume(const HopperCall& call, const HopperShared<Tile>& shared,
                                        int consumer) {
  using Queries = typename Tile::Queries;
  using Keys = typename Tile::Keys;
  const auto keys = shared.keys(), values = shared.values();
  const HopperTurns<Tile> turns{consumer};
  HopperReader<Tile> reader{shared, consumer};
  float s[Tile::kKeys / 2];
  float o[Tile::kWidth / 2];
  uint32_t weights[Tile::kKeys / 16][4];
  float factor[2];
  HopperSoftmax softmax;
  RowFactors ended{};  // of the tile before
  int step = 0;        // number of steps whose scores are computed
  const auto multiply_keys = [&] {
    wgmma_fence();
    multiply_transposed<T, Queries, Keys>(s, reader.queries(), keys.at(step));
  };
  const auto multiply_values = [&] {
    values.wait_full(step - 1);
    wgmma_fence();
    add_product<T, Keys>(o, weights, values.at(step - 1));
  };
  // Frees the slots of a product of keys, and takes the exponentials.
  const auto soften = [&] {
    wgmma_touch(s);
    keys.release(step);
    if (reader.left == 0) shared.queries(consumer).release(reader.seeing);
    if (reader.first_key < reader.common.first ||
        reader.first_key + Tile::kKeys > reader.common.last) {
      hide(s, reader.visible, reader.first_key, -std::numeric_limits<float>::infinity());
    }
    softmax.step(s, call.scale_log2, factor);
    // Wait for the next keys here: the branch ends a basic block, else ptxas moves
    // wgmma_wait<0>() above the exponentials, and the second product overlaps with nothing.
    if (reader.left > 0) keys.wait_full(step + 1);
  };
  // Clears values of the tile's last step that do not exist.
  const auto clear = [&] {
    const auto present = static_cast<int>(reader.work().block.entry.visibility.present.last);
    if (present >= reader.first_key + Tile::kKeys) return;
    values.wait_full(step - 1);
    clear_rows<Keys, Tile::kConsumers>(values.at(step - 1), present - reader.first_key);
    finish_clearing<Tile::kConsumers>();
  };
  const auto end_softmax = [&] {
    const HopperBlock& block = reader.work().block;
    ended = end_rows(call, block, thread_row(block, consumer), softmax);
    softmax = {};
  };
  const auto store = [&](int tile) {
    const HopperBlock& block = shared.work(tile).block;
    store_rows<T, Tile>(call, block, thread_row(block, consumer), ended, o);
    shared.works().release(tile);
  };
  const auto clear_sums = [&] {
#pragma unroll
    for (int i = 0; i < Tile::kWidth / 2; ++i) o[i] = 0.0F;
  };

  while (true) {
    const int steps = reader.next_steps();
    if (steps < 0) return;
    if (steps == 0) {
      ++reader.tile;
      const HopperBlock& block = reader.work().block;
      store_unseen<T, Tile>(call, block, thread_row(block, consumer));
      shared.works().release(reader.tile);
      continue;
    }
    reader.next_tile();
    clear_sums();
    turns.begin();
    keys.wait_full(step);
    multiply_keys();
    wgmma_wait<0>();
    soften();
    ++step;
    pack_weights<T>(s, weights);

    while (true) {
      const bool ends = reader.left == 0;  // the values of step - 1 are the tile's last
      if (ends) {
        clear();
        end_softmax();
        if (reader.next_steps() <= 0) break;
        reader.next_tile();
        keys.wait_full(step);
      } else {
        reader.next_step();
      }
      turns.wait();
      multiply_keys();
      multiply_values();
      turns.pass();
      wgmma_wait<1>();
      soften();
      wgmma_wait<0>();
      wgmma_touch(o);
      values.release(step - 1);
      ++step;
      if (ends) {
        pack_weights<T>(s, weights);
        store(reader.tile - 1);
        clear_sums();
      } else {
#pragma unroll
        for (int i = 0; i < Tile::kWidth / 2; ++i) o[i] *= factor[i / 2 % 2];
        pack_weights<T>(s, weights);
      }
    }

    // No keys follow.
    turns.wait();
    multiply_values();
    turns.end();
    wgmma_wait<0>();
    wgmma_touch(o);
    values.release(step - 1);
    store(reader.tile);
  }
}

template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    forward_hopper(const __grid_constant__ HopperCall call) {
  const HopperShared<Tile> shared{shared_memory()};
  if (thread_index() == 0) shared.init_barriers();
  sync_threads();
  const int group = uniform(warpgroup());
  if (group == 0) {
    set_max_registers_down<Tile::kProducerRegisters>();
    if (thread_index() == 0) produce<Tile>(call, shared);
  } else {
    set_max_registers_up<Tile::kConsumerRegisters>();
    consume<T, Tile>(call, shared, group - 1);
  }
}

}  // namespace multihead::cuda
