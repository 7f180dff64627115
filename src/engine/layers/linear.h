// The steps of linear(), and matrix products on several threads, whose arguments are checked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/gemm/gemm.h"
#include "engine/error/error.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "multihead/context.h"
#include "multihead/linear.h"
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

// The arguments of linear().
struct LinearCall {
  const ConstTensor& x;
  const ConstAnyTensor& weight;
  const ConstTensor& bias;
  const Tensor& y;
  Precision precision;
};

// Makes all checks of linear(). `weight_shape`: the shape of the whole weight. call.weight may hold
// fewer rows: the share of one member of a team.
Status check_linear(const LinearCall& call, const Dims& weight_shape);

// Computes a checked call. Errors: kMemory.
Status compute_linear(const LinearCall& call, Context& context);

// Computes linear() in a team: this member's outputs, which the members then exchange. A member may
// have only its share of the weight, the rows for its outputs. check(rows) makes all checks, with a
// weight of that many rows. compute(first, count, bias, y) multiplies by `count` rows of the weight
// that the member has, from row `first` on.
template <class Check, class Compute>
Status linear_in_team(Team& team, const ConstTensor& x, int64_t weight_rows,
                      const ConstTensor& bias, const Tensor& y, const Check& check,
                      const Compute& compute) {
  const int64_t outputs = y.shape.rank() == 2 ? y.shape[1] : weight_rows;
  const int64_t first = team.first_output(outputs), count = team.end_output(outputs) - first;
  const bool shares = weight_rows != outputs && weight_rows == count;
  MULTIHEAD_TRY(check(shares ? outputs : weight_rows));
  const int64_t rows = y.shape[0];
  const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(outputs) *
                            static_cast<double>(x.shape[1]);
  if (rows == 0 || outputs == 0 || !(shares || team.is_worth(operations))) {
    return compute(int64_t{0}, weight_rows, bias, y);
  }
  Tensor own_y = y;
  own_y.data += first;
  own_y.shape[1] = count;
  ConstTensor own_bias = bias;
  if (bias.given()) {
    own_bias.data += first;
    own_bias.shape[0] = count;
  }
  MULTIHEAD_TRY(compute(shares ? 0 : first, count, own_bias, own_y));
  if (!team.exchanges_outputs()) return {};
  return team.exchange_outputs(y.data, rows, y.strides[0], outputs);
}

}  // namespace multihead::engine
