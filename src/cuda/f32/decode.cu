// Split-KV decoding of rows of any type. A block takes kDecodeRows query rows of one key/value head
// and one split of the keys, and loops over 32 keys at a time, with products and sums in f32:
//
//   1. All warps copy 32 rows of K into shared memory, as floats.
//   2. Each warp scores its query rows against them, one key per lane, and updates each row's
//      running max and sum (online softmax, arXiv:1805.02867).
//   3. All warps copy 32 rows of V into the same memory; each thread adds its columns of all rows.
//
// The last block of a tile merges its splits (merge_parts.h). Rows of K and V may lie in a tensor,
// a ring or pages.
#include "cuda/device/launch.h"
#include "cuda/kernels.h"
#include "cuda/merge_parts.h"
#include "cuda/rows.h"
#include "cuda/splits.h"
#include "rules/element.h"

namespace multihead::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRows = static_cast<int>(kDecodeRows);
constexpr int kRowsOfWarp = kRows / kWarps;
constexpr int kKeys = static_cast<int>(kDecodeKeyStep);
static_assert(kKeys == kWarpSize && kRows % kWarps == 0);
constexpr float kNoWeight = -1.0F;                                // marks a hidden or dropped key
constexpr int kColumns = static_cast<int>(kMaxWidth) / kThreads;  // output columns per thread

// Offsets of the arrays in shared memory, in floats.
struct Layout {
  int stride;  // of a tile row; odd, so that the lanes of a warp read from different banks
  int weights, shrink, queries, floats;

  __host__ __device__ Layout(int64_t head_dim, int64_t value_dim)
      : stride(static_cast<int>(rules::most_of(head_dim, value_dim)) | 1),
        weights(kKeys * stride),
        shrink(weights + kRows * kKeys),
        queries(shrink + kRows),
        floats(queries + kRows * static_cast<int>(head_dim)) {}
};

// Copies rows first .. first + 31 into the tile; writes zeros for rows >= `end`.
template <class T>
__device__ void load_tile(const rules::StoredRows& rows, int64_t pool_pages, int64_t batch,
                          int64_t kv_head, int64_t first, int64_t end, int64_t width, int stride,
                          float* tile) {
  for (int key = warp(); key < kKeys; key += kWarps) {
    int64_t row = 0;
    const bool exists = first + key < end && find_row(rows, pool_pages, batch, first + key, row);
    const T* const from = static_cast<const T*>(rows.data) +
                          (exists ? rules::row_offset(rows.stride, batch, kv_head, row) : 0);
    const float scale = exists && rows.scales != nullptr
                            ? rows.scales[rules::row_offset(rows.scale_stride, batch, kv_head, row)]
                            : 1.0F;
    for (int c = lane(); c < width; c += kWarpSize) {
      tile[key * stride + c] = exists ? to_float(from[c]) * scale : 0.0F;
    }
  }
}

// At least 3 blocks per multiprocessor: without that bound, ptxas takes 128 registers and spills.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) decode_split(const SplitParams p) {
  const rules::AttentionParams& call = p.forward.call;
  const int64_t group = call.group();
  const int64_t all_rows = call.queries * group;
  const int64_t tiles = (all_rows + kRows - 1) / kRows;
  int64_t index = block_number();
  let_next_kernel_start();
  if (index >= p.tiles() * p.splits) return;
  const int64_t split = index % p.splits;
  index /= p.splits;
  wait_for_previous_kernel();
  const int64_t tile_number = index;
  const int64_t first_row = index % tiles * kRows;
  index /= tiles;
  const int64_t kv_head = index % call.kv_heads;
  const int64_t batch = index / call.kv_heads;
  const Entry entry = entry_of(p.forward, batch);
  const int rows = static_cast<int>(rules::least_of(kRows, all_rows - first_row));
  const auto head_of = [&](int r) { return kv_head * group + (first_row + r) % group; };
  const auto query_of = [&](int r) { return (first_row + r) / group; };

  const Layout layout(call.head_dim, call.value_dim);
  float* const tile = reinterpret_cast<float*>(shared_memory());
  float* const weights = tile + layout.weights;
  float* const shrink = tile + layout.shrink;
  float* const queries = tile + layout.queries;
  const int head_dim = static_cast<int>(call.head_dim);
  for (int at = thread_index(); at < kRows * head_dim; at += kThreads) {
    const int r = at / head_dim, c = at % head_dim;
    queries[at] =
        r < rows ? element(call.q.data, call.q.type,
                           rules::row_offset(call.q.stride, batch, head_of(r), query_of(r)) + c) *
                       call.scale.queries
                 : 0.0F;
  }

  // Union of the keys that the block's rows see.
  rules::KeyRange seen{call.keys, 0};
  for (int r = 0; r < rows; ++r) {
    const rules::KeyRange of_row = entry.visibility.seen_by(query_of(r));
    if (of_row.empty()) continue;
    seen.first = rules::least_of(seen.first, of_row.first);
    seen.last = rules::most_of(seen.last, of_row.last);
  }
  const int64_t end = rules::least_of((split + 1) * p.split_keys, seen.last);
  int64_t first = split * p.split_keys;
  if (seen.first > first) first += (seen.first - first) / kKeys * kKeys;

  // This warp's rows: warp() and warp() + 4 of the block.
  QueryRow row[kRowsOfWarp];
  float largest[kRowsOfWarp], sum[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int r = warp() + i * kWarps;
    if (r < rows) row[i] = query_row(call, entry, head_of(r), query_of(r));
    largest[i] = -INFINITY;
    sum[i] = 0.0F;
  }
  const float factor = call.scale.softmax * kLog2E;
  float values[kRows][kColumns] = {};

  for (; first < end; first += kKeys) {
    sync_threads();  // previous tile is no longer read; queries are written
    load_tile<T>(call.k, p.pool_pages, batch, kv_head, first, end, call.head_dim, layout.stride,
                 tile);
    sync_threads();
    const int64_t key = first + lane();
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int r = warp() + i * kWarps;
      int64_t slot = 0;
      const bool visible = r < rows && key < end && sees(call, row[i], key) &&
                           find_row(call.k, p.pool_pages, batch, key, slot);
      float score = -INFINITY;
      if (visible) {
        float product = 0.0F;
        for (int c = 0; c < head_dim; ++c) {
          product += queries[r * head_dim + c] * tile[lane() * layout.stride + c];
        }
        score = biased_score(call, row[i], key, capped_score(call, product));
      }
      const float most = warp_max(score);
      const float reference = most > largest[i] || most != most ? most : largest[i];
      // Before the first visible key, the sums are 0.
      const float rescale =
          largest[i] == -INFINITY ? 0.0F : exp2f((largest[i] - reference) * factor);
      const bool counts = visible && score != -INFINITY;
      float weight = counts ? exp2f((score - reference) * factor) : 0.0F;
      sum[i] = sum[i] * rescale + warp_sum(weight);
      largest[i] = reference;
      if (!counts) {
        weight = kNoWeight;
      } else if (call.dropout.given()) {
        const bool kept = keeps(call, entry, head_of(r), query_of(r), key);
        weight = kept ? weight * call.dropout.scale : kNoWeight;
      }
      weights[r * kKeys + lane()] = weight;
      if (lane() == 0) shrink[r] = rescale;
    }
    sync_threads();
    load_tile<T>(call.v, p.pool_pages, batch, kv_head, first, end, call.value_dim, layout.stride,
                 tile);
    sync_threads();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) values[r][i] *= shrink[r];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int c = thread_index() + i * kThreads;
      if (c >= call.value_dim) break;
      for (int j = 0; j < kKeys; ++j) {
        const float value = tile[j * layout.stride + c];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          // Skip hidden values, because they may be NaN. A visible value counts even with weight 0
          // (0 * NaN is NaN). The weight itself may be NaN too, hence !(weight < 0).
          const float weight = weights[r * kKeys + j];
          if (!(weight < 0.0F)) values[r][i] += weight * value;
        }
      }
    }
  }

  const TileCounter counter(p, tile_number);
  const int64_t first_index = (batch * call.kv_heads + kv_head) * all_rows + first_row;
  const auto partial = [&](int r) { return partial_of(p, first_index + r, split); };
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int c = thread_index() + i * kThreads;
      if (r < rows && c < call.value_dim) partial(r)[c] = values[r][i];
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int r = warp() + i * kWarps;
    if (r >= rows || lane() != 0) continue;
    partial(r)[call.value_dim] = largest[i];
    partial(r)[call.value_dim + 1] = sum[i];
  }
  counter.merge_if_last<static_cast<int>(kMaxWidth) / kWarpSize>(p, first_index, rows, batch,
                                                                 head_of, query_of);
}

}  // namespace

int launch_decode_f32(const SplitParams& params, StreamHandle stream) {
  const rules::AttentionParams& call = params.forward.call;
  const size_t floats = static_cast<size_t>(Layout(call.head_dim, call.value_dim).floats);
  const LaunchShape shape{.blocks = params.tiles() * params.splits,
                          .threads = kThreads,
                          .shared_bytes = floats * sizeof(float),
                          .stream = stream,
                          .early = params.early};
  return rules::visit_element(call.k.type, [&]<class T>(std::type_identity<T>) {
    return launch(shape, decode_split<T>, params);
  });
}

}  // namespace multihead::cuda
