// Interface of the CPU kernels for the engine. Arguments are already checked and planned: a kernel
// validates nothing and has no defaults.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rules/arena.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/tiling.h"

namespace multihead::cpu {

using rules::AttentionParams;
using rules::BackwardParams;
using rules::BackwardTiling;
using rules::BlockTiling;
using rules::row_offset;
using rules::SplitTiling;
using rules::StoredRows;

// Alignment of all scratch memory of kernels.
inline constexpr size_t kScratchAlignment = rules::Arena::kAlignment;

// Most keys per step of the online softmax with products of tiles. Scores of 128 keys for 64
// queries take 32 kB, which fit in the first-level cache of processors with AMX (48 kB); scores of
// 256 keys do not.
inline constexpr int64_t kTileKeyBlock = 128;

// Scratch bytes that one job of each kernel needs, see attention/scratch.cc.
uint64_t block_scratch_bytes(const AttentionParams& params, const BlockTiling& tiling);
uint64_t short_heads_scratch_bytes(const AttentionParams& params, const BlockTiling& tiling);
uint64_t decode_scratch_bytes(const AttentionParams& params, const SplitTiling& tiling);
uint64_t backward_scratch_bytes(const BackwardParams& params, const BackwardTiling& tiling);
// Bytes of the result of one head and split of decoding.
uint64_t decode_partial_bytes(const AttentionParams& params, const SplitTiling& tiling);

// Rows first_row .. first_row + tiling.rows - 1 of one batch entry and of its key/value heads
// kv_head .. end_head - 1.
struct BlockJob {
  int64_t batch, kv_head, end_head, first_row;
};

// Computes one job. `next` is the job that the same thread probably computes afterwards; used only
// for prefetching, may be null.
void forward_block(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
                   const BlockJob* next, void* scratch);
// forward_block() with products of bf16 pairs. Call it only if the plan chose it.
void forward_bf16_block(const AttentionParams& params, const BlockTiling& tiling,
                        const BlockJob& job, const BlockJob* next, void* scratch);
// forward_block() with products of bf16 tiles (AMX). Needs tiling.tiles, and tile_unit() not
// null.
void forward_tile_block(const AttentionParams& params, const BlockTiling& tiling,
                        const BlockJob& job, const BlockJob* next, void* scratch);
// forward_block() for up to TargetTraits::short_keys keys and few options; the same bits.
void forward_short_heads(const AttentionParams& params, const BlockTiling& tiling,
                         const BlockJob& job, void* scratch);

// Decoding: few query rows against many keys, see attention/decode/decode.cc. The visible keys are
// split. Splits may be computed in any order and on any thread; then they are merged.
inline constexpr int64_t kMostDecodeRows = 12;  // per key/value head; with more, blocks are faster
inline constexpr int64_t kDecodeTileRows = 4;   // query rows that share each read of K or V
inline constexpr int64_t kDecodeKeyStep = 8;    // prefetch distances are multiples of it, in keys

struct DecodeJob {
  int64_t batch, kv_head, split;  // kv_head: the first of tiling.heads heads
};

// Writes the result of the job's first head to `partials`. Results of successive heads are
// tiling.splits * decode_partial_bytes() bytes apart.
void decode_split(const AttentionParams& params, const SplitTiling& tiling, const DecodeJob& job,
                  void* partials, void* scratch);

// Merges the tiling.splits results of one batch entry and key/value head, and writes the outputs.
// The first result is overwritten.
void decode_merge(const AttentionParams& params, const SplitTiling& tiling, int64_t batch,
                  int64_t kv_head, void* partials);

// Job of attention_backward(), see attention/backward/backward.cc.
struct BackwardJob {
  int64_t batch, kv_head, chunk;
  int64_t rows;  // index below tiling.row_jobs; the last rows are job 0
};

// Sets params.delta and params.reference of one batch entry and query head. Call it before any job
// runs.
void backward_rows(const BackwardParams& params, int64_t batch, int64_t head, void* scratch);

// Writes d_k and d_v of the job's keys, or adds the part of its rows; writes d_q of its rows, or
// adds the part of its keys; adds to d_bias. Waits for earlier jobs with the same rows or the same
// keys, which must have begun.
void backward_chunk(const BackwardParams& params, const BackwardTiling& tiling,
                    const BackwardJob& job, void* scratch);

// Sums over columns of out * d_out, both (B, H, N, width).
struct DeltaParams {
  StoredRows out, d_out;
  int64_t heads, queries, width;
  float* delta;  // (B, H, N), contiguous
};
// Sets delta of one batch entry and head. `scratch` has room for two rows of floats, each padded to
// kScratchAlignment.
void delta_rows(const DeltaParams& params, int64_t batch, int64_t head, void* scratch);

// What the gradients of sinks are computed from: `sinks` (H), `lse` and `delta` (B, H, N).
struct SinkParams {
  const float* sinks;
  rules::Rows<const float> lse, delta;
  int64_t batch, queries;
};
// Returns -(sum over a head's rows of exp(sink - lse) * delta). Products are computed as floats and
// added in double: the error is at most 2^-21 * sum of |delta|, see sinks_test.cc.
float sink_gradient(const SinkParams& params, int64_t head);

// Attention results over disjoint keys, merged into `a`: rows of out (B, H, N, width), lse (B, H,
// N).
struct MergeParams {
  rules::Rows<float> out_a, lse_a;
  rules::Rows<const float> out_b, lse_b;
  int64_t batch, heads, rows, width;
};
// Merges rows first to end - 1 of the batch * heads * rows.
void merge_rows(const MergeParams& params, int64_t first, int64_t end);

}  // namespace multihead::cpu
