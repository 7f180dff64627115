#include "engine/attention/tile_scheduler.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/target.h"
#include "rules/integers.h"

namespace multihead::engine {
namespace {

using cpu::TargetTraits;
using rules::AttentionParams;
using rules::BlockTiling;
using rules::ceil_div;
using rules::round_up;
using rules::SplitTiling;
using rules::StoredRows;

// Number of rows whose attention takes as long as setting up a job: 2^17 multiply-adds, for example
// 32 tokens of some heads.
int64_t rows_worth_a_job(const AttentionParams& p) {
  constexpr int64_t kMultiplyAdds = int64_t{1} << 17;
  // Two divisions, because the product of the divisors may overflow.
  return kMultiplyAdds / std::max<int64_t>(1, p.keys) /
         std::max<int64_t>(1, p.head_dim + p.value_dim);
}

// Short sequences with few heads get smaller blocks, so that many threads have work.
int64_t block_rows(const AttentionParams& p, const TargetTraits& target) {
  const int64_t share = p.batch * p.kv_heads * p.rows() / target.least_jobs;
  const int64_t most = target.panel_lanes * target.block_panels;
  const int64_t wanted = std::min(std::max(share + 1, rows_worth_a_job(p)), most);
  return std::min({most, round_up(wanted, target.panel_lanes), round_up(p.rows(), target.lanes)});
}

// Divides the keys into blocks of equal size, so that the last block is not much shorter.
int64_t keys_of_step(const AttentionParams& p, const TargetTraits& target) {
  constexpr int64_t kUnit = 8;
  const int64_t blocks = ceil_div(p.keys, target.key_block);
  return blocks == 0 ? 0 : round_up(ceil_div(p.keys, blocks), kUnit);
}

constexpr int64_t kLineFloats = 16;  // floats per cache line

// A copy of V is slower than no copy if fewer rows than this share it.
constexpr int64_t kRowsWorthACopy = 32;

// True if V may not fit in the first-level cache, and enough rows share a copy of it.
bool is_large(const AttentionParams& p, int64_t rows) {
  constexpr int64_t kSmall = 2048;  // floats
  return rows >= kRowsWorthACopy && p.keys * p.value_dim > kSmall;
}

// Copies V in three cases. (1) Its rows are far apart, as with interleaved heads (B, N, H, d), or
// are wider than a strip: then they map to few sets of the first-level cache, and reading a copied
// block is faster unless V is small or few rows share the copy. (2) Rows end within a vector: the
// copy adds zeros after their end. (3) V is not stored as f32 in token order. K is never copied,
// because a tile needs only a few rows of it at a time: copying took 2-6 % of bert with interleaved
// heads.
bool copies_values(const AttentionParams& p, int64_t rows, const TargetTraits& target) {
  const bool spread = p.v.stride[2] != p.value_dim || p.value_dim > target.strip_lanes;
  return !p.v.dense_floats() || p.value_dim % target.lanes != 0 || (is_large(p, rows) && spread);
}

// Bytes of keys and values in a decode block. Compared with 32 kB, 64 kB reads 64 MB 4 % faster
// natively and 3 to 6 % faster in WebAssembly, which touches each block before using it. In
// WebAssembly, 128 kB gains 2 % more if the second-level cache is large, and is slower otherwise.
constexpr int64_t kBlockBytes = 65536;
// Block bytes with first_row_leads: longer blocks interrupt the sequential reads less often.
constexpr int64_t kLedBlockBytes = 262144;
// Calls that read more bytes than this read from memory, not from a shared cache.
constexpr double kFromMemory = 1 << 24;
// Prefetch distance. Decode speed of 64 MB on a Zen 4, relative to 16 kB: 4 kB 74 %, 8 kB 98 %, 32
// kB 100 %.
constexpr int64_t kPrefetchBytes = 16384;
// If the heads of a token are adjacent, a job processes this many bytes of heads together.
constexpr int64_t kTokenBytes = 8192;
constexpr int64_t kLeastBlock = 16, kMostBlock = 512;
// Keys are split until there are kSplitJobs jobs, but no split has fewer than kLeastSplit keys.
// With ragged lengths, shorter entries have fewer splits.
constexpr int64_t kSplitJobs = 64, kLeastSplit = 512;

// Number of splits of `keys` keys, if `entries` batch entries have as many.
int64_t splits_of(const AttentionParams& p, int64_t entries, int64_t keys) {
  const int64_t heads = std::max<int64_t>(1, entries * p.kv_heads);
  return std::clamp(ceil_div(kSplitJobs, heads), int64_t{1},
                    std::max<int64_t>(1, keys / kLeastSplit));
}

}  // namespace

bool may_copy_split_lines(const AttentionParams& params, int64_t rows, const TargetTraits& target) {
  return target.lanes == kLineFloats && cpu::split_loads_are_slow() && is_large(params, rows) &&
         !copies_values(params, rows, target);
}

bool splits_cache_lines(const StoredRows& v) {
  const auto address = reinterpret_cast<uintptr_t>(v.data);
  return address % (kLineFloats * sizeof(float)) != 0 ||
         std::any_of(v.stride.begin(), v.stride.end(),
                     [](int64_t stride) { return stride % kLineFloats != 0; });
}

BlockTiling tile_blocks(const AttentionParams& params, const TargetTraits& target) {
  BlockTiling g;
  g.panel_rows = target.panel_lanes;
  g.rows = block_rows(params, target);
  g.row_parts = ceil_div(params.rows(), g.rows);
  // Small heads share a job.
  g.heads = std::clamp<int64_t>(rows_worth_a_job(params) / std::max<int64_t>(1, params.rows()), 1,
                                std::max<int64_t>(1, params.kv_heads));
  g.head_parts = ceil_div(params.kv_heads, g.heads);
  g.jobs = params.batch * g.head_parts * g.row_parts;
  g.key_block = keys_of_step(params, target);
  g.key_blocks = g.key_block == 0 ? 0 : ceil_div(params.keys, g.key_block);
  g.copies_values = copies_values(params, g.rows, target);
  g.stores_vectors = params.out.data != nullptr && params.out.type == DType::kF32 &&
                     params.value_dim % target.lanes == 0;
  // True if rows are evenly spaced, and no step changes them after the product with V.
  g.stores_normalized =
      g.stores_vectors && params.group() == 1 && !params.mask.given() && params.sinks == nullptr;
  return g;
}

BlockTiling divide_for_threads(const AttentionParams& params, BlockTiling g, int threads) {
  constexpr int64_t kJobsOfThread = 8;
  const int64_t wanted = kJobsOfThread * threads;
  if (threads == 1 || g.jobs == 0 || g.jobs >= wanted) return g;
  const int64_t parts = ceil_div(wanted, params.batch * g.head_parts);
  const int64_t panels = std::max<int64_t>(1, params.rows() / parts / g.panel_rows);
  g.rows = std::min(g.rows, panels * g.panel_rows);
  g.row_parts = ceil_div(params.rows(), g.rows);
  g.jobs = params.batch * g.head_parts * g.row_parts;
  return g;
}

SplitTiling tile_splits(const AttentionParams& params, const TargetTraits& target) {
  SplitTiling g;
  g.rows = params.rows();
  g.tile_rows = g.rows <= target.decode_few_rows ? g.rows : g.rows <= 2 ? 1 : cpu::kDecodeTileRows;
  g.tiles = ceil_div(g.rows, g.tile_rows);

  g.row_bytes = std::max({int64_t{1}, params.head_dim * bytes_of(params.k.type),
                          params.value_dim * bytes_of(params.v.type)});
  const double bytes = 2.0 * static_cast<double>(params.batch) *
                       static_cast<double>(params.kv_heads) * static_cast<double>(params.keys) *
                       static_cast<double>(g.row_bytes);
  const bool side_by_side = params.k.heads_side_by_side();
  g.first_row_leads = !target.prefetches && g.tiles == 1 && g.tile_rows == cpu::kDecodeTileRows &&
                      !side_by_side && params.k.type == DType::kF32 && bytes >= kFromMemory;
  if (side_by_side) {
    // A job with a single head would touch every page of memory.
    g.key_block = target.prefetches ? 32 : 16;
    g.heads = std::clamp(kTokenBytes / g.row_bytes, int64_t{1}, params.kv_heads);
    g.prefetch_rows = g.heads * g.key_block;
  } else {
    const int64_t block_bytes = g.first_row_leads ? kLedBlockBytes : kBlockBytes;
    g.key_block = std::clamp(block_bytes / g.row_bytes, kLeastBlock, kMostBlock) / 16 * 16;
    g.heads = 1;
    constexpr int64_t kStep = cpu::kDecodeKeyStep;
    g.prefetch_rows = std::clamp(kPrefetchBytes / g.row_bytes / kStep * kStep, kStep, g.key_block);
  }

  g.head_parts = ceil_div(params.kv_heads, g.heads);
  const bool is_ragged = params.visibility.lengths != nullptr;
  g.most_splits = splits_of(params, is_ragged ? 1 : params.batch, params.keys);
  return g;
}

void split_keys(const AttentionParams& params, SplitTiling& g) {
  int64_t longest = 0;
  double sum = 0;
  for (int64_t batch = 0; batch < params.batch; ++batch) {
    const rules::KeyRange seen = params.seen_keys(batch);
    if (seen.empty()) continue;
    longest = std::max(longest, seen.last - seen.first);
    sum += static_cast<double>(seen.last - seen.first);
  }
  // Number of entries of the longest length that together have as many keys as all entries.
  const int64_t entries =
      longest == 0 ? 0 : std::llround(std::ceil(sum / static_cast<double>(longest)));
  g.split_keys = round_up(ceil_div(longest, splits_of(params, entries, longest)), g.key_block);
  g.splits = longest == 0 ? 1 : ceil_div(longest, g.split_keys);
  g.jobs = params.batch * g.head_parts * g.splits;
}

rules::BackwardTiling tile_backward(const rules::BackwardParams& params, const TargetTraits& target,
                                    int64_t jobs_of_whole) {
  // Each chunk loads all rows of Q and d_out again: compared with chunks of 512 keys, 256 keys are
  // 2 % slower and 128 keys 6 %.
  constexpr int64_t kPanels = 4, kKeyBlock = 64, kLeastChunk = 512, kJobs = 64;
  // If there are too few chunks for many cores, their rows are divided among jobs. Each further job
  // of a chunk adds its part of d_k and d_v, which takes about 1 % of a single thread's time with
  // 512 rows per job and up to 5 % with 256.
  constexpr int64_t kLeastJobRows = 512, kMostJobs = 256;
  const AttentionParams& p = params.forward;
  rules::BackwardTiling g;
  g.blocks.rows =
      std::clamp(round_up(p.rows(), target.lanes), target.lanes, target.panel_lanes * kPanels);
  g.blocks.row_parts = ceil_div(p.rows(), g.blocks.rows);
  g.blocks.key_block = std::min(kKeyBlock, std::max<int64_t>(p.keys, 1));
  const rules::SharedScores& bias = params.d_bias;
  if (bias.data != nullptr && bias.stride[0] == 0) g.batches = std::max<int64_t>(1, p.batch);
  if (bias.data != nullptr && bias.stride[1] == 0) g.heads = std::max<int64_t>(1, p.kv_heads);
  g.batch_parts = ceil_div(p.batch, g.batches);
  g.head_parts = ceil_div(p.kv_heads, g.heads);
  const int64_t heads = std::max({int64_t{1}, g.batch_parts * g.head_parts, jobs_of_whole});
  const bool has_threads = target.least_jobs > 1;
  const bool shares_keys = bias.data != nullptr && bias.stride[3] == 0;
  g.chunks = shares_keys ? 1
                         : std::clamp(ceil_div(has_threads ? kJobs : 1, heads), int64_t{1},
                                      std::max<int64_t>(1, p.keys / kLeastChunk));
  g.chunk_keys = round_up(ceil_div(std::max<int64_t>(p.keys, 1), g.chunks), g.blocks.key_block);
  g.chunks = std::max<int64_t>(1, ceil_div(p.keys, g.chunk_keys));
  // Sums over queries, and sums over the heads of a group, stay in one job.
  const bool shares_rows =
      bias.data != nullptr && (bias.stride[2] == 0 || (bias.stride[1] == 0 && p.group() > 1));
  const int64_t wanted = has_threads && !shares_rows ? ceil_div(kMostJobs, heads * g.chunks) : 1;
  const int64_t row_jobs =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, p.rows() / kLeastJobRows));
  g.job_blocks = std::max<int64_t>(1, ceil_div(g.blocks.row_parts, row_jobs));
  g.row_jobs = std::max<int64_t>(1, ceil_div(g.blocks.row_parts, g.job_blocks));
  g.jobs = g.batch_parts * g.head_parts * g.chunks * g.row_jobs;
  return g;
}

}  // namespace multihead::engine
