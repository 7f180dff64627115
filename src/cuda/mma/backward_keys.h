// d_k and d_v through mma.sync: a block keeps 64 keys, and loops over the query rows that see them.
// The rows of all heads of a GQA group form one list, so that one warp computes the whole sum of a
// key.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/backward_singly.h"
#include "cuda/device/device.h"
#include "cuda/kernels.h"
#include "cuda/mma/backward_tile.h"
#include "cuda/mma/options.h"
#include "cuda/mma/tile.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"
#include "multihead/tensor.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda::mma {

// A query row that the block loops over. The default value stands for no row.
struct PassingRow {
  int head = -1;
  uint32_t query = 0;
  int first = 0, last = 0;  // the block's keys that it sees by position
};
// Offsets of a passing row in q and d_out; negative for no row.
struct PassingOffsets {
  int64_t of_q = -1, of_d_out = -1;
};

// The mask, the bias and ALiBi of a passing row. Its distance from the block's key i is
// |position - i|.
struct PassingTerms {
  const uint8_t* mask = nullptr;
  const float* bias = nullptr;
  float slope = 0.0F, position = 0.0F;
};

// State of a block in shared memory.
template <bool kOptions, int kStep>
struct KeysState {
  KeyTile tile;
  RowRange rows;  // query rows that see one of the keys; `first` is a multiple of kStep
  // Rows are described two steps before they are used, because the copies, one step ahead, read the
  // descriptions.
  PassingRow passing[3][kStep];
  // Offsets of the described rows, so that copies need not compute them. Not with options: at d 256
  // the shared memory of an RTX 30 has no room for both.
  PassingOffsets offsets[kOptions ? 1 : 3][kOptions ? 1 : kStep];
  // The options of the rows, described one step before they are used.
  PassingTerms described[kOptions ? 2 : 1][kOptions ? kStep : 1];
  alignas(8) float reference[2][kStep], delta[2][kStep];
};

template <bool kOptions, class T, int kWidth>
struct KeysBlock {
  using Shape = GradientTile<kWidth>;
  static constexpr int kStep = Shape::kStep;
  using State = KeysState<kOptions, kStep>;

  const BackwardParams& p;
  T* shared;
  State& state;

  __device__ __forceinline__ void copy_keys() const {
    const rules::AttentionParams& call = p.forward.call;
    const KeyTile& tile = state.tile;
    const auto copy = [&](const rules::StoredRows& from, int64_t width, T* to) {
      const int64_t start =
          rules::row_offset(from.stride, tile.entry.batch, tile.kv_head, tile.entry.first_key);
      RowCopier<T, kWidth>::of(from, start, width)
          .template copy<kRows>(tile.first_key, tile.last_key + 1, to);
    };
    copy(call.k, call.head_dim, shared);
    copy(call.v, call.value_dim, shared + Shape::kKeptElements);
  }

  __device__ __forceinline__ PassingOffsets offsets_of(const PassingRow& row) const {
    if (row.head < 0) return {};
    const Entry& entry = state.tile.entry;
    const auto offset_in = [&](const rules::StoredRows& rows) {
      return rules::row_offset(rows.stride, entry.batch, row.head, entry.first_query + row.query);
    };
    return {offset_in(p.forward.call.q), offset_in(p.d_out)};
  }

  // Describes the rows of a step.
  __device__ __forceinline__ void describe(int step) const {
    if (thread_index() >= kStep) return;
    const rules::AttentionParams& call = p.forward.call;
    const KeyTile& tile = state.tile;
    const int64_t row = state.rows.first + int64_t{step} * kStep + thread_index();
    const bool exists = row < state.rows.last;
    PassingRow passing;
    if (exists) {
      const int64_t query = row / call.group();
      passing.head = static_cast<int>(tile.kv_head * call.group() + row - query * call.group());
      passing.query = static_cast<uint32_t>(query);
      const rules::KeyRange seen = tile.entry.visibility.seen_by(query);
      passing.first = static_cast<int>(rules::limited(seen.first - tile.first_key, 0, kRows));
      passing.last = static_cast<int>(rules::limited(seen.last - tile.first_key, 0, kRows));
    }
    if constexpr (!kOptions) state.offsets[step % 3][thread_index()] = offsets_of(passing);
    state.passing[step % 3][thread_index()] = passing;
  }

  // Describes the options of rows that describe() has described.
  __device__ __forceinline__ void describe_options(int step) const {
    if (!kOptions || thread_index() >= kStep) return;
    const PassingRow& passing = state.passing[step % 3][thread_index()];
    PassingTerms described;
    if (passing.head >= 0) {
      const RowTerms of = row_terms(p.forward.call, state.tile.entry, passing.head, passing.query);
      described = {of.mask, of.bias, of.slope,
                   static_cast<float>(of.alibi_position - state.tile.first_key)};
    }
    state.described[step % 2][thread_index()] = described;
  }

  // Starts to copy the described rows of a step.
  __device__ __forceinline__ void start_copy(int step) const {
    const rules::AttentionParams& call = p.forward.call;
    const Entry& entry = state.tile.entry;
    const int stage = step % 2;
    const PassingRow* const passing = state.passing[step % 3];
    T* const queries = passing_rows<T, kWidth>(shared, stage);
    const auto offsets = [&](int r) {
      if constexpr (kOptions) {
        return offsets_of(passing[r]);
      } else {
        return state.offsets[step % 3][r];
      }
    };
    copy_tile<T, kWidth, kStep>(call.q.data, static_cast<int>(call.head_dim), queries,
                                [&](int r) { return offsets(r).of_q; });
    copy_tile<T, kWidth, kStep>(p.d_out.data, static_cast<int>(call.value_dim),
                                queries + Shape::kPassingElements,
                                [&](int r) { return offsets(r).of_d_out; });
    if (thread_index() < kStep) {
      const PassingRow& row = passing[thread_index()];
      const bool exists = row.head >= 0;
      const auto copy_number = [&](const rules::Rows<float>& from, float* to) {
        const float* const number =
            exists ? from.row(entry.batch, row.head, entry.first_query + row.query) : from.data;
        copy_async<4>(to + thread_index(), number, exists ? 4 : 0);
      };
      copy_number(p.reference, state.reference[stage]);
      copy_number(p.delta, state.delta[stage]);
    }
    commit_copies();
  }

  // True if all rows of a step see all keys of the block. The first and the last visible key never
  // decrease as the query rises.
  __device__ __forceinline__ bool all_visible(const PassingRow* passing) const {
    const KeyTile& tile = state.tile;
    const PassingRow& last = passing[kStep - 1];
    return last.head >= 0 && last.first == 0 &&
           passing[0].last > static_cast<int>(tile.last_key - tile.first_key);
  }

  // Index in the block of a thread's first key. The second one is 8 keys below.
  static __device__ __forceinline__ int own_key() { return warp() * kRowsOfWarp + lane() / 4; }

  // Calls set(n, i, value) with the mask or the bias of each pair that is visible by position, and
  // with 0 for the others. row_at(r): address, at key 0, of row r of the step.
  template <class Broadcast, class RowAt, class Set>
  __device__ __forceinline__ void load_terms(const Broadcast& terms, const PassingRow* passing,
                                             const RowAt& row_at, const Set& set) const {
    const int64_t of_key = (state.tile.first_key + own_key()) * terms.stride[3];
    const int64_t below = of_key + 8 * terms.stride[3];
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int r = n * 8 + 2 * (lane() % 4) + c;
        const auto* const row = row_at(r);
        const int first = passing[r].first, last = passing[r].last, key = own_key();
        using Value = std::remove_cvref_t<decltype(*row)>;
        set(n, c, key >= first && key < last ? row[of_key] : Value{});
        set(n, 2 + c, key + 8 >= first && key + 8 < last ? row[below] : Value{});
      }
    }
  }
  // Starts to load the bias, or the mask if there is no bias, of a step.
  __device__ __forceinline__ void load_terms(int step, FragmentTerms<Shape::kTiles>& terms) const {
    const rules::AttentionParams& call = p.forward.call;
    const PassingTerms* const described = state.described[step % 2];
    if (call.bias.given()) {
      load_terms(
          call.bias, state.passing[step % 3], [&](int r) { return described[r].bias; },
          [&](int n, int i, float bias) { terms.of[n][i] = std::bit_cast<uint32_t>(bias); });
    } else if (call.mask.given()) {
      load_terms(
          call.mask, state.passing[step % 3], [&](int r) { return described[r].mask; },
          [&](int n, int i, uint32_t byte) {
            uint32_t& pair = terms.of[n][i / 2];
            pair = i % 2 == 0 ? byte : pair | byte << 8U;
          });
    }
  }

  // Returns the weights of a step that dropout keeps. All lanes take part.
  __device__ __forceinline__ KeptWeights kept(const PassingRow* passing) const {
    const rules::AttentionParams& call = p.forward.call;
    const KeyTile& tile = state.tile;
    // Unsigned: divisions of signed numbers by 2 and 4 need registers for their rounding.
    const auto own_lane = static_cast<uint32_t>(lane()), own_warp = static_cast<uint32_t>(warp());
    const int64_t key = call.first.key + tile.first_key + own_warp * kRowsOfWarp;
    KeptWeights kept;
    if (key % 4 == 0) {
      // Four lanes hold four adjacent keys. One hash decides about the four weights that a row has
      // with them, so each lane hashes for one i of the elements [n][i], and the lanes exchange
      // bits.
      const uint32_t own = own_lane / 4 % 4;
      const int64_t group = key / 4 + own_lane / 16 + own / 2 * 2;
      uint32_t bits = 0;
#pragma unroll 1
      for (uint32_t n = 0; n < Shape::kTiles; ++n) {
        const PassingRow& row = passing[8 * n + 2 * (own_lane % 4) + own % 2];
        bits |= kept_of_group(call, tile.entry, row.head, row.query, group) << (4 * n);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const auto from = static_cast<int>(own_lane - 4 * own + 4 * i);
        kept.bits |= (shuffle(bits, from) >> own & 0x11111111U) << i;
      }
      return kept;
    }
#pragma unroll 1
    for (uint32_t at = 0; at < 4 * Shape::kTiles; ++at) {
      const PassingRow& row = passing[at / 4 * 8 + 2 * (own_lane % 4) + at % 2];
      const int64_t of_pair = tile.first_key + own_key() + at % 4 / 2 * 8;
      const bool keeps_it = keeps(call, tile.entry, row.head, row.query, of_pair);
      kept.bits |= (keeps_it ? 1U : 0U) << at;
    }
    return kept;
  }

  struct alignas(8) Pair {
    float of[2];
  };

  // Turns products into weights, and gradients of weights into gradients of products; 0 for a
  // hidden pair.
  __device__ __forceinline__ void differentiate(int step, float (&weights)[Shape::kTiles][4],
                                                float (&gradients)[Shape::kTiles][4]) const {
    const WeightFactors factors = weight_factors(p.forward.call.scale);
    const int stage = step % 2;
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
      const int pair = n * 8 + 2 * (lane() % 4);
      const Pair reference = *reinterpret_cast<const Pair*>(state.reference[stage] + pair);
      const Pair delta = *reinterpret_cast<const Pair*>(state.delta[stage] + pair);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[n][i] = exp2_approx(
            fmaf(weights[n][i], factors.of_product, -reference.of[i % 2] * factors.of_reference));
        gradients[n][i] = weights[n][i] * (gradients[n][i] - delta.of[i % 2]);
      }
    }
  }
  // Differentiates like the function above, for a call with options.
  __device__ __forceinline__ void differentiate(int step, const FragmentTerms<Shape::kTiles>& terms,
                                                const KeptWeights& kept,
                                                float (&weights)[Shape::kTiles][4],
                                                float (&gradients)[Shape::kTiles][4]) const {
    const rules::AttentionParams& call = p.forward.call;
    const int stage = step % 2;
    const PassingRow* const passing = state.passing[step % 3];
    const PassingTerms* const described = state.described[stage];
    if (call.dropout.given()) scale_kept(kept, call.dropout.scale, gradients);
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
      const Pair delta =
          *reinterpret_cast<const Pair*>(state.delta[stage] + n * 8 + 2 * (lane() % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) gradients[n][i] -= delta.of[i % 2];
    }
    scale_scores(call, weights,
                 [&](int n, int i, float ratio) { gradients[n][i] *= 1.0F - ratio * ratio; });
    if (call.alibi_slopes != nullptr) {
#pragma unroll
      for (int n = 0; n < Shape::kTiles; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const PassingTerms& row = described[n * 8 + 2 * (lane() % 4) + c];
          const float distance = row.position - static_cast<float>(own_key());
          weights[n][c] -= row.slope * fabsf(distance);
          weights[n][2 + c] -= row.slope * fabsf(distance - 8.0F);
        }
      }
    }
    raise_lowest(weights);
    if (call.bias.given()) {
      add_bias(terms, weights);
      if (call.mask.given()) {
        load_terms(
            call.mask, passing, [&](int r) { return described[r].mask; },
            [&](int n, int i, uint32_t byte) {
              if (byte == 0) weights[n][i] = -INFINITY;
            });
      }
    } else if (call.mask.given()) {
      hide_masked(terms, weights);
    }
    const float unit = unit_of_scores<true>(call), to_power = call.scale.softmax * kLog2E;
#pragma unroll
    for (int n = 0; n < Shape::kTiles; ++n) {
      const Pair reference =
          *reinterpret_cast<const Pair*>(state.reference[stage] + n * 8 + 2 * (lane() % 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool hidden = weights[n][i] == -INFINITY;
        const float weight =
            exp2_approx(fmaf(weights[n][i], unit, -reference.of[i % 2]) * to_power);
        weights[n][i] = hidden ? 0.0F : weight;
        gradients[n][i] = hidden ? 0.0F : weight * gradients[n][i];
      }
    }
    if (call.dropout.given()) scale_kept(kept, call.dropout.scale, weights);
  }

  // Clears the weights and gradients of pairs that are not visible by position.
  __device__ __forceinline__ void hide(const PassingRow* passing,
                                       float (&weights)[Shape::kTiles][4],
                                       float (&gradients)[Shape::kTiles][4]) const {
    each_of_fragment<Shape::kTiles>([&](int n, int i) {
      const PassingRow& row = passing[n * 8 + 2 * (lane() % 4) + i % 2];
      const int key = own_key() + i / 2 * 8;
      const bool visible = key >= row.first && key < row.last;
      weights[n][i] = visible ? weights[n][i] : 0.0F;
      gradients[n][i] = visible ? gradients[n][i] : 0.0F;
    });
  }
};

// Not inlined, so that it takes no registers from the usual computation.
template <class Params>
__device__ __noinline__ void write_key(const Params& p, const Entry& entry, int64_t kv_head,
                                       int64_t key, RowRange rows, bool of_keys, bool of_values) {
  write_key_singly(p, entry, kv_head, key, rows, of_keys, of_values);
}

// Computes d_k, d_v or both. For rows wider than 128, registers hold the sums of only one of them.
template <bool kOptions, bool kOfKeys, bool kOfValues, class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    backward_keys(const __grid_constant__ BackwardParams p) {
  using Block = KeysBlock<kOptions, T, kWidth>;
  using Shape = GradientTile<kWidth>;
  constexpr int kStep = Shape::kStep;
  const rules::AttentionParams& call = p.forward.call;
  let_next_kernel_start();
  T* const shared = reinterpret_cast<T*>(shared_memory());
  auto& state = *reinterpret_cast<typename Block::State*>(shared + Shape::kAllElements);
  {
    const KeyTile tile = key_tile<kRows>(p.forward);
    if (tile.empty()) {
      wait_for_previous_kernel();
      return;
    }
    if (thread_index() == 0) {
      state.tile = tile;
      state.rows = tile.rows(call.group(), kStep);
    }
  }
  sync_threads();
  const Block b{p, shared, state};
  const int steps = static_cast<int>((state.rows.last - state.rows.first + kStep - 1) / kStep);

  float d_keys[kOfKeys ? kWidth / 8 : 1][4], d_values[kOfValues ? kWidth / 8 : 1][4];
  clear(d_keys);
  clear(d_values);
  if (steps > 0) {
    b.describe(0);
    b.describe(1);
    b.describe_options(0);
    sync_threads();
    b.copy_keys();
    b.start_copy(0);
  }
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    // The rows of this step have arrived, and every warp has used the other stage.
    sync_threads();
    FragmentTerms<Shape::kTiles> terms;
    KeptWeights kept;
    if constexpr (kOptions) {
      // Hash before the products, whose sums need the same registers.
      if (call.dropout.given()) kept = b.kept(state.passing[step % 3]);
      b.load_terms(step, terms);
    }
    if (step + 1 < steps) {
      b.start_copy(step + 1);
      b.describe(step + 2);
      b.describe_options(step + 1);
    }
    const T* const queries = passing_rows<T, kWidth>(shared, step % 2);
    const T* const d_out = queries + Shape::kPassingElements;
    float weights[Shape::kTiles][4], gradients[Shape::kTiles][4];
    multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared), queries, weights);
    if (kOfKeys) {
      multiply_keys<T, kWidth>(rows_of_warp<kWidth>(shared + Shape::kKeptElements), d_out,
                               gradients);
    } else {
      clear(gradients);
    }
    if constexpr (kOptions) {
      b.differentiate(step, terms, kept, weights, gradients);
    } else {
      b.differentiate(step, weights, gradients);
    }
    const PassingRow* const passing = state.passing[step % 3];
    if (!b.all_visible(passing)) b.hide(passing, weights, gradients);
    if constexpr (kOfValues) {
      multiply_values<T, kWidth>(weights, d_out, d_values);
    }
    if constexpr (kOfKeys) {
      multiply_values<T, kWidth>(gradients, queries, d_keys);
    }
  }

  const bool writes_d_k = kOfKeys && p.d_k.data != nullptr;
  const bool writes_d_v = kOfValues && p.d_v.data != nullptr;
  const uint32_t wrong_keys = writes_d_k ? rows_not_finite(d_keys) : 0;
  const uint32_t wrong_values = writes_d_v ? rows_not_finite(d_values) : 0;
  const KeyTile& tile = state.tile;
  const int64_t first_key = tile.first_key + warp() * kRowsOfWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane() / 4 + 8 * half;
    if (first_key + r > tile.last_key) continue;
    const int64_t row = tile.entry.first_key + first_key + r;
    if constexpr (kOfKeys) {
      if (writes_d_k && (wrong_keys >> r & 1U) == 0) {
        store_row(d_keys, half, p.scale, p.d_k.row(tile.entry.batch, tile.kv_head, row),
                  call.head_dim);
      }
    }
    if constexpr (kOfValues) {
      if (writes_d_v && (wrong_values >> r & 1U) == 0) {
        store_row(d_values, half, 1.0F, p.d_v.row(tile.entry.batch, tile.kv_head, row),
                  call.value_dim);
      }
    }
  }
  for (int r = 0; r < kRowsOfWarp; ++r) {
    const bool of_keys = (wrong_keys >> r & 1U) != 0, of_values = (wrong_values >> r & 1U) != 0;
    if (!(of_keys || of_values) || first_key + r > tile.last_key) continue;
    write_key(p, tile.entry, tile.kv_head, first_key + r, state.rows, of_keys, of_values);
  }
  // This kernel must not end before the call's previous ones.
  wait_for_previous_kernel();
}

template <bool kOptions, bool kOfKeys, bool kOfValues, class T, int kWidth>
int launch_keys(const BackwardParams& params, BackwardLaunches& launches) {
  using Shape = GradientTile<kWidth>;
  constexpr size_t kBytes =
      Shape::kAllElements * sizeof(T) + sizeof(KeysState<kOptions, Shape::kStep>);
  static_assert(kBytes <= kLeastSharedBytes);
  return launch_tiles(key_axis(params.forward, kRows), params.forward.call.kv_heads, kThreads,
                      kBytes, launches.stream,
                      backward_keys<kOptions, kOfKeys, kOfValues, T, kWidth>, params,
                      launches.next_is_early());
}

}  // namespace multihead::cuda::mma
