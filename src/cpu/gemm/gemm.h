// Interface of the kernels in gemm.cc and tile_gemm.cc: the matrix products of a linear projection
// y = x W^T + bias and of its backward, d_x = d_y W and d_W = d_y^T x.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rules/attention_params.h"
#include "rules/integers.h"

namespace multihead::cpu {

// c (rows, columns) = a b + bias, or c += a b. Strides in elements from row to row.
struct GemmParams {
  const float* a = nullptr;  // (rows, depth); transposed (depth, rows)
  // (depth, columns), f32; transposed (columns, depth) of any type. No batches, no heads.
  rules::StoredRows b = {};
  const float* bias = nullptr;  // (columns), optional; with b_transposed only
  float* c = nullptr;
  int64_t a_stride = 0, c_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;
  bool a_transposed = false, b_transposed = false;  // one of them at most
  bool adds = false;                                // not with b_transposed

  // Number of multiplications and additions.
  double operations() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(depth);
  }
};

struct GemmLayout;

// A kernel that computes one block of c.
using GemmBlock = void(const GemmParams& params, const GemmLayout& layout, int64_t first_row,
                       int64_t first_column, void* scratch);

// The division of c into blocks, one per job.
struct GemmLayout {
  int64_t job_rows = 0, job_columns = 0;  // size of a block
  int64_t next_column = 0;     // from a job's columns to those of the same thread's next job
  uint64_t scratch_bytes = 0;  // scratch memory of a job
  GemmBlock* block = nullptr;  // for gemm_block()
};

// Chooses the kernel of a product with b_transposed, or of one without. They are two functions so
// that a WebAssembly module without gradients has no kernels of the second kind. `tiles`: a and b
// are rounded to bf16. Then tile_unit() must not be null, and b must be f32 or bf16; without
// b_transposed the depth must be more than 0.
GemmLayout projection_layout(const GemmParams& params, int threads, bool tiles);
GemmLayout product_layout(const GemmParams& params, int threads, bool tiles);

// Computes the block of c at this row and column. The result's bits do not depend on the layout.
void gemm_block(const GemmParams& params, const GemmLayout& layout, int64_t first_row,
                int64_t first_column, void* scratch);

// Adds the sum of column c of x (rows, width) to sums[c].
void add_column_sums(const float* x, int64_t stride, int64_t rows, int64_t width, float* sums);

// For the kernels: blocks of `job_columns` columns. With several threads, the rows are divided too,
// into jobs of at least `least_rows`, because each job packs its own panel of b.
inline GemmLayout divide_gemm(const GemmParams& params, int threads, int64_t job_columns,
                              int64_t least_rows, int64_t jobs_per_thread) {
  const int64_t column_jobs = std::max<int64_t>(1, rules::ceil_div(params.columns, job_columns));
  const int64_t wanted = threads == 1 ? 1 : threads * jobs_per_thread;
  const int64_t row_jobs = std::clamp<int64_t>(rules::ceil_div(wanted, column_jobs), 1,
                                               std::max<int64_t>(1, params.rows / least_rows));
  return {.job_rows = rules::ceil_div(params.rows, row_jobs),
          .job_columns = job_columns,
          .next_column = job_columns * std::max<int64_t>(1, threads / row_jobs)};
}

// Divides a product of few rows among several threads: returns the number of outputs of a job, a
// multiple of `unit`. An output has `row_bytes` of weights. Every thread gets as many jobs as the
// others, all of about the same size, which is 1 MB of weights: on two cores of a Zen 5, such jobs
// take 0.69 to 0.86 of the time of jobs of 64 kB, because a processor reads ahead only after it has
// seen a sequence of addresses. If threads then had less than two jobs each, the jobs are smaller.
// With four jobs at least, decoding with int4 weights takes 1.1 times as long.
inline int64_t outputs_of_job(int64_t row_bytes, int64_t outputs, int threads, int64_t unit) {
  constexpr int64_t kJobBytes = 1 << 20, kFewestJobs = 2, kTries = 4;
  const int64_t units = std::max<int64_t>(1, rules::ceil_div(outputs, unit));
  const int64_t most =
      std::max(kFewestJobs, rules::ceil_div(row_bytes * outputs, threads * kJobBytes));
  // Takes the number of jobs with which the threads' shares differ least.
  int64_t best = 0, least_units = 0;
  for (int64_t each = most; each > std::max<int64_t>(0, most - kTries); --each) {
    const int64_t size = rules::ceil_div(units, each * threads);
    if (best == 0 || size * each * threads < least_units) {
      best = size;
      least_units = size * each * threads;
    }
  }
  return best * unit;
}

// Chooses the kernel for tiles of bf16, in tile_gemm.cc.
GemmLayout tile_gemm_layout(const GemmParams& params, int threads);

}  // namespace multihead::cpu
