#include "engine/layers/linear.h"

#include <cstdint>

#include "cpu/kernels.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/enumerators.h"
#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "engine/runtime/kernel_choice.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"

namespace multihead {
namespace engine {

Status check_linear(const LinearCall& call, const Dims& weight_shape) {
  const auto& [x, weight, bias, y, precision] = call;
  ConstAnyTensor whole = weight;
  whole.shape = weight_shape;
  if (Status status = validate_linear(x, whole, bias, y); !status.ok()) return status;
  if (Status status = validate_apart(x, weight, bias, y); !status.ok()) return status;
  return validate_enumerator(Name::kPrecision, precision, Precision::kBf16);
}

Status compute_linear(const LinearCall& call, Context& context) {
  const auto& [x, weight, bias, y, precision] = call;
  // Operands without elements may be null: with strides of 0, every address stays null.
  const bool reads = x.shape[1] > 0;
  const cpu::LinearParams params{.x = x.data,
                                 .weight = {.data = weight.data,
                                            .type = weight.dtype,
                                            .stride = {0, 0, reads ? weight.strides[0] : 0}},
                                 .bias = bias.data,
                                 .y = y.data,
                                 .x_stride = reads ? x.strides[0] : 0,
                                 .y_stride = y.strides[0],
                                 .rows = x.shape[0],
                                 .in = x.shape[1],
                                 .out = weight.shape[0]};
  if (params.rows == 0 || params.out == 0) return {};
  const LinearChoice choice = choose_linear(precision, params.rows, params.weight.type);
  last_linear_of(context) = choice;
  const double operations = 2.0 * static_cast<double>(params.rows) *
                            static_cast<double>(params.in) * static_cast<double>(params.out);
  const int threads = threads_for(operations, context.threads());
  const bool tiles = choice.tiles();
  const cpu::LinearLayout layout =
      tiles ? cpu::tile_linear_layout(params, threads) : cpu::linear_layout(params, threads);
  Scratch& scratch = scratch_of(context);
  if (Status status = scratch.reserve(threads, layout.scratch_bytes); !status.ok()) return status;
  const int64_t row_jobs = (params.rows + layout.job_rows - 1) / layout.job_rows;
  const int64_t column_jobs = (params.out + layout.job_columns - 1) / layout.job_columns;
  parallel_for(threads, row_jobs * column_jobs, [&](int64_t job, int thread) {
    const int64_t row = job % row_jobs * layout.job_rows;
    const int64_t column = job / row_jobs * layout.job_columns;
    void* const memory = scratch.thread_memory(thread);
    if (tiles) {
      cpu::tile_linear_block(params, layout, row, column, memory);
    } else {
      cpu::linear_block(params, layout, row, column, memory);
    }
  });
  return {};
}

}  // namespace engine

Status linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
              const Tensor& y, Context& context, Precision precision) {
  return engine::memory_guard([&]() -> Status {
    const engine::LinearCall call{x, weight, bias, y, precision};
    if (engine::Team* const team = engine::team_of(context); team != nullptr) {
      return team->run_linear(call, context);
    }
    if (Status status = engine::check_linear(call, weight.shape); !status.ok()) return status;
    return engine::compute_linear(call, context);
  });
}

}  // namespace multihead
