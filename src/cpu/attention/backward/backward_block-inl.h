// A block of query rows in the backward kernel: its scratch memory, and the loading of Q, K, V and
// d_out.
#if defined(MULTIHEAD_CPU_ATTENTION_BACKWARD_BACKWARD_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BACKWARD_BACKWARD_BLOCK_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BACKWARD_BACKWARD_BLOCK_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BACKWARD_BACKWARD_BLOCK_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/query_block-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Layout of a job's scratch memory. Rows are padded with zeros to whole vectors: key_lanes is the
// padded d_k, value_lanes the padded d_v.
struct BackwardScratch {
  float* d_keys;            // [key of the chunk][key_lanes]
  float* d_values;          // [key of the chunk][value_lanes]
  float* d_queries;         // [row][key_lanes]
  float* queries;           // [row][key_lanes]
  float* d_out;             // [row][value_lanes]
  float* d_out_transposed;  // [strip][d_v][score_lanes()]
  float* weights;           // [key of the block][row] scores, then weights
  float* d_scores;          // [key of the block][row] gradients of the weights, then of the scores
  float* d_cap;             // [key of the block][row] derivative of the soft cap, if given
  float* keys;         // [key of the block][key_lanes], unless K is dense floats in whole vectors
  float* values;       // [key of the block][d_v], unless V is dense floats
  int32_t* first_row;  // [key of the block] first row that sees the key
  int32_t* last_row;   // [key of the block] end of the rows that see the key
  float* delta;        // [row]
  float* reference;    // [row]
  void* block;         // scratch of the QueryBlock
  uint64_t bytes;
  size_t key_lanes, value_lanes;
  size_t row_lanes;  // floats from one key of a tile to the next
};

// The WebAssembly module keeps one copy for this file and scratch.cc, if it is not inlined.
[[maybe_unused]] HWY_NOINLINE BackwardScratch lay_out_backward(const BackwardParams& params,
                                                               const BackwardTiling& g,
                                                               void* memory) {
  const AttentionParams& p = params.forward;
  const auto chunk = static_cast<uint64_t>(g.chunk_keys);
  const auto block = static_cast<uint64_t>(g.blocks.key_block);
  BackwardScratch s{};
  s.key_lanes = round_up(static_cast<size_t>(p.head_dim), hn::Lanes(DF()));
  s.value_lanes = round_up(static_cast<size_t>(p.value_dim), hn::Lanes(DF()));
  s.row_lanes = static_cast<size_t>(g.blocks.rows);
  rules::Arena take(memory);
  take(s.d_keys, chunk * s.key_lanes);
  take(s.d_values, chunk * s.value_lanes);
  take(s.d_queries, s.row_lanes * s.key_lanes);
  take(s.queries, s.row_lanes * s.key_lanes);
  take(s.d_out, s.row_lanes * s.value_lanes);
  take(s.d_out_transposed,
       round_up(s.row_lanes, score_lanes()) * static_cast<uint64_t>(p.value_dim));
  take(s.weights, block * s.row_lanes);
  take(s.d_scores, block * s.row_lanes);
  take(s.d_cap, p.softcap > 0.0F ? block * s.row_lanes : 0);
  take(s.keys, block * s.key_lanes);
  take(s.values, p.v.dense_floats() ? 0 : block * static_cast<uint64_t>(p.value_dim));
  take(s.first_row, block);
  take(s.last_row, block);
  take(s.delta, s.row_lanes);
  take(s.reference, s.row_lanes);
  const uint64_t block_bytes = lay_out_block(p, g.blocks, nullptr).bytes;
  char* block_memory = nullptr;
  take(block_memory, block_bytes);
  s.block = block_memory;
  s.bytes = take.bytes();
  return s;
}

// A block of keys and their values.
struct BackwardKeys {
  rules::KeyRange range;
  const float* k;  // rows padded to whole vectors
  ptrdiff_t k_stride;
  const float* v;
  ptrdiff_t v_stride;
  bool finite;  // true if every number of K is finite
};

template <class D>
bool all_finite(D d, const float* row, size_t width) {
  auto sum = hn::Zero(d);
  // 0 * x is 0 if x is finite, and NaN otherwise.
  for (size_t c = 0; c < width; c += hn::Lanes(d)) {
    sum = hn::MulAdd(hn::LoadU(d, row + c), hn::Zero(d), sum);
  }
  return hn::AllTrue(d, hn::Eq(sum, hn::Zero(d)));
}

struct BackwardBlock {
  BackwardBlock(const BackwardParams& params, const BackwardTiling& tiling, const BackwardJob& job,
                int64_t first_row, const BackwardScratch& scratch)
      : p(params),
        s(scratch),
        b(params.forward, tiling.blocks,
          {.batch = job.batch,
           .kv_head = job.kv_head,
           .end_head = job.kv_head + 1,
           .first_row = first_row},
          scratch.block) {}

  const BackwardParams& p;
  const BackwardScratch& s;
  QueryBlock<F32Products> b;
  bool rows_are_finite = true;
};

// Loads the rows of Q and of d_out; d_out also transposed.
inline void load_backward_rows(BackwardBlock& block) {
  QueryBlock<F32Products>& b = block.b;
  const BackwardScratch& s = block.s;
  const AttentionParams& p = b.p;
  const auto head_dim = static_cast<size_t>(p.head_dim);
  const auto value_dim = static_cast<size_t>(p.value_dim);
  for (size_t row = 0; row < b.rows; ++row) {
    const int64_t head = b.head_of(row), query = b.s.place[row].query;
    float* const query_row = s.queries + row * block.s.key_lanes;
    float* const d_out_row = s.d_out + row * block.s.value_lanes;
    read_row(b.d, p.q, b.batch, head, query, head_dim, block.s.key_lanes, query_row);
    read_row(b.d, block.p.d_out, b.batch, head, query, value_dim, block.s.value_lanes, d_out_row);
    block.rows_are_finite = block.rows_are_finite &&
                            all_finite(b.d, query_row, block.s.key_lanes) &&
                            all_finite(b.d, d_out_row, block.s.value_lanes);
  }
  for (size_t row = 0; row < b.lanes; ++row) {
    const int64_t index = block.p.row_index(b.batch, b.head_of(row), b.s.place[row].query);
    s.delta[row] = block.p.delta[index];
    s.reference[row] = block.p.reference[index];
  }
  for (Panel& panel : b.panels()) transpose_queries(b, panel);
  std::array<const float*, hn::MaxLanes(DF())> rows;
  for (size_t lane = 0; lane < b.lanes; lane += b.vector) {
    for (size_t i = 0; i < b.vector; ++i) {
      rows[i] = s.d_out + std::min(lane + i, b.rows - 1) * block.s.value_lanes;
    }
    float* const strip = s.d_out_transposed + lane / score_lanes() * score_lanes() * value_dim;
    transpose_rows(b.d, rows.data(), value_dim, 1.0F, strip + lane % score_lanes(), score_lanes());
  }
}

inline BackwardKeys load_backward_keys(const BackwardBlock& block, const rules::KeyRange& range) {
  const QueryBlock<F32Products>& b = block.b;
  const auto count = static_cast<size_t>(range.last - range.first);
  const auto value_dim = static_cast<size_t>(b.p.value_dim);
  const FloatRows k = read_rows(b.d, b.p.k, b.batch, b.kv_head, range.first, count,
                                static_cast<size_t>(b.p.head_dim), block.s.key_lanes, block.s.keys);
  const FloatRows v = read_rows(b.d, b.p.v, b.batch, b.kv_head, range.first, count, value_dim,
                                value_dim, block.s.values);
  bool finite = true;
  for (size_t key = 0; key < count; ++key) {
    const float* const row = k.data + static_cast<ptrdiff_t>(key) * k.stride;
    finite = finite && all_finite(b.d, row, block.s.key_lanes);
  }
  return {range, k.data, k.stride, v.data, v.stride, finite};
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BACKWARD_BACKWARD_BLOCK_INL_H_
