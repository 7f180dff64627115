// The backward kernel. A job computes d_k and d_v for a chunk of keys, and their part of d_q.
//
// With S the scores, P = exp(S - LSE) the weights and D = d_out (FlashAttention-2, Dao,
// arXiv:2307.08691, algorithm 2):
//
//   dV = P^T D        dP = D V^T        dS = P * (dP - delta), delta = rowsum(out * D)
//   dK = scale dS^T Q                   dQ = scale dS K
//
// Tiles are transposed as in the forward kernel: keys down, queries in the lanes, so that LSE and
// delta are vectors. S and dP are row-major products like the forward's scores, dV and dK row-major
// products with the weights as A, and dQ is a column-major product like the forward's output.
//
// Two jobs may add to the same d_q (chunks of keys) or to the same d_k and d_v (parts of the rows).
// Each adds its part after the job before it has added its own, so the result has the same bits for
// any number of threads. Jobs that run side by side go through the rows in the same order, the last
// ones first: with causal order all chunks see those, so a job rarely waits.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/attention/backward/semaphores.h"
#include "cpu/kernels.h"
#include "cpu/preconditions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/backward/backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/backward/backward_block-inl.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/attention/block/scores-inl.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the lanes of a panel in the tile at `first`.
inline ScoreTile panel_tile(const BackwardBlock& block, const Panel& panel, float* first,
                            const rules::KeyRange& keys) {
  return {.scores = first + panel.lane,
          .stride = block.s.row_lanes,
          .first_key = keys.first,
          .keys = static_cast<size_t>(keys.last - keys.first),
          .lanes = panel.lanes,
          .rows = panel.rows};
}

// Writes the cap's derivative 1 - (s / cap)^2 for capped scores s.
template <class D>
HWY_NOINLINE void derive_cap(D d, const ScoreTile& capped, float cap, float* HWY_RESTRICT to) {
  const auto inverse = hn::Set(d, 1.0F / cap);
  for (size_t key = 0; key < capped.keys; ++key) {
    for (size_t lane = 0; lane < capped.lanes; lane += hn::Lanes(d)) {
      const size_t at = key * capped.stride + lane;
      const auto t = hn::Mul(hn::LoadU(d, capped.scores + at), inverse);
      hn::StoreU(hn::NegMulAdd(t, t, hn::Set(d, 1.0F)), d, to + at);
    }
  }
}

// Replaces scores by weights P = exp(factor * (score - reference)), and gradients dP of the weights
// by dS = P * (dP - delta), the gradients of the scores (FlashAttention-2, arXiv:2307.08691). Both
// are 0 where the score is -inf.
template <class D>
HWY_NOINLINE void differentiate_softmax(D d, const ScoreTile& scores, float* HWY_RESTRICT gradients,
                                        const VisibleEnds& visible_end, const SoftmaxFactor& factor,
                                        const float* HWY_RESTRICT reference,
                                        const float* HWY_RESTRICT delta) {
  using V = hn::Vec<D>;
  const ToLog2<D> to_log2(d, factor);
  const Exp2Table HWY_RESTRICT table = exp2_table();
  constexpr size_t kCount = TileSize::kExpsAtOnce;
  for (size_t lane = 0; lane < scores.lanes; lane += hn::Lanes(d)) {
    const V row_reference = hn::LoadU(d, reference + lane), mean = hn::LoadU(d, delta + lane);
    const auto take = [&](size_t key, auto count) HWY_ATTR {
      constexpr size_t kKeys = decltype(count)::value;
      float* const weight = scores.scores + key * scores.stride + lane;
      float* const gradient = gradients + key * scores.stride + lane;
      V score[kKeys], x[kKeys];
      for (size_t i = 0; i < kKeys; ++i) {
        x[i] = score[i] = hn::LoadU(d, weight + i * scores.stride);
      }
      exp_of_differences(d, table, x, row_reference, to_log2);
      for (size_t i = 0; i < kKeys; ++i) {
        const auto hidden = hn::Eq(score[i], hn::Set(d, kNegInf));
        const V g = hn::Sub(hn::LoadU(d, gradient + i * scores.stride), mean);
        hn::StoreU(hn::IfThenZeroElse(hidden, x[i]), d, weight + i * scores.stride);
        hn::StoreU(hn::IfThenZeroElse(hidden, hn::Mul(x[i], g)), d, gradient + i * scores.stride);
      }
    };
    const size_t end = visible_end[lane / hn::Lanes(d)];
    size_t key = 0;
    for (; key + kCount <= end; key += kCount) {
      take(key, std::integral_constant<size_t, kCount>());
    }
    for (; key < end; ++key) take(key, std::integral_constant<size_t, 1>());
    for (; key < scores.keys; ++key) {
      hn::StoreU(hn::Zero(d), d, scores.scores + key * scores.stride + lane);
      hn::StoreU(hn::Zero(d), d, gradients + key * scores.stride + lane);
    }
  }
}

// Calls visit(first vector, vectors, from, to) for rectangles of a tile that cover every key
// visible to each vector of the panel.
template <class Visit>
HWY_INLINE void for_visible_parts(size_t vectors, const VisibleEnds& visible_end,
                                  const Visit& visit) {
  for (size_t v = 0; v < vectors; v += TileSize::kScoreVecs) {
    for_ending_vectors(visible_end, v, std::min(TileSize::kScoreVecs, vectors - v), 0, visit);
  }
}

// Not inlined: in one function with the rest of the kernel, the products take 1.3 times as long
// with simd128 in Node 20, probably because sums of tiles are spilled.
HWY_NOINLINE inline void multiply_scores(const Product<>& p, size_t keys, size_t vecs) {
  product<ALayout::kRowMajor, F32Arithmetic, TileSize::kScoreVecs>(
      DF(), p, keys, vecs, [&](size_t, size_t) HWY_ATTR { return p.depth; });
}

// C has a row for each key. s.first_row and s.last_row give the rows of B that see the key.
HWY_NOINLINE inline void add_to_keys(const BackwardScratch& s, const Product<>& p, size_t keys,
                                     size_t vecs) {
  product<ALayout::kRowMajor>(DF(), p, keys, vecs, [&](size_t key, size_t tile_keys) HWY_ATTR {
    const auto first = static_cast<size_t>(s.first_row[key]);
    const auto last = static_cast<size_t>(s.last_row[key + tile_keys - 1]);
    return DepthRange{first, last > first ? last - first : 0};
  });
}

// C has a row for each query. Query i sees the keys first_key .. last_key[i] - 1.
HWY_NOINLINE inline void add_to_queries(const Product<>& p, size_t rows, size_t vecs,
                                        const int32_t* last_key, int64_t first_key) {
  product<ALayout::kColMajor>(DF(), p, rows, vecs, [&](size_t row, size_t tile_rows) HWY_ATTR {
    const int64_t seen = last_key[row + tile_rows - 1] - first_key;
    return static_cast<size_t>(std::clamp<int64_t>(seen, 0, static_cast<int64_t>(p.depth)));
  });
}

// Writes a panel's weights before dropout to s.weights, and the gradients of its scores to
// s.d_scores.
inline void weigh_panel(BackwardBlock& block, const Panel& panel, const BackwardKeys& keys) {
  QueryBlock<F32Products>& b = block.b;
  const BackwardScratch& s = block.s;
  const ScoreTile tile = panel_tile(block, panel, s.weights, keys.range);
  const KeyBlock<F32Products> key_block{keys.range, keys.k, keys.k_stride, {}};
  const size_t vectors = panel.lanes / b.vector;
  const VisibleEnds visible_end = visible_ends(b, panel, tile);
  for_visible_parts(vectors, visible_end, [&](size_t v, size_t vecs, size_t from, size_t to) {
    score_keys(b, panel, tile, key_block, v, vecs, from, to);
  });
  scale_and_cap(b, tile);
  if (b.p.softcap > 0.0F) derive_cap(b.d, tile, b.p.softcap, s.d_cap + panel.lane);
  add_and_mask(b, panel, tile);
  if (keys.range.first < panel.unmasked.first || keys.range.last > panel.unmasked.last) {
    hide_by_range(b.d, tile, b.s.first_key + panel.lane, b.s.last_key + panel.lane, nullptr);
  }

  const ScoreTile gradients = panel_tile(block, panel, s.d_scores, keys.range);
  const auto value_dim = static_cast<size_t>(b.p.value_dim);
  for_visible_parts(vectors, visible_end, [&](size_t v, size_t vecs, size_t from, size_t to) {
    const size_t lane = panel.lane + v * b.vector;
    const size_t strip = lane / score_lanes() * score_lanes();
    const Product<> p{.a = keys.v + static_cast<ptrdiff_t>(from) * keys.v_stride,
                      .a_stride = keys.v_stride,
                      .b = s.d_out_transposed + strip * value_dim + lane % score_lanes(),
                      .b_stride = static_cast<ptrdiff_t>(score_lanes()),
                      .b_strip = static_cast<ptrdiff_t>(score_lanes() * value_dim),
                      .c = gradients.scores + from * gradients.stride + v * b.vector,
                      .c_stride = static_cast<ptrdiff_t>(gradients.stride),
                      .depth = value_dim};
    multiply_scores(p, to - from, vecs);
  });
  if (b.p.dropout.given()) {
    drop_weights(b.d, gradients, b.s.place + panel.lane, b.p.first, b.batch, b.first_head(),
                 b.p.dropout);
  }
  differentiate_softmax(b.d, tile, gradients.scores, visible_end, b.softmax,
                        s.reference + panel.lane, s.delta + panel.lane);
}

inline void clear_panel(const BackwardBlock& block, const Panel& panel,
                        const rules::KeyRange& keys) {
  for (float* const first : {block.s.weights, block.s.d_scores}) {
    const ScoreTile tile = panel_tile(block, panel, first, keys);
    for (size_t key = 0; key < tile.keys; ++key) {
      std::fill_n(tile.scores + key * tile.stride, tile.lanes, 0.0F);
    }
  }
}

inline void add_to_bias(const BackwardBlock& block, size_t first_row, size_t last_row,
                        const rules::KeyRange& keys) {
  const QueryBlock<F32Products>& b = block.b;
  const rules::SharedScores& d_bias = block.p.d_bias;
  for (size_t row = first_row; row < last_row; ++row) {
    float* const to = d_bias.at(b.batch, b.head_of(row), b.s.place[row].query, keys.first);
    const float* from = block.s.d_scores + row;
    for (int64_t key = 0; key < keys.last - keys.first; ++key, from += block.s.row_lanes) {
      to[key * d_bias.stride[3]] += *from;
    }
  }
}

// Multiplies gradients of capped scores by the cap's derivative, to get gradients of raw scores.
inline void differentiate_cap(const BackwardBlock& block, const Panel& panel,
                              const rules::KeyRange& keys) {
  const DF d;
  const ScoreTile tile = panel_tile(block, panel, block.s.d_scores, keys);
  const float* const d_cap = block.s.d_cap + panel.lane;
  for (size_t key = 0; key < tile.keys; ++key) {
    for (size_t lane = 0; lane < tile.lanes; lane += hn::Lanes(d)) {
      const size_t at = key * tile.stride + lane;
      const auto gradient = hn::LoadU(d, tile.scores + at);
      // The derivative at a hidden score may be NaN, so a gradient of 0 stays 0.
      const auto product = hn::Mul(gradient, hn::LoadU(d, d_cap + at));
      hn::StoreU(hn::IfThenZeroElse(hn::Eq(gradient, hn::Zero(d)), product), d, tile.scores + at);
    }
  }
}

// Adds the products of rows first_row .. last_row - 1 with the keys to d_keys, d_values and
// d_queries; skips gradients that the caller did not request.
inline void add_products_of_tile(BackwardBlock& block, size_t first_row, size_t last_row,
                                 const BackwardKeys& keys, float* d_keys, float* d_values) {
  const QueryBlock<F32Products>& b = block.b;
  const BackwardScratch& s = block.s;
  const auto count = static_cast<size_t>(keys.range.last - keys.range.first);
  const size_t rows = last_row - first_row;
  // Find the rows that see each key: both ends of this range rise with the key.
  for (size_t key = 0, first = 0, last = 0; key < count; ++key) {
    const int64_t at = keys.range.first + static_cast<int64_t>(key);
    while (first < rows && b.s.last_key[first_row + first] <= at) ++first;
    while (last < rows && b.s.first_key[first_row + last] <= at) ++last;
    s.first_row[key] = static_cast<int32_t>(first);
    s.last_row[key] = static_cast<int32_t>(last);
  }
  Product<> p{.a = s.weights + first_row,
              .a_stride = static_cast<ptrdiff_t>(block.s.row_lanes),
              .b = s.d_out + first_row * block.s.value_lanes,
              .b_stride = static_cast<ptrdiff_t>(block.s.value_lanes),
              .b_strip = static_cast<ptrdiff_t>(strip_lanes()),
              .c = d_values,
              .c_stride = static_cast<ptrdiff_t>(block.s.value_lanes),
              .depth = rows,
              .accumulate = true};
  if (block.p.d_v.data != nullptr) add_to_keys(s, p, count, block.s.value_lanes / b.vector);

  p.a = s.d_scores + first_row;
  p.b = s.queries + first_row * block.s.key_lanes;
  p.b_stride = p.c_stride = static_cast<ptrdiff_t>(block.s.key_lanes);
  p.c = d_keys;
  if (block.p.d_k.data != nullptr) add_to_keys(s, p, count, block.s.key_lanes / b.vector);

  if (block.p.d_q.data == nullptr) return;
  p.b = keys.k;
  p.b_stride = keys.k_stride;
  p.c = s.d_queries + first_row * block.s.key_lanes;
  p.depth = count;
  add_to_queries(p, rows, block.s.key_lanes / b.vector, b.s.last_key + first_row, keys.range.first);
}

// Adds the products of visible pairs only, one by one. Needed if Q, K or d_out holds NaN or
// infinities: a matrix product would multiply them by the weight 0 of a hidden pair, which gives
// NaN.
inline void add_visible_pairs(BackwardBlock& block, size_t first_row, size_t last_row,
                              const BackwardKeys& keys, float* d_keys, float* d_values) {
  const QueryBlock<F32Products>& b = block.b;
  const BackwardScratch& s = block.s;
  for (size_t row = first_row; row < last_row; ++row) {
    for (int64_t key = keys.range.first; key < keys.range.last; ++key) {
      if (!sees_key(b, row, key)) continue;
      const auto j = static_cast<size_t>(key - keys.range.first);
      const float weight = s.weights[j * block.s.row_lanes + row];
      const float d_score = s.d_scores[j * block.s.row_lanes + row];
      const bool dropped = block.p.d_v.data == nullptr || (b.p.dropout.given() && weight == 0.0F);
      for (size_t c = 0; !dropped && c < block.s.value_lanes; ++c) {
        d_values[j * block.s.value_lanes + c] += weight * s.d_out[row * block.s.value_lanes + c];
      }
      const float* const k = keys.k + static_cast<ptrdiff_t>(j) * keys.k_stride;
      for (size_t c = 0; block.p.d_k.data != nullptr && c < block.s.key_lanes; ++c) {
        d_keys[j * block.s.key_lanes + c] += d_score * s.queries[row * block.s.key_lanes + c];
      }
      for (size_t c = 0; block.p.d_q.data != nullptr && c < block.s.key_lanes; ++c) {
        s.d_queries[row * block.s.key_lanes + c] += d_score * k[c];
      }
    }
  }
}

// Adds the contributions of the block's rows and the keys of `range`. The chunk begins at
// chunk_begin.
inline void backward_tile(BackwardBlock& block, const rules::KeyRange& range, int64_t chunk_begin) {
  QueryBlock<F32Products>& b = block.b;
  // Visible ranges rise with the row, so the panels that see any of the keys are adjacent.
  size_t first_row = b.rows, last_row = 0;
  for (const Panel& panel : b.panels()) {
    if (intersection(range, panel.keys).empty()) continue;
    first_row = std::min(first_row, panel.lane);
    last_row = panel.lane + panel.rows;
  }
  if (first_row >= last_row) return;
  const BackwardKeys keys = load_backward_keys(block, range);
  for (const Panel& panel : b.panels()) {
    if (panel.lane < first_row || panel.lane >= last_row) continue;
    if (intersection(range, panel.keys).empty() || mask_hides_tile(b, panel, range)) {
      clear_panel(block, panel, range);
      continue;
    }
    weigh_panel(block, panel, keys);
  }
  if (block.p.d_bias.data != nullptr) add_to_bias(block, first_row, last_row, range);
  for (const Panel& panel : b.panels()) {
    if (panel.lane < first_row || panel.lane >= last_row) continue;
    if (b.p.softcap > 0.0F) differentiate_cap(block, panel, range);
    if (b.p.dropout.given()) {
      drop_weights(b.d, panel_tile(block, panel, block.s.weights, range), b.s.place + panel.lane,
                   b.p.first, b.batch, b.first_head(), b.p.dropout);
    }
  }
  const auto offset = static_cast<size_t>(range.first - chunk_begin);
  float* const d_keys = block.s.d_keys + offset * block.s.key_lanes;
  float* const d_values = block.s.d_values + offset * block.s.value_lanes;
  if (keys.finite && block.rows_are_finite) {
    add_products_of_tile(block, first_row, last_row, keys, d_keys, d_values);
  } else {
    add_visible_pairs(block, first_row, last_row, keys, d_keys, d_values);
  }
}

enum class Store : uint8_t { kSet, kAdd };

// Stores `count` rows, each times a factor, or adds them to what is there.
template <Store kStore>
void store_rows(const float* from, size_t lanes, size_t count, float factor, float* to,
                int64_t stride, size_t width) {
  const DF d;
  const auto by = hn::Set(d, factor);
  for (size_t row = 0; row < count; ++row, from += lanes, to += stride) {
    for (size_t c = 0; c < width; c += hn::Lanes(d)) {
      const size_t rest = width - c;
      const bool whole = rest >= hn::Lanes(d);
      auto value = hn::LoadU(d, from + c);
      if constexpr (kStore == Store::kAdd) {
        value = mul_add(value, by, whole ? hn::LoadU(d, to + c) : hn::LoadN(d, to + c, rest));
      } else {
        value = hn::Mul(value, by);
      }
      if (whole) {
        hn::StoreU(value, d, to + c);
      } else {
        hn::StoreN(value, d, to + c, rest);
      }
    }
  }
}

// Stores d_q of the block's rows, or adds the chunk's part of it. The semaphore counts the
// chunks seen by the rows that have stored theirs: chunks store one after the other.
void store_queries(const BackwardBlock& block, const BackwardTiling& tiling, int64_t chunk,
                   std::atomic<int32_t>* semaphore) {
  const BackwardParams& params = block.p;
  const QueryBlock<F32Products>& b = block.b;
  const bool sees_nothing = b.seen.empty();
  const int64_t first = sees_nothing ? 0 : b.seen.first / tiling.chunk_keys;
  const int64_t last = sees_nothing ? 0 : (b.seen.last - 1) / tiling.chunk_keys;
  if (chunk < first || chunk > last) return;
  const auto before = static_cast<int32_t>(chunk - first);
  if (semaphore != nullptr) wait_for_semaphore(*semaphore, before);
  const auto store = before == 0 ? store_rows<Store::kSet> : store_rows<Store::kAdd>;
  for (size_t row = 0; row < b.rows; ++row) {
    store(block.s.d_queries + row * block.s.key_lanes, block.s.key_lanes, 1, params.scale,
          params.d_q.row(b.batch, b.head_of(row), b.s.place[row].query), 0,
          static_cast<size_t>(b.p.head_dim));
  }
  if (semaphore != nullptr) signal_semaphore(*semaphore, before + 1);
}

// Stores d_k and d_v of the chunk's keys, or adds the job's part of them. `sees_keys`: whether one
// of the job's rows sees one of the keys; else its part is zero, and was not computed.
void store_keys(const BackwardParams& params, const BackwardTiling& tiling, const BackwardJob& job,
                const BackwardScratch& s, bool sees_keys) {
  const AttentionParams& p = params.forward;
  const int64_t begin = job.chunk * tiling.chunk_keys;
  const auto keys = static_cast<size_t>(std::min(p.keys, begin + tiling.chunk_keys) - begin);
  const bool divides = tiling.row_jobs > 1;
  std::atomic<int32_t>* const semaphore =
      divides ? params.key_semaphores + (job.batch * p.kv_heads + job.kv_head) * tiling.chunks +
                    job.chunk
              : nullptr;
  int32_t before = divides ? wait_for_semaphore(*semaphore, static_cast<int32_t>(job.rows)) : 0;
  const bool adds = (before & BackwardParams::kPartStored) != 0;
  const bool is_last = job.rows == tiling.row_jobs - 1;
  if (sees_keys || (is_last && !adds)) {
    const auto store = adds ? store_rows<Store::kAdd> : store_rows<Store::kSet>;
    const struct {
      const rules::Rows<float>& to;
      float* part;
      size_t lanes;
      float factor;
      int64_t width;
    } of[] = {{params.d_k, s.d_keys, s.key_lanes, params.scale, p.head_dim},
              {params.d_v, s.d_values, s.value_lanes, 1.0F, p.value_dim}};
    for (const auto& [to, part, lanes, factor, width] : of) {
      if (to.data == nullptr) continue;
      if (!sees_keys) std::fill_n(part, keys * lanes, 0.0F);
      store(part, lanes, keys, factor, to.row(job.batch, job.kv_head, begin), to.stride[2],
            static_cast<size_t>(width));
    }
    before |= BackwardParams::kPartStored;
  }
  if (divides) signal_semaphore(*semaphore, before + 1);
}

void chunk(const BackwardParams& params, const BackwardTiling& tiling, const BackwardJob& job,
           void* scratch) {
  const AttentionParams& p = params.forward;
  const BackwardScratch s = lay_out_backward(params, tiling, scratch);
  const int64_t begin = job.chunk * tiling.chunk_keys;
  const int64_t end = std::min(p.keys, begin + tiling.chunk_keys);
  const int64_t head = job.batch * p.kv_heads + job.kv_head;
  std::atomic<int32_t>* const semaphores =
      tiling.chunks > 1 ? params.query_semaphores + head * tiling.blocks.row_parts : nullptr;
  const int64_t end_part = tiling.blocks.row_parts - job.rows * tiling.job_blocks;
  const int64_t first_part = std::max<int64_t>(0, end_part - tiling.job_blocks);
  bool sees_keys = false;
  for (int64_t part = end_part - 1; part >= first_part; --part) {
    BackwardBlock block(params, tiling, job, p.first_row() + part * tiling.blocks.rows, s);
    load_rows(block.b);
    start_head(block.b);
    if (params.d_q.data != nullptr) {
      std::fill_n(s.d_queries, block.b.rows * s.key_lanes, 0.0F);
    }
    const rules::KeyRange seen = intersection(block.b.seen, {begin, end});
    if (!seen.empty()) {
      if (!sees_keys) {
        const auto keys = static_cast<size_t>(end - begin);
        if (params.d_k.data != nullptr) std::fill_n(s.d_keys, keys * s.key_lanes, 0.0F);
        if (params.d_v.data != nullptr) std::fill_n(s.d_values, keys * s.value_lanes, 0.0F);
        sees_keys = true;
      }
      load_backward_rows(block);
      for (int64_t key = seen.first; key < seen.last; key += tiling.blocks.key_block) {
        backward_tile(block, {key, std::min(key + tiling.blocks.key_block, seen.last)}, begin);
      }
    }
    if (params.d_q.data != nullptr) {
      store_queries(block, tiling, job.chunk, semaphores == nullptr ? nullptr : semaphores + part);
    }
  }
  if (params.d_k.data != nullptr || params.d_v.data != nullptr) {
    store_keys(params, tiling, job, s, sees_keys);
  }
}

void deltas(const DeltaParams& p, int64_t batch, int64_t head, void* scratch) {
  const DF d;
  const auto width = static_cast<size_t>(p.width);
  const size_t lanes = round_up(width, hn::Lanes(d));
  auto* const row_memory = static_cast<float*>(scratch);
  float* const to = p.delta + (batch * p.heads + head) * p.queries;
  for (int64_t query = 0; query < p.queries; ++query) {
    const FloatRows out = read_rows(d, p.out, batch, head, query, 1, width, lanes, row_memory);
    const FloatRows d_out =
        read_rows(d, p.d_out, batch, head, query, 1, width, lanes, row_memory + lanes);
    auto sum = hn::Zero(d);
    for (size_t c = 0; c < lanes; c += hn::Lanes(d)) {
      sum = hn::MulAdd(hn::LoadU(d, out.data + c), hn::LoadU(d, d_out.data + c), sum);
    }
    to[query] = hn::ReduceSum(d, sum);
  }
}

void rows(const BackwardParams& params, int64_t batch, int64_t head, void* scratch) {
  const AttentionParams& p = params.forward;
  deltas({.out = params.out,
          .d_out = params.d_out,
          .heads = p.heads,
          .queries = p.queries,
          .width = p.value_dim,
          .delta = params.delta},
         batch, head, scratch);
  for (int64_t query = 0; query < p.queries; ++query) {
    params.reference[params.row_index(batch, head, query)] =
        *params.lse.row(batch, head, query) / p.scale.softmax;
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

#if !defined(__EMSCRIPTEN__)
ObserveSemaphore observe_semaphore = nullptr;
#endif

HWY_EXPORT(chunk);
HWY_EXPORT(deltas);
HWY_EXPORT(rows);

void delta_rows(const DeltaParams& params, int64_t batch, int64_t head, void* scratch) {
  HWY_DASSERT(0 <= head && head < params.heads && is_scratch(scratch));
  HWY_DYNAMIC_DISPATCH(deltas)(params, batch, head, scratch);
}

void backward_rows(const BackwardParams& params, int64_t batch, int64_t head, void* scratch) {
  HWY_DYNAMIC_DISPATCH(rows)(params, batch, head, scratch);
}

void backward_chunk(const BackwardParams& params, const BackwardTiling& tiling,
                    const BackwardJob& job, void* scratch) {
  require_chunk(params, tiling, job, scratch);
  HWY_DYNAMIC_DISPATCH(chunk)(params, tiling, job, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
