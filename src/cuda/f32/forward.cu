// Attention for every option and type, with products and sums in f32.
//
// A block takes 16 rows of the query heads that share a key/value head, and loops over 32 keys at a
// time:
//
//   1. All warps copy 32 rows of K and of V into shared memory, as floats.
//   2. Each warp scores its 4 rows against them, one key per lane, and updates each row's
//      running max and sum (online softmax, arXiv:1805.02867).
//   3. Each lane adds its columns of the weighted values.
//
// Hidden and dropped keys are skipped instead of multiplied by zero: their values may be NaN.
#include <cstddef>
#include <cstdint>

#include "cuda/f32/tile.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"
#include "rules/lse.h"

namespace multihead::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kRows = 16;
constexpr int kRowsOfWarp = kRows / kWarps;
constexpr int kKeys = kWarpSize;
constexpr float kNoWeight = -1.0F;  // marks a hidden or dropped key; weights are never negative

// Offsets of the arrays in shared memory, in floats.
struct Layout {
  // Stride of the rows of K; odd, so that the lanes of a warp read from different banks.
  int key_stride;
  int values, weights, queries, floats;

  __host__ __device__ Layout(int64_t head_dim, int64_t value_dim)
      : key_stride(static_cast<int>(head_dim) | 1),
        values(kKeys * key_stride),
        weights(values + kKeys * static_cast<int>(value_dim)),
        queries(weights + kRows * kKeys),
        floats(queries + kRows * static_cast<int>(head_dim)) {}
};

// kColumns: output columns per lane.
template <int kColumns>
__global__ void __launch_bounds__(kThreads) forward_f32(const __grid_constant__ ForwardParams p) {
  const rules::AttentionParams& call = p.call;
  const int64_t group = call.group();
  const RowTile tile = row_tile<kRows>(p);
  if (tile.empty()) return;
  const auto& [entry, kv_head, first_row, last_row] = tile;

  const Layout layout(call.head_dim, call.value_dim);
  float* const keys = reinterpret_cast<float*>(shared_memory());
  float* const values = keys + layout.values;
  float* const weights = keys + layout.weights + warp() * kRowsOfWarp * kKeys;
  float* const queries =
      keys + layout.queries + warp() * kRowsOfWarp * static_cast<int>(call.head_dim);
  const int head_dim = static_cast<int>(call.head_dim);
  const int value_dim = static_cast<int>(call.value_dim);

  QueryRow rows[kRowsOfWarp];
  float largest[kRowsOfWarp], sum[kRowsOfWarp], out[kRowsOfWarp][kColumns];
  const auto row_of = [&](int r) { return first_row + warp() * kRowsOfWarp + r; };
  const auto head_of = [&](int r) { return kv_head * group + row_of(r) % group; };
  const auto query_of = [&](int r) { return row_of(r) / group; };
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    largest[r] = -INFINITY;
    sum[r] = 0.0F;
    rows[r] = {};  // sees no key
#pragma unroll
    for (int n = 0; n < kColumns; ++n) out[r][n] = 0.0F;
    if (row_of(r) > last_row) {
      for (int c = lane(); c < head_dim; c += kWarpSize) queries[r * head_dim + c] = 0.0F;
      continue;
    }
    rows[r] = query_row(call, entry, head_of(r), query_of(r));
    if (call.sinks != nullptr && call.sinks[head_of(r)] != -INFINITY) {
      largest[r] = call.sinks[head_of(r)] / call.scale.softmax;
      sum[r] = 1.0F;
    }
    const int64_t row =
        rules::row_offset(call.q.stride, entry.batch, head_of(r), entry.first_query + query_of(r));
    for (int c = lane(); c < head_dim; c += kWarpSize) {
      queries[r * head_dim + c] = element(call.q.data, call.q.type, row + c) * call.scale.queries;
    }
  }

  const rules::KeyRange seen = tile.keys(group, kKeys);
  for (int64_t first = seen.first; first < seen.last; first += kKeys) {
    // Wait until every warp has used the previous tiles.
    sync_threads();
    const auto copy = [&](const rules::StoredRows& of, int width, float* to, int stride) {
      copy_rows<kKeys>(of.data, of.type, width, to, stride, [&](int i) {
        const int64_t key = first + i;
        if (key >= seen.last) return int64_t{-1};
        return rules::row_offset(of.stride, entry.batch, kv_head, entry.first_key + key);
      });
    };
    copy(call.k, head_dim, keys, layout.key_stride);
    copy(call.v, value_dim, values, value_dim);
    sync_threads();

    float product[kRowsOfWarp] = {};
    for (int c = 0; c < head_dim; ++c) {
      const float k = keys[lane() * layout.key_stride + c];
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) product[r] += queries[r * head_dim + c] * k;
    }
    const int64_t key = first + lane();
    float shrink[kRowsOfWarp];
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
      const bool visible = sees(call, rows[r], key);
      const float score =
          visible ? biased_score(call, rows[r], key, capped_score(call, product[r])) : -INFINITY;
      const float most = warp_max(score);
      const float reference = most > largest[r] || most != most ? most : largest[r];
      const auto weight_of = [&](float s) { return expf((s - reference) * call.scale.softmax); };
      shrink[r] = largest[r] == reference ? 1.0F : weight_of(largest[r]);
      const float weight = visible ? weight_of(score) : 0.0F;
      largest[r] = reference;
      sum[r] = sum[r] * shrink[r] + warp_sum(weight);
      const bool counts =
          visible && (!call.dropout.given() || keeps(call, entry, head_of(r), query_of(r), key));
      weights[r * kKeys + lane()] = counts ? weight : kNoWeight;
    }
    sync_warp();

    // Sum each tile separately, then add it to the total: two short sums round less than one long
    // sum.
    float part[kRowsOfWarp][kColumns] = {};
    for (int k = 0; k < kKeys; ++k) {
      float value[kColumns];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const int c = lane() + n * kWarpSize;
        value[n] = c < value_dim ? values[k * value_dim + c] : 0.0F;
      }
#pragma unroll
      for (int r = 0; r < kRowsOfWarp; ++r) {
        const float weight = weights[r * kKeys + k];
        if (weight < 0.0F) continue;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) part[r][n] += weight * value[n];
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) out[r][n] = out[r][n] * shrink[r] + part[r][n];
    }
  }

#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    if (row_of(r) > last_row) continue;
    const int64_t query = entry.first_query + query_of(r);
    if (call.lse.data != nullptr && lane() == 0) {
      *call.lse.row(entry.batch, head_of(r), query) =
          rules::lse_of(largest[r], call.scale.softmax, static_cast<double>(sum[r]));
    }
    if (call.out.data == nullptr) continue;
    const float factor = sum[r] == 0.0F ? 0.0F : call.dropout.scale / sum[r];
    const int64_t row = rules::row_offset(call.out.stride, entry.batch, head_of(r), query);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = lane() + n * kWarpSize;
      if (c < value_dim) {
        set_element(call.out.data, call.out.type, row + c, out[r][n] * factor);
      }
    }
  }
}

template <int kColumns>
int launch_columns(const ForwardParams& params, StreamHandle stream) {
  const Layout layout(params.call.head_dim, params.call.value_dim);
  return launch_tiles(query_axis(params, kRows, params.call.group()), params.call.kv_heads,
                      kThreads, static_cast<size_t>(layout.floats) * sizeof(float), stream,
                      forward_f32<kColumns>, params);
}

}  // namespace

int find_code(int& version) { return find_code(forward_f32<2>, version); }

int launch_forward_f32(const ForwardParams& params, const Device&, StreamHandle stream) {
  const int64_t columns = (params.call.value_dim + kWarpSize - 1) / kWarpSize;
  if (columns <= 2) return launch_columns<2>(params, stream);
  if (columns <= 4) return launch_columns<4>(params, stream);
  static_assert(kMaxWidth <= 8 * kWarpSize);
  return launch_columns<8>(params, stream);
}

}  // namespace multihead::cuda
