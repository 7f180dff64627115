// Runs matrix products on several threads. Arguments are checked already.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/gemm/gemm.h"
#include "engine/error/error.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/integers.h"

namespace multihead::engine {

// The jobs of a product, one per block of c. Successive jobs have the same columns, whose panel of
// b stays in the cache.
struct GemmJobs {
  cpu::GemmLayout layout;
  int64_t row_jobs, column_jobs;

  GemmJobs(const cpu::GemmParams& p, const cpu::GemmLayout& of_kernel)
      : layout(of_kernel),
        row_jobs(rules::ceil_div(p.rows, std::max<int64_t>(1, layout.job_rows))),
        column_jobs(rules::ceil_div(p.columns, layout.job_columns)) {}

  int64_t count() const { return row_jobs * column_jobs; }
  int64_t first_row(int64_t job) const { return job % row_jobs * layout.job_rows; }
  int64_t first_column(int64_t job) const { return job / row_jobs * layout.job_columns; }
};

// Computes a product with rows and columns. `layout` was made for `threads` threads. Errors:
// kMemory, kAborted.
inline Status run_gemm(const cpu::GemmParams& p, const cpu::GemmLayout& layout, int threads,
                       Context& context) {
  const GemmJobs jobs(p, layout);
  Scratch& scratch = scratch_of(context);
  MULTIHEAD_TRY(scratch.reserve(threads, jobs.layout.scratch_bytes));
  return parallel_for_or_abort(
      context, "linear", threads, jobs.count(), [&](int64_t job, int thread) {
        cpu::gemm_block(p, jobs.layout, jobs.first_row(job), jobs.first_column(job),
                        scratch.thread_memory(thread));
      });
}

}  // namespace multihead::engine
