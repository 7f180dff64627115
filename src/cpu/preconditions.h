// Preconditions of the attention kernels. Only the sanitizer builds check them.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "hwy/base.h"

namespace multihead::cpu {

inline bool is_scratch(const void* memory) {
  return memory != nullptr && reinterpret_cast<uintptr_t>(memory) % kScratchAlignment == 0;
}

inline void require_head([[maybe_unused]] const AttentionParams& p, [[maybe_unused]] int64_t batch,
                         [[maybe_unused]] int64_t kv_head) {
  HWY_DASSERT(p.kv_heads > 0 && p.heads % p.kv_heads == 0);
  HWY_DASSERT(0 <= batch && batch < p.batch && 0 <= kv_head && kv_head < p.kv_heads);
  HWY_DASSERT(0 <= p.first_query && p.first_query <= p.end_query && p.end_query <= p.queries);
}

inline void require_block([[maybe_unused]] const AttentionParams& p,
                          [[maybe_unused]] const BlockTiling& tiling,
                          [[maybe_unused]] const BlockJob& job,
                          [[maybe_unused]] const void* scratch) {
  require_head(p, job.batch, job.kv_head);
  HWY_DASSERT(job.kv_head < job.end_head && job.end_head <= p.kv_heads);
  HWY_DASSERT(p.first_row() <= job.first_row && job.first_row < p.end_row());
  HWY_DASSERT(tiling.rows > 0 && (tiling.key_block > 0 || p.keys == 0));
  HWY_DASSERT(is_scratch(scratch));
}

inline void require_split([[maybe_unused]] const AttentionParams& p,
                          [[maybe_unused]] const SplitTiling& tiling,
                          [[maybe_unused]] const DecodeJob& job,
                          [[maybe_unused]] const void* partials,
                          [[maybe_unused]] const void* scratch) {
  require_head(p, job.batch, job.kv_head);
  HWY_DASSERT(0 <= job.split && job.split < tiling.splits && tiling.heads > 0);
  HWY_DASSERT(tiling.rows == p.rows() && tiling.rows <= kMostDecodeRows);
  HWY_DASSERT(tiling.tile_rows <= kDecodeTileRows && tiling.tiles * tiling.tile_rows >= p.rows());
  HWY_DASSERT(is_scratch(partials) && is_scratch(scratch));
}

inline void require_chunk([[maybe_unused]] const BackwardParams& params,
                          [[maybe_unused]] const BackwardTiling& tiling,
                          [[maybe_unused]] const BackwardJob& job,
                          [[maybe_unused]] const void* scratch) {
  require_head(params.forward, job.batch, job.kv_head);
  HWY_DASSERT(0 <= job.chunk && job.chunk < tiling.chunks && tiling.chunk_keys > 0);
  HWY_DASSERT(0 <= job.rows && job.rows < tiling.row_jobs);
  HWY_DASSERT(tiling.row_jobs == 1 || params.key_semaphores != nullptr);
  // Without queries, or query heads, these have no memory.
  [[maybe_unused]] const bool no_rows = params.forward.queries == 0 || params.forward.heads == 0;
  HWY_DASSERT(no_rows || tiling.chunks == 1 || params.query_semaphores != nullptr ||
              params.d_q.data == nullptr);
  HWY_DASSERT(no_rows || (params.delta != nullptr && params.reference != nullptr));
  HWY_DASSERT(is_scratch(scratch));
}

// Requires a range of rows.
inline void require_rows([[maybe_unused]] int64_t first, [[maybe_unused]] int64_t end,
                         [[maybe_unused]] int64_t rows) {
  HWY_DASSERT(0 <= first && first <= end && end <= rows);
}

}  // namespace multihead::cpu
