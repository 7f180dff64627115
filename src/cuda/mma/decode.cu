// Split-KV decoding of bf16 or f16 rows through mma.sync, with sums in f32 (sm_80 and up).
//
// A block takes one split of the keys, and up to 16 query rows of one key/value head: these are the
// 16 rows of an mma tile. So it reads K and V once for all query heads that share them. Each warp
// has its own keys, 16 at a time, its own online softmax (arXiv:1805.02867) and its own stages of
// shared memory: while it uses one stage, cp.async fills the others, and no warp waits for another.
// At the end the block merges the results of its warps, and the last block of a tile the splits.
//
// Rows of K and V may lie in a tensor, a ring or pages: each lane finds the address of one row of a
// step, and passes it to the lanes that copy the row.
//
// Rows of int8 arrive in a stage as they are. Each lane turns the numbers that it has copied into
// bf16, which holds them exactly, in a tile of the warp. The scales of K multiply the scores, and
// the scales of V the weights.
//
// Hidden values that are NaN or infinite are handled as in mma/forward.cu, but for each warp
// separately.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/launch.h"
#include "cuda/divide.h"
#include "cuda/kernels.h"
#include "cuda/merge_parts.h"
#include "cuda/mma/options.h"
#include "cuda/mma/tile.h"
#include "cuda/rows.h"
#include "cuda/splits.h"
#include "multihead/tensor.h"
#include "rules/visibility.h"

namespace multihead::cuda {
namespace mma {
namespace {

static_assert(kDecodeMmaRows == kRowsOfWarp);
constexpr int kStepKeys = 16;  // per warp

// Shared memory of a block: the queries, then the stages of each warp.
template <int kWidth>
struct DecodeTile {
  // At d 128, the two blocks of a multiprocessor copy 64 kB while they use another 64 kB. At d 256,
  // so do two blocks of two warps; one of four would not fit in the 99 KB of an RTX 30.
  static constexpr int kWarps = kWidth <= 128 ? 4 : 2;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kKeyStep = kWarps * kStepKeys;
  static_assert(kDecodeMmaKeyStep % kKeyStep == 0);
  static constexpr int kStages = kWidth <= 64 ? 4 : 2;
  static constexpr int kQueryElements = kRowsOfWarp * kWidth;
  static constexpr int kElements = kStepKeys * kWidth;  // K or V of a stage
  static constexpr int kWarpElements = kStages * 2 * kElements;
  static constexpr int kAllElements = kQueryElements + kWarps * kWarpElements;
  // Row stride of a warp's sums, as floats, which replace its stages at the end. With this stride,
  // the pairs that a quarter of a warp stores lie in different banks.
  static constexpr int kSumStride = kWidth + 8;
  static_assert(kRowsOfWarp * kSumStride * sizeof(float) <= kWarpElements * sizeof(uint16_t));
  // The weights of a recomputed step lie where the second stage would be.
  static_assert(kRowsOfWarp * kStepKeys * sizeof(float) <= 2 * kElements * sizeof(uint16_t));
};

// State of a block in shared memory.
struct DecodeState {
  Entry entry;                          // only with options
  int64_t tile, split;                  // of the block; here, they take no registers in the loop
  rules::KeyRange seen[kRowsOfWarp];    // by position
  float terms[kWarps][kRowsOfWarp][2];  // the largest score of a warp's keys, and the sum
};

// Parameters that all threads of a block share. Row r of the block is row first_row + r in the row
// list of the key/value head.
struct DecodeBlock {
  const SplitParams& params;
  DecodeState& state;
  int64_t batch, kv_head, group, first_row;
  int rows;
  int64_t first_key, end_key;  // keys of the split that some row sees; each warp takes some of them

  __device__ __forceinline__ const rules::AttentionParams& call() const {
    return params.forward.call;
  }
  // With one query, its rows are those of the group's heads.
  __device__ __forceinline__ int64_t head_of(int row) const {
    const int64_t at = first_row + row;
    return kv_head * group + (call().queries == 1 ? at : divide(at, group).remainder);
  }
  __device__ __forceinline__ int64_t query_of(int row) const {
    return call().queries == 1 ? 0 : divide(first_row + row, group).quotient;
  }
  // True if all rows see all keys of a step by position. Rows beyond the last one are not stored,
  // so they may see any. The first and the last visible key never decrease as the query rises.
  __device__ __forceinline__ bool all_visible(int64_t first) const {
    return state.seen[rows - 1].first <= first && first + kStepKeys <= state.seen[0].last;
  }
  // The keys of a step that a thread's row sees by position.
  __device__ __forceinline__ KeyPart part(int half, int64_t first) const {
    return part_of(state.seen[lane() / 4 + 8 * half], first, kStepKeys);
  }
};

// Returns the lowest byte of a word, a signed number. Conversions of integers have a quarter of the
// rate of other instructions, so this puts byte + 128 into the mantissa of 2^23, and subtracts.
__device__ __forceinline__ float number_of(uint32_t word) {
  return std::bit_cast<float>(0x4B000000U | ((word & 0xFFU) ^ 0x80U)) - 8388736.0F;
}

// The place of rows of type Stored in a warp's part of shared memory. Rows of type T have kStages
// stages, each a tile of K and one of V. Rows of int8 have the first of them for the numbers in
// use, and the second for two stages of bytes.
template <class Stored, class T, int kWidth>
struct Stages {
  using Shape = DecodeTile<kWidth>;
  static constexpr bool kConverts = !std::is_same_v<Stored, T>;
  static constexpr int kStages = kConverts ? 2 : Shape::kStages;
  static_assert(2 * sizeof(Stored) <= sizeof(T) || !kConverts);

  T* memory;

  __device__ __forceinline__ Stored* at(int stage) const {
    auto* const first = reinterpret_cast<Stored*>(memory + (kConverts ? 2 * Shape::kElements : 0));
    return first + stage * 2 * Shape::kElements;
  }
  // The K of a step in use, followed by its V.
  __device__ __forceinline__ T* in_use(int stage) const {
    if constexpr (kConverts) {
      return memory;
    } else {
      return at(stage);
    }
  }
  // A warp's memory that a recomputation does not use otherwise.
  __device__ __forceinline__ float* spare() const { return reinterpret_cast<float*>(at(1)); }

  // Offset of a chunk in a stage.
  static __device__ __forceinline__ int chunk_at(int key, int chunk) {
    return kConverts ? key * kWidth + chunk * kChunk : Tile<kWidth>::at(key, chunk);
  }
  // Turns the chunks of a stage that this lane has copied into numbers of type T.
  __device__ __forceinline__ void convert(int stage) const {
    constexpr int kChunks = kWidth / kChunk;
    constexpr int kKeysAtOnce = kWarpSize / kChunks;
    const int chunk = lane() % kChunks;
    struct alignas(8) Bytes {
      uint32_t of[kChunk / 4];
    };
    struct alignas(16) Numbers {
      uint32_t of[kChunk / 2];
    };
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll 4
      for (int i = 0; i < kStepKeys; i += kKeysAtOnce) {
        const int key = i + lane() / kChunks, begin = tile * Shape::kElements;
        const Bytes bytes =
            *reinterpret_cast<const Bytes*>(at(stage) + begin + chunk_at(key, chunk));
        Numbers numbers;
#pragma unroll
        for (int n = 0; n < kChunk / 2; ++n) {
          const uint32_t pair = bytes.of[n / 2] >> (n % 2 * 16);
          numbers.of[n] = pack<T>(number_of(pair), number_of(pair >> 8U));
        }
        *reinterpret_cast<Numbers*>(memory + begin + Tile<kWidth>::at(key, chunk)) = numbers;
      }
    }
  }
};

// The rows of a step of a warp.
struct StepRows {
  uint32_t exists = 0;  // bit i is set if key i exists
  float scale = 1.0F;   // int8 only: of key lane, or of the value of key lane - 16
};

// Starts to copy the keys and values of a step, as one group of copies. Keys beyond the split
// become zeros.
template <class Stored, class T, int kWidth>
__device__ __forceinline__ StepRows start_step(const DecodeBlock& b, int64_t first, Stored* stage) {
  using Place = Stages<Stored, T, kWidth>;
  const rules::AttentionParams& call = b.call();
  // Lanes 0 to 15 find the rows of K, lanes 16 to 31 the rows of V.
  const bool of_keys = lane() < kStepKeys;
  const rules::StoredRows& own = of_keys ? call.k : call.v;
  const int64_t position = first + lane() % kStepKeys;
  int64_t row = 0, start = -1;
  StepRows rows;
  if (position < b.end_key && find_row(own, b.params.pool_pages, b.batch, position, row)) {
    start = rules::row_offset(own.stride, b.batch, b.kv_head, row);
    if constexpr (Place::kConverts) {
      rows.scale = own.scales[rules::row_offset(own.scale_stride, b.batch, b.kv_head, row)];
    }
  }
  const auto copy = [&](const void* data, int64_t width, int first_lane, Stored* tile) {
    constexpr int kChunks = kWidth / kChunk;
    constexpr int kKeysAtOnce = kWarpSize / kChunks;
    constexpr int kBytes = kChunk * static_cast<int>(sizeof(Stored));
    const int chunk = lane() % kChunks;
    const int elements =
        static_cast<int>(rules::least_of(width - chunk * kChunk, kChunk));  // elements in the chunk
#pragma unroll 4
    for (int i = 0; i < kStepKeys; i += kKeysAtOnce) {
      const int key = i + lane() / kChunks;
      const int64_t from = shuffle(start, first_lane + key);
      const bool exists = from >= 0 && elements > 0;
      copy_async<kBytes>(tile + Place::chunk_at(key, chunk),
                         static_cast<const Stored*>(data) + (exists ? from + chunk * kChunk : 0),
                         exists ? elements * static_cast<int>(sizeof(Stored)) : 0);
    }
  };
  copy(call.k.data, call.head_dim, 0, stage);
  copy(call.v.data, call.value_dim, kStepKeys, stage + DecodeTile<kWidth>::kElements);
  rows.exists = ballot(start >= 0) & ((1U << kStepKeys) - 1);
  return rows;
}

// Multiplies the columns of a thread's scores or weights by the scales of their keys, which lanes
// first_lane to first_lane + 15 have. kMarks: kNoWeight stays as it is.
template <bool kMarks>
__device__ __forceinline__ void scale_columns(float scale, int first_lane,
                                              float (&columns)[kStepKeys / 8][4]) {
#pragma unroll
  for (int n = 0; n < kStepKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float of_key = shuffle(scale, first_lane + n * 8 + 2 * (lane() % 4) + i);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& column = columns[n][2 * half + i];
        column = kMarks && column == kNoWeight ? column : column * of_key;
      }
    }
  }
}

// Hides the scores of keys that a row does not see by position, and of keys that do not exist.
__device__ __forceinline__ void hide_keys(const DecodeBlock& b, int64_t first, uint32_t exists,
                                          float (&scores)[kStepKeys / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const KeyPart part = b.part(half, first);
    const uint32_t visible = exists & ((1U << part.end) - 1) & ~((1U << part.begin) - 1);
#pragma unroll
    for (int i = 0; i < kStepKeys / 4; ++i) {
      const int at = i / 2 * 8 + 2 * (lane() % 4) + i % 2;
      if ((visible >> static_cast<uint32_t>(at) & 1U) == 0) {
        scores[i / 2][2 * half + i % 2] = -INFINITY;
      }
    }
  }
}

// One pass of a warp over its keys. With kSingly, it multiplies weights by values key by key and
// skips hidden keys. It then recomputes the rows that were not sound, and ends as soon as later
// keys can change neither their outputs nor their sums. kOptions: the call has options besides
// visibility by position and a positive scale. prepare(): starts to copy the queries, and writes
// the block's state.
template <bool kSingly, bool kOptions, class Stored, class T, int kWidth, class Prepare>
__device__ __forceinline__ void attend_keys(const DecodeBlock& b, const T* queries, T* memory,
                                            Sums<kWidth>& sums, const Sound& sound,
                                            const Prepare& prepare) {
  using Shape = DecodeTile<kWidth>;
  using Place = Stages<Stored, T, kWidth>;
  constexpr int kStages = kSingly ? 1 : Place::kStages;
  const Place place{memory};
  const rules::AttentionParams& call = b.call();
  const float to_power = call.scale.softmax * kLog2E;
  const float unit = unit_of_scores<kOptions>(call);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.largest[half] = -INFINITY;
    sums.weights[half] = 0.0F;
  }
  each_of_fragment<kWidth / 8>([&](int n, int i) { sums.out[n][i] = 0.0F; });

  // Commit one group of copies per step, even an empty group beyond the last step, so that the
  // number of pending groups tells which steps have arrived. rows[i]: the rows of the step that is
  // i steps ahead.
  StepRows rows[kStages];
  const auto start = [&](int64_t first, int stage) {
    if (first >= b.end_key) return StepRows{};
    return start_step<Stored, T, kWidth>(b, first, place.at(stage));
  };
  int64_t first = b.first_key + warp() * kStepKeys;
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    rows[i] = start(first + i * Shape::kKeyStep, i);
    // The first keys come first: memory takes longer than the work until then.
    if (i == 0) prepare();
    commit_copies();
  }
  if (!kSingly) {
    // Wait for the queries, which are in the first group, and for the block's state.
    wait_copies<kStages - 1>();
    sync_threads();
  }
  QueryOptions options{call, b.state.entry};
  FragmentTerms<kStepKeys / 8> terms;
  const auto load_terms = [&](int64_t from) {
    if (!kOptions || from >= b.end_key) return;
    options.load(
        from, !kSingly && b.all_visible(from), [&](int half) { return b.part(half, from); }, terms);
  };
  if constexpr (kOptions) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows beyond the last one have the addresses of the last one.
      const auto row = static_cast<int>(rules::least_of(lane() / 4 + 8 * half, b.rows - 1));
      options.set(half, b.head_of(row), b.query_of(row));
    }
    load_terms(first);
  }
  int stage = 0;
  for (; first < b.end_key; first += Shape::kKeyStep) {
    wait_copies<kStages - 1>();
    if constexpr (Place::kConverts) place.convert(stage);
    sync_warp();
    const T* const keys = place.in_use(stage);
    const T* const values = keys + Shape::kElements;

    float scores[kStepKeys / 8][4];
    multiply_keys<T, kWidth>(queries, keys, scores);
    if constexpr (Place::kConverts) scale_columns<false>(rows[0].scale, 0, scores);
    if constexpr (kOptions) {
      options.template apply<false>(
          first, [&](int half) { return b.part(half, first); }, terms, scores,
          [](int, int, float) {});
      // The terms of the next step arrive while this one is used.
      load_terms(first + Shape::kKeyStep);
    }
    if (rows[0].exists != (1U << kStepKeys) - 1 || !b.all_visible(first)) {
      hide_keys(b, first, rows[0].exists, scores);
    }
    bool ended = false;  // of the singly computed rows of this thread
    add_weights<kSingly>(scores, unit, to_power, sums);
    if constexpr (kOptions) {
      if (call.dropout.given()) {
        drop_weights<kSingly>(options.template kept<kStepKeys / 8>(first), scores);
      }
    }
    if constexpr (Place::kConverts) scale_columns<kSingly>(rows[0].scale, kStepKeys, scores);
    if (kSingly) {
      add_values_singly<T, kWidth>(scores, values, place.spare(), sums.out);
      ended = true;
      for (int half = 0; half < 2; ++half) {
        const bool of_row = (sound.row[half] || sums.weights[half] != sums.weights[half]) &&
                            all_nan(sums, half, call.value_dim);
        const int64_t last = b.state.seen[lane() / 4 + 8 * half].last;
        ended = ended && (of_row || last <= first + Shape::kKeyStep);
      }
    } else {
      multiply_values<T, kWidth>(scores, values, sums.out);
    }
    // All lanes must have used the stage before the next copies, or the sums, are written to it.
    sync_warp();
    if (kSingly && ballot(!ended) == 0) break;
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i) rows[i] = rows[i + 1];
    rows[kStages - 1] = start(first + kStages * Shape::kKeyStep, stage);
    commit_copies();
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
}

// Writes a warp's results to shared memory, the outputs over its stages. has_sum: rows whose sum
// and largest score are already written.
template <int kWidth>
__device__ __forceinline__ void write_sums(const DecodeBlock& b, const Sums<kWidth>& sums,
                                           float* to, const Sound& has_sum) {
  const float factor = b.call().dropout.scale;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool sound = false;
    const float sum = sum_of_row(sums, half, sound);
    const int row = lane() / 4 + 8 * half;
    if (lane() % 4 == 0 && !has_sum.row[half]) {
      // The merge skips a warp whose largest score is -inf, but a NaN must stay.
      b.state.terms[warp()][row][0] = sum != sum ? sum : sums.largest[half];
      b.state.terms[warp()][row][1] = sum;
    }
#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) {
      float* const pair = to + row * DecodeTile<kWidth>::kSumStride + n * 8 + 2 * (lane() % 4);
      pair[0] = sums.out[n][2 * half] * factor;
      pair[1] = sums.out[n][2 * half + 1] * factor;
    }
  }
}

// Not inlined, so that it takes no registers from the usual pass.
template <bool kOptions, class Stored, class T, int kWidth>
__device__ __noinline__ void recompute_keys(const DecodeBlock& b, const T* queries, T* stages,
                                            Sound sound) {
  Sums<kWidth> sums;
  attend_keys<true, kOptions, Stored, T, kWidth>(b, queries, stages, sums, sound, [] {});
  write_sums<kWidth>(b, sums, reinterpret_cast<float*>(stages), sound);
}

// Merges the results of the warps into the partial result of the split, or, if the keys are not
// split, into out and lse. `index`: of the block's first row along the first three axes of the
// partial results.
template <int kWidth>
__device__ __forceinline__ void join_warps(const DecodeBlock& b, int64_t index,
                                           const float* warps) {
  using Shape = DecodeTile<kWidth>;
  const SplitParams& p = b.params;
  const rules::AttentionParams& call = b.call();
  const int width = static_cast<int>(call.value_dim);
  for (int row = warp(); row < b.rows; row += Shape::kWarps) {
    const StoredParts parts{warps + row * Shape::kSumStride, b.state.terms[0][row],
                            Shape::kWarpElements / 2, 2 * kRowsOfWarp, Shape::kWarps};
    const auto part = merge_parts<kWidth / kWarpSize, Shape::kWarps>(
        parts, width, factor_of(call),
        [&] { return p.merges() ? -INFINITY : sink_of(call, b.head_of(row)); });
    if (p.merges()) {
      store_part(p, index + row, b.state.split, part);
    } else {
      write_row(call, b.batch, b.head_of(row), b.query_of(row), 0, part);
    }
  }
}

// Rounds f32 queries to the type of the keys. offset_of(r): offset of row r, or negative.
template <class T, int kWidth, class OffsetOf>
__device__ __forceinline__ void round_queries(const rules::AttentionParams& call, T* queries,
                                              const OffsetOf& offset_of) {
  constexpr int kPairs = kWidth / 2;
  for (int at = thread_index(); at < kRowsOfWarp * kPairs; at += DecodeTile<kWidth>::kThreads) {
    const int row = at / kPairs, c = at % kPairs * 2;
    const int64_t start = offset_of(row);
    float pair[2] = {0.0F, 0.0F};
    if (start >= 0 && c < call.head_dim) {
      const float* const from = static_cast<const float*>(call.q.data) + start + c;
      pair[0] = from[0];
      pair[1] = from[1];
    }
    auto* const to = queries + Tile<kWidth>::at(row, c / kChunk) + c % kChunk;
    *reinterpret_cast<uint32_t*>(to) = pack<T>(pair[0], pair[1]);
  }
}

// The minimum number of blocks lets ptxas use more registers; without it ptxas spills.
// Stored: type of the rows of K and V.
template <bool kOptions, class Stored, class T, int kWidth>
__global__ void __launch_bounds__(DecodeTile<kWidth>::kThreads, 2)
    decode_mma(const __grid_constant__ SplitParams p) {
  using Shape = DecodeTile<kWidth>;
  const rules::AttentionParams& call = p.forward.call;
  const int64_t group = p.group;
  const int64_t all_rows = call.queries * group;
  const int64_t tiles = (all_rows + kRowsOfWarp - 1) / kRowsOfWarp;
  let_next_kernel_start();
  if (block_number() >= call.batch * call.kv_heads * tiles * p.splits) return;
  const auto [tile, split] = divide(block_number(), p.splits);
  const auto [kv_head_of_batch, tile_of_rows] =
      tiles == 1 ? Quotient{tile, 0} : divide(tile, tiles);
  const auto [batch, kv_head] =
      call.batch == 1 ? Quotient{0, kv_head_of_batch} : divide(kv_head_of_batch, call.kv_heads);
  const int64_t first_row = tile_of_rows * kRowsOfWarp;
  wait_for_previous_kernel();
  const rules::EntryVisibility visibility = call.visibility.entry(batch);
  const int rows = static_cast<int>(rules::least_of(kRowsOfWarp, all_rows - first_row));

  T* const queries = reinterpret_cast<T*>(shared_memory());
  T* const stages = queries + Shape::kQueryElements;
  auto& state = *reinterpret_cast<DecodeState*>(queries + Shape::kAllElements);
  DecodeBlock b{p, state, batch, kv_head, group, first_row, rows, 0, 0};
  const auto offset_of = [&](int r) {
    return r < rows ? rules::row_offset(call.q.stride, b.batch, b.head_of(r), b.query_of(r))
                    : int64_t{-1};
  };
  const auto prepare = [&] {
    if (call.q.type == DType::kF32) {
      round_queries<T, kWidth>(call, queries, offset_of);
    } else {
      copy_tile<T, kWidth, kRowsOfWarp, Shape::kThreads>(
          call.q.data, static_cast<int>(call.head_dim), queries, offset_of);
    }
    if (thread_index() == 0) {
      if (kOptions) state.entry = entry_of_batch(call, b.batch);
      state.tile = tile;
      state.split = split;
    }
    if (thread_index() < kRowsOfWarp) {
      const int r = thread_index();
      state.seen[r] = {};  // no key
      if (r < rows) state.seen[r] = visibility.seen_by(b.query_of(r));
    }
  };
  // The first and the last visible key never decrease as the query rises.
  const rules::KeyRange seen{visibility.seen_by(b.query_of(0)).first,
                             visibility.seen_by(b.query_of(rows - 1)).last};
  b.first_key = split * p.split_keys;
  b.end_key = rules::least_of(b.first_key + p.split_keys, seen.last);
  if (seen.first > b.first_key) {
    b.first_key += (seen.first - b.first_key) / kStepKeys * kStepKeys;
  }

  T* const own = stages + warp() * Shape::kWarpElements;
  Sums<kWidth> sums;
  attend_keys<false, kOptions, Stored, T, kWidth>(b, queries, own, sums, {}, prepare);
  Sound sound{};
  bool wrong = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum_of_row(sums, half, sound.row[half]);
    wrong = wrong || is_wrong(sums, half, sound);
  }
  write_sums<kWidth>(b, sums, reinterpret_cast<float*>(own), {});
  if (ballot(wrong) != 0) {
    sync_warp();
    recompute_keys<kOptions, Stored, T, kWidth>(b, queries, own, sound);
  }
  const TileCounter counter(p, state.tile);
  sync_threads();
  const int64_t index =
      (b.batch * call.kv_heads + b.kv_head) * call.queries * b.group + b.first_row;
  join_warps<kWidth>(b, index, reinterpret_cast<const float*>(stages));
  counter.merge_if_last<kWidth / kWarpSize>(
      p, index, rows, b.batch, [&](int row) { return b.head_of(row); },
      [&](int row) { return b.query_of(row); });
}

template <bool kOptions, class Stored, class T, int kWidth>
int launch_of_width(const SplitParams& params, StreamHandle stream) {
  constexpr size_t kBytes = DecodeTile<kWidth>::kAllElements * sizeof(T) + sizeof(DecodeState);
  static_assert(kBytes <= kDecodeMmaBytes && kDecodeMmaBytes <= kLeastSharedBytes);
  return launch({.blocks = params.tiles() * params.splits,
                 .threads = DecodeTile<kWidth>::kThreads,
                 .shared_bytes = kBytes,
                 .stream = stream,
                 .early = params.early},
                decode_mma<kOptions, Stored, T, kWidth>, params);
}

template <bool kOptions, class Stored, class T>
int launch_width(const SplitParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  const int64_t width = rules::most_of(call.head_dim, call.value_dim);
  if (width <= 64) return launch_of_width<kOptions, Stored, T, 64>(params, stream);
  if (width <= 128) return launch_of_width<kOptions, Stored, T, 128>(params, stream);
  static_assert(kMaxWidth <= 256);
  return launch_of_width<kOptions, Stored, T, 256>(params, stream);
}

template <class Stored, class T>
int launch_type(const SplitParams& params, StreamHandle stream) {
  return has_options(params.forward.call) ? launch_width<true, Stored, T>(params, stream)
                                          : launch_width<false, Stored, T>(params, stream);
}

}  // namespace
}  // namespace mma

int launch_decode_mma(const SplitParams& params, StreamHandle stream) {
  switch (params.forward.call.k.type) {
    case DType::kInt8:
      return mma::launch_type<int8_t, BFloat16>(params, stream);
    case DType::kF16:
      return mma::launch_type<Float16, Float16>(params, stream);
    default:
      return mma::launch_type<BFloat16, BFloat16>(params, stream);
  }
}

}  // namespace multihead::cuda
