// The tiling of a call: its division into jobs. engine/attention/tile_scheduler.cc decides it from
// the call, the processor and the SIMD target; the kernels read it. The number of threads changes
// only the number of query blocks (divide_for_threads()), if that changes no bit of the results. It
// never changes the division of keys or the sums in one job.
#pragma once

#include <cstdint>

namespace multihead::rules {

// Tiling by blocks of query rows.
struct BlockTiling {
  int64_t rows = 0;        // query rows per job
  int64_t panel_rows = 0;  // query rows of a panel, which a division for threads keeps whole
  int64_t row_parts = 0;   // blocks of rows per head
  int64_t heads = 0;       // key/value heads per job, one after the other
  int64_t head_parts = 0;  // groups of `heads` heads per batch entry
  int64_t jobs = 0;        // batch * head_parts * row_parts
  int64_t key_block = 0;   // keys per step of the online softmax
  int64_t key_blocks = 0;  // number of steps over all keys
  // True if V is copied into strips of columns before it is multiplied.
  bool copies_values = false;
  // True if output rows are whole vectors of f32, which are stored directly.
  bool stores_vectors = false;
  // True if output rows are normalized in registers, with the last key block.
  bool stores_normalized = false;
  // True if scratch memory has room for the operands of bf16 products in tiles.
  bool tiles = false;
};

// Tiling of attention_backward(): a job computes one chunk of a head's keys against some or all
// blocks of the head's query rows.
//
// Jobs begin in the order of their numbers, see number_of(). The outer order is by rows, from the
// last blocks of rows to the first, the inner order by chunks of keys. This order prevents
// deadlock. A job waits for two groups of jobs: the jobs with the same rows and earlier chunks,
// until they have added their parts of d_q; and the jobs with the same chunk and earlier numbers of
// rows, until they have added their parts of d_k and d_v. All these jobs have smaller numbers, so
// they have begun, and the job with the smallest number waits for none.
struct BackwardTiling {
  BlockTiling blocks;      // of query rows, and of keys within a chunk
  int64_t chunk_keys = 0;  // keys per chunk; the last may have fewer
  int64_t chunks = 0;      // chunks of keys per head
  int64_t job_blocks = 0;  // blocks of rows per job
  int64_t row_jobs = 1;    // row jobs per chunk of keys
  // Batch entries and key/value heads per job, one after the other: all that share a bias whose
  // gradient is requested, otherwise 1.
  int64_t batches = 1, heads = 1;
  int64_t batch_parts = 0, head_parts = 0;
  int64_t jobs = 0;

  // Returns the number of a job. `rows`: 0 for the last blocks of rows. `part`: index in 0 ..
  // batch_parts * head_parts - 1.
  constexpr int64_t number_of(int64_t rows, int64_t chunk, int64_t part) const {
    return (rows * chunks + chunk) * batch_parts * head_parts + part;
  }
};

// Tiling of decoding: jobs compute KV splits, and the results are merged (flash-decoding, Dao et
// al., 2023).
struct SplitTiling {
  int64_t heads = 0;        // key/value heads per job, processed together
  int64_t head_parts = 0;   // jobs per batch entry and split, for all heads
  int64_t jobs = 0;         // total number of jobs
  int64_t splits = 0;       // KV splits per head
  int64_t most_splits = 0;  // largest number of splits for any lengths
  int64_t split_keys = 0;   // keys per split
  int64_t key_block = 0;    // keys per step of the online softmax
  int64_t rows = 0;         // query rows per key/value head
  int64_t tile_rows = 0;    // query rows per tile
  int64_t tiles = 0;
  int64_t row_bytes = 0;         // bytes of a row of K or V, whichever is larger
  int64_t prefetch_rows = 0;     // prefetch distance in rows of K or V
  bool first_row_leads = false;  // see cpu/attention/decode/decode_kernels-inl.h
};

}  // namespace multihead::rules
