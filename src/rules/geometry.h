// How a plan cuts a call into jobs. The engine (engine/cut.cc) decides it from the shape and the
// SIMD target, never from the number of threads, which therefore does not change a bit of the
// results. The kernels read it.
#pragma once

#include <cstdint>

namespace multihead::rules {

// Jobs of whole query rows.
struct BlockGeometry {
  int64_t rows = 0;        // query rows of a job
  int64_t row_parts = 0;   // jobs that all rows of a head take
  int64_t heads = 0;       // key/value heads of a job, one after the other
  int64_t head_parts = 0;  // jobs that all heads of a batch entry take
  int64_t jobs = 0;        // in all
  int64_t key_block = 0;   // keys of one step of the online softmax
  int64_t key_blocks = 0;  // steps that all keys take
  // V is copied into strips of columns before it is multiplied.
  bool copies_values = false;
  // Output rows consist of whole vectors of floats, which are stored directly.
  bool stores_vectors = false;
  // Output rows are normalised in registers, with the last key block.
  bool stores_normalised = false;
  // Scratch memory also has room for the operands of products in bf16 tiles.
  bool tiles = false;
};

// attention_backward(): a job takes a chunk of the keys of a head against some blocks of its query
// rows, or all of them. Jobs are numbered chunk by chunk, and within a chunk from the last rows to
// the first; they begin in that order.
struct BackwardGeometry {
  BlockGeometry blocks;    // of query rows, and of keys within a chunk
  int64_t chunk_keys = 0;  // keys of a job
  int64_t chunks = 0;      // that all keys take
  int64_t job_blocks = 0;  // blocks of rows of a job
  int64_t row_jobs = 1;    // that all rows take, for each chunk
  // Batch entries and key/value heads of a job, one after the other: those that share a bias whose
  // gradient is requested, else one.
  int64_t batches = 1, heads = 1;
  int64_t batch_parts = 0, head_parts = 0;
  int64_t jobs = 0;
};

// Decoding: jobs of splits of the keys, whose results are merged (flash-decoding, Dao et al.,
// 2023).
struct SplitGeometry {
  int64_t heads = 0;        // key/value heads of a job, which are processed together
  int64_t head_parts = 0;   // jobs that all heads of a batch entry take, for each split
  int64_t jobs = 0;         // in all
  int64_t splits = 0;       // of the keys of each head
  int64_t most_splits = 0;  // the largest number for any lengths
  int64_t split_keys = 0;   // keys of a split
  int64_t key_block = 0;    // keys that are scored, weighted and used before the next ones
  int64_t rows = 0;         // query rows of a key/value head
  int64_t tile_rows = 0;    // query rows of a tile
  int64_t tiles = 0;
  int64_t row_bytes = 0;      // of K or V, the wider one
  int64_t prefetch_rows = 0;  // distance, in rows of K or V, from the row in use to the prefetched
  bool first_row_leads = false;  // see cpu/attention/decode_kernels-inl.h
};

}  // namespace multihead::rules
