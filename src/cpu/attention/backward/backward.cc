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

#include "cpu/attention/backward/semaphores.h"
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/backward/backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/backward/backward_block-inl.h"
#include "cpu/attention/backward/backward_tile-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace
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
  HWY_DYNAMIC_DISPATCH(deltas)(params, batch, head, scratch);
}

void backward_rows(const BackwardParams& params, int64_t batch, int64_t head, void* scratch) {
  HWY_DYNAMIC_DISPATCH(rows)(params, batch, head, scratch);
}

void backward_chunk(const BackwardParams& params, const BackwardTiling& tiling,
                    const BackwardJob& job, void* scratch) {
  HWY_DYNAMIC_DISPATCH(chunk)(params, tiling, job, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
