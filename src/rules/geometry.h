// How a call is cut into jobs. The kernels read it. The engine decides it in
// engine/attention/cut.cc from the call, the processor and the SIMD target. The number of threads
// changes only how many blocks of query rows there are (cut_for_threads()), where that changes no
// bit of the results, and never how keys are cut or what is summed in one job.
#pragma once

#include <cstdint>

namespace multihead::rules {

// Jobs of whole query rows.
struct BlockGeometry {
  int64_t rows = 0;        // query rows of a job
  int64_t row_parts = 0;   // blocks of rows of each head
  int64_t heads = 0;       // key/value heads of a job, one after the other
  int64_t head_parts = 0;  // groups of that many heads in a batch entry
  int64_t jobs = 0;        // batch * head_parts * row_parts
  int64_t key_block = 0;   // keys of one step of the online softmax
  int64_t key_blocks = 0;  // steps over all keys
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
// rows, or all of them.
//
// Jobs begin in the order of their numbers, see number_of(). Rows are the outer order, from the
// last blocks of rows to the first, and chunks of keys the inner one. This order prevents deadlock:
// a job waits until the jobs with the same rows and earlier chunks have added their parts of d_q,
// and until those with the same chunk and earlier numbers of rows have added their parts of d_k and
// d_v. All of these have smaller numbers, so they have begun, and the one with the smallest number
// waits for none.
struct BackwardGeometry {
  BlockGeometry blocks;    // of query rows, and of keys within a chunk
  int64_t chunk_keys = 0;  // keys of a chunk; the last may have fewer
  int64_t chunks = 0;      // chunks of the keys of a head
  int64_t job_blocks = 0;  // blocks of rows of a job
  int64_t row_jobs = 1;    // jobs for each chunk of keys
  // Batch entries and key/value heads of a job, one after the other: those that share a bias whose
  // gradient is requested, else one.
  int64_t batches = 1, heads = 1;
  int64_t batch_parts = 0, head_parts = 0;
  int64_t jobs = 0;

  // The number of the job of `rows` (0 for the last blocks of rows), a chunk, and `part`, which
  // counts the batch_parts * head_parts.
  constexpr int64_t number_of(int64_t rows, int64_t chunk, int64_t part) const {
    return (rows * chunks + chunk) * batch_parts * head_parts + part;
  }
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
  bool first_row_leads = false;  // see cpu/attention/decode/decode_kernels-inl.h
};

}  // namespace multihead::rules
