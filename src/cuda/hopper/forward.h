// Attention forward for Hopper (sm_90a): tiles by TMA, products by wgmma. One producer warpgroup
// only loads, two or three consumer warpgroups compute. After FlashAttention-3 (Shah et al. 2024,
// arXiv:2407.08608).
//
// A block computes several tiles of kRows query rows, one after the other. Its producer thread
// copies the queries of each tile, then kKeys keys and values per step into rings of kStages slots,
// ahead of the consumers; each slot has a barrier for "full" and one for "empty". A consumer
// warpgroup owns 64 rows, and keeps their scores, weights and outputs in registers. It enqueues two
// products together:
//   scores of step i  and  output += weights of step i - 1 times its values.
// As soon as the scores of step i arrive, it takes their exponentials, while the tensor cores
// compute the second product. The last values of a tile are multiplied together with the first keys
// of the next one. With kTakesTurns, warpgroups enqueue their products in turns, so that one
// computes exponentials, or stores outputs, while the products of another run.
#pragma once

#include <cstdint>
#include <limits>

#include "cuda/device/device.h"
#include "cuda/device/hopper_device.h"
#include "cuda/hopper/epilogue.h"
#include "cuda/hopper/forward_tile.h"
#include "cuda/hopper/rows.h"
#include "cuda/hopper/softmax.h"
#include "cuda/mma/options.h"

namespace multihead::cuda {

// --- The producer: one thread ---

// The first row of a step's keys and values in their tensors, and its head and batch.
struct HopperKeyPlace {
  int row, head, batch;
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
__device__ __forceinline__ void publish(const HopperWork<Tile>& work,
                                        const HopperShared<Tile>& shared, int tile) {
  const auto works = shared.works();
  works.wait_empty(tile);
  shared.work(tile) = work;
  mbarrier_arrive(works.full_of(tile));
}

// Loads the queries of a tile. A tile that sees no key uses its slots too, but loads nothing.
template <class Tile>
__device__ __forceinline__ void load_queries(const HopperCall& call, const HopperWork<Tile>& work,
                                             const HopperShared<Tile>& shared, int tile) {
  const HopperBlock& block = work.block;
  for (int consumer = 0; consumer < Tile::kConsumers; ++consumer) {
    const auto slots = shared.queries(consumer);
    slots.wait_empty(tile);
    if (work.steps.count == 0) {
      mbarrier_arrive(slots.full_of(tile));
    } else {
      load_rows<typename Tile::Queries>(
          slots.at(tile), call.q, slots.full_of(tile),
          block.first_query + row_of_tile(call, block, consumer * 64).query, block.head,
          block.batch);
    }
  }
}

// Loads in the order in which slots become empty. Values are one step behind keys, also from one
// tile to the next.
template <class Tile>
__device__ __forceinline__ void produce(const HopperCall& call, const HopperShared<Tile>& shared) {
  const auto keys = shared.keys(), values = shared.values();
  int step = 0;             // number of tiles of keys that are loaded
  bool has_values = false;  // the values of step - 1 are not loaded yet
  int tile = 0;             // number of tiles that are described
  HopperKeyPlace before{};  // of step - 1
  const auto load_values = [&] {
    if (has_values) load_step<Tile>(values, call.v, before, step - 1);
    has_values = false;
  };
  for (uint32_t number = 0; number < call.schedule.tiles_of_block(); ++number) {
    const auto place = call.schedule.place(static_cast<uint32_t>(block_number()), number);
    if (!place.exists) continue;
    HopperWork<Tile> work;
    work.block = HopperBlock::of<Tile>(call, place);
    if (work.block.first_of_tile >= work.block.end_of_tile) continue;
    work.steps = HopperSteps::of<Tile>(work.block);
    work.set_whole_steps(call);
    work.first_step = step;
    HopperKeyPlace from{work.block.first_key + work.steps.first_key, work.block.kv_head,
                        work.block.batch};
    for (int i = 0; i == 0 || i < work.steps.count; ++i) {
      if (work.steps.count > 0) load_step<Tile>(keys, call.k, from, step);
      load_values();
      if (i == 0) {
        publish(work, shared, tile);
        load_queries(call, work, shared, tile);
        ++tile;
      }
      if (work.steps.count == 0) break;
      has_values = true;
      before = from;
      from.row += Tile::kKeys;
      ++step;
    }
  }
  load_values();
  HopperWork<Tile> end{};
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
  // Ends a consumer's last turn. No consumer waits for the last one's.
  __device__ __forceinline__ void end() const {
    if (!is_last()) pass_to(consumer + 1);
  }

 private:
  __device__ __forceinline__ bool is_last() const { return consumer == Tile::kConsumers - 1; }
  __device__ __forceinline__ void pass_to(int next) const {
    if (Tile::kTakesTurns) barrier_arrive(1 + next, 2 * kWarpgroupSize);
  }
};

// The first of a thread's two rows of a tile, counted from 0, see wgmma().
__device__ __forceinline__ int thread_row(int consumer) {
  const auto thread = static_cast<uint32_t>(warpgroup_thread());
  const uint32_t row = thread / kWarpSize * 16 + thread % kWarpSize / 4;
  return consumer * 64 + static_cast<int>(row);
}

// The tile whose scores a consumer computes. `tile` starts at -1, the other numbers at 0.
template <class Tile>
struct HopperReader {
  const HopperShared<Tile>& shared;
  int consumer;  // from 0

  int tile;               // number of the tile in the block
  int first_step, count;  // from its description

  __device__ __forceinline__ const HopperWork<Tile>& work() const { return shared.work(tile); }
  // Waits for the description of the next tile, and returns its number of steps.
  __device__ __forceinline__ int next_count() const {
    shared.works().wait_full(tile + 1);
    return shared.work(tile + 1).steps.count;
  }
  __device__ __forceinline__ void next_tile() {
    ++tile;
    load();
    shared.queries(consumer).wait_full(tile);
  }
  // Loads the description, also a second time, so that it takes no registers in between.
  __device__ __forceinline__ void load() {
    first_step = work().first_step;
    count = work().steps.count;
  }
};

template <class T, class Tile>
__device__ __forceinline__ void consume(const HopperCall& call, const HopperShared<Tile>& shared,
                                        int consumer) {
  using Queries = typename Tile::Queries;
  using Keys = typename Tile::Keys;
  const auto keys = shared.keys(), values = shared.values();
  const HopperTurns<Tile> turns{consumer};
  HopperReader<Tile> reader{shared, consumer, -1, 0, 0};
  float s[Tile::kKeys / 2];
  float o[Tile::kWidth / 2];
  uint32_t weights[Tile::kKeys / 16][4];
  float factor[2];
  HopperSoftmax softmax;
  RowFactors ended{};  // of the tile before
  // Operands are described before a warpgroup waits for its turn, and as uniform, else the compiler
  // would compute each descriptor in every lane.
  const auto keys_of = [&](int step) { return uniform_descriptor(describe_rows(keys.at(step))); };
  const auto values_of = [&](int step) {
    return uniform_descriptor(describe_sums<Keys>(values.at(step)));
  };
  const auto queries_of = [&](int tile) {
    return uniform_descriptor(describe_rows(shared.queries(consumer).at(tile)));
  };
  // Releases the keys of the tile's step i, and with the last step the tile's queries.
  const auto release_keys = [&](int i) {
    keys.release(reader.first_step + i);
    if (i == reader.count - 1) shared.queries(consumer).release(reader.tile);
  };
  // Options of the thread's two rows.
  Entry entry{};
  mma::QueryOptions options{call.params.call, entry};
  mma::FragmentTerms<Tile::kKeys / 8> terms;
  ColumnRange seen[2];
  const auto first_key_of = [&](int i) { return reader.work().steps.first_key + i * Tile::kKeys; };
  const auto part_of = [&](int i) {
    return [&seen, first = first_key_of(i)](int half) {
      return mma::KeyPart{seen[half].first - first, seen[half].last - first};
    };
  };
  // Starts to load the mask or the bias of the tile's step i, so that it arrives during the
  // product.
  const auto load_terms = [&](int i) {
    if constexpr (Tile::kOptions) {
      const HopperWork<Tile>& work = reader.work();
      if (i == 0) {
        entry = work.block.entry();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const HopperRow row = row_of_tile(call, work.block, thread_row(consumer) + 8 * half);
          // Rows beyond the last one have the addresses of the last one.
          const int last = work.block.end_of_tile - 1;
          options.set(half, row.head, row.query < last ? row.query : last);
          seen[half] = work.block.visible(row.query);
        }
      }
      const StepRange whole = work.whole[consumer];
      options.load(first_key_of(i), i >= whole.first && i < whole.last, part_of(i), terms);
    }
  };
  // Takes the exponentials of the tile's step i.
  const auto soften = [&](int i) {
    if constexpr (Tile::kOptions) {
      auto& scores = reinterpret_cast<float(&)[Tile::kKeys / 8][4]>(s);
      options.template apply<false>(first_key_of(i), part_of(i), terms, scores,
                                    [](int, int, float) {});
    }
    const StepRange whole = reader.work().whole[consumer];
    if (i < whole.first || i >= whole.last) {
      const HopperBlock& block = reader.work().block;
      const int row = thread_row(consumer);
      const ColumnRange visible[2] = {block.visible(row_of_tile(call, block, row).query),
                                      block.visible(row_of_tile(call, block, row + 8).query)};
      hide(s, visible, first_key_of(i), -std::numeric_limits<float>::infinity());
    }
    softmax.step(s, call.scale_log2, factor);
    // Wait for the next keys here: the branch ends a basic block, else ptxas moves
    // wgmma_wait<0>() above the exponentials, and the second product overlaps with nothing.
    if (i < reader.count - 1) keys.wait_full(reader.first_step + i + 1);
  };
  // Enqueues the products of the tile's step i and of the values before it, and takes the
  // exponentials of the first while the second runs.
  const auto advance = [&](int i) {
    const int step = reader.first_step + i, before = step - 1;
    const uint64_t a = queries_of(reader.tile), b = keys_of(step), c = values_of(before);
    load_terms(i);
    turns.wait();
    wgmma_fence();
    multiply_transposed<T, Queries, Keys>(s, a, b);
    values.wait_full(before);
    wgmma_fence();
    add_product<T, Keys>(o, weights, c);
    turns.pass();
    wgmma_wait<1>();
    wgmma_touch(s);
    release_keys(i);
    soften(i);
    wgmma_wait<0>();
    wgmma_touch(o);
    values.release(before);
  };
  // Clears the values of the tile's last step that lie beyond the last key.
  const auto clear = [&] {
    const int last = reader.count - 1;
    const int absent = reader.work().block.first_absent - first_key_of(last);
    if (absent >= Tile::kKeys) return;
    values.wait_full(reader.first_step + last);
    clear_rows<Keys, Tile::kConsumers>(values.at(reader.first_step + last), absent);
    finish_clearing<Tile::kConsumers>();
  };
  const auto end_softmax = [&] {
    const HopperBlock& block = reader.work().block;
    ended = end_rows<Tile>(call, block, thread_row(consumer), softmax);
    softmax = {};
  };
  const auto store = [&](int tile) {
    const HopperBlock& block = shared.work(tile).block;
    store_rows<T, Tile>(call, block, thread_row(consumer), ended, o);
    shared.works().release(tile);
  };
  const auto clear_sums = [&] {
#pragma unroll
    for (int i = 0; i < Tile::kWidth / 2; ++i) o[i] = 0.0F;
  };

  while (true) {
    const int count = reader.next_count();
    if (count < 0) return;
    if (count == 0) {
      ++reader.tile;
      shared.queries(consumer).wait_full(reader.tile);
      shared.queries(consumer).release(reader.tile);
      const HopperBlock& block = reader.work().block;
      store_unseen<T, Tile>(call, block, thread_row(consumer));
      shared.works().release(reader.tile);
      continue;
    }
    reader.next_tile();
    clear_sums();
    turns.begin();
    load_terms(0);
    keys.wait_full(reader.first_step);
    wgmma_fence();
    multiply_transposed<T, Queries, Keys>(s, queries_of(reader.tile), keys_of(reader.first_step));
    wgmma_wait<0>();
    wgmma_touch(s);
    release_keys(0);
    soften(0);
    pack_weights<T>(s, weights);

    while (true) {
      for (int i = 1; i < reader.count; ++i) {
        advance(i);
#pragma unroll
        for (int j = 0; j < Tile::kWidth / 2; ++j) o[j] *= factor[j / 2 % 2];
        pack_weights<T>(s, weights);
      }
      clear();
      end_softmax();
      if (reader.next_count() <= 0) break;
      // The first scores of the next tile, and the last values of this one.
      reader.next_tile();
      keys.wait_full(reader.first_step);
      advance(0);
      pack_weights<T>(s, weights);
      store(reader.tile - 1);
      reader.load();
      clear_sums();
    }

    // No keys follow.
    const int last = reader.first_step + reader.count - 1;
    values.wait_full(last);
    turns.wait();
    wgmma_fence();
    add_product<T, Keys>(o, weights, values_of(last));
    turns.end();
    wgmma_wait<0>();
    wgmma_touch(o);
    values.release(last);
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
