#include "multihead/linear.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/enumerators.h"
#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "engine/runtime/linear_choice.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "engine/runtime/threads.h"

namespace multihead {
namespace {

// True if `weight` has only the rows for the outputs of this member of a team.
bool is_share(const engine::Team* team, const ConstAnyTensor& weight, const Tensor& y) {
  if (team == nullptr || weight.shape.rank() != 2 || y.shape.rank() != 2) return false;
  const int64_t outputs = y.shape[1];
  return weight.shape[0] != outputs &&
         weight.shape[0] == team->end_output(outputs) - team->first_output(outputs);
}

}  // namespace

Status linear(const ConstTensor& x, const ConstAnyTensor& weight, const ConstTensor& bias,
              const Tensor& y, Context& context, Precision precision) {
  return engine::memory_guard([&]() -> Status {
    engine::Team* const team = engine::team_of(context);
    const bool shares = is_share(team, weight, y);
    ConstAnyTensor whole = weight;
    if (shares) whole.shape[0] = y.shape[1];
    MULTIHEAD_TRY(engine::validate_linear(x, whole, bias, y));
    MULTIHEAD_TRY(engine::validate_apart(x, weight, bias, y));
    MULTIHEAD_TRY(
        engine::validate_enumerator(engine::Name::kPrecision, precision, Precision::kBf16));
    // Operands without elements may be null: with strides of 0, every address stays null.
    const bool reads = x.shape[1] > 0;
    cpu::LinearParams params{.x = x.data,
                             .weight = {.data = weight.data,
                                        .type = weight.dtype,
                                        .stride = {0, 0, reads ? weight.strides[0] : 0}},
                             .bias = bias.data,
                             .y = y.data,
                             .x_stride = reads ? x.strides[0] : 0,
                             .y_stride = y.strides[0],
                             .rows = x.shape[0],
                             .in = x.shape[1],
                             .out = whole.shape[0]};
    if (params.rows == 0 || params.out == 0) return {};
    const engine::LinearChoice choice =
        engine::choose_linear(precision, params.rows, params.weight.type);
    engine::last_linear_of(context) = choice;
    const double operations = 2.0 * static_cast<double>(params.rows) *
                              static_cast<double>(params.in) * static_cast<double>(params.out);
    const bool divides = shares || (team != nullptr && team->is_worth(operations));
    const int threads = engine::threads_for(operations, context.threads());
    const int64_t outputs = params.out;
    if (divides) {
      const int64_t first = team->first_output(outputs);
      params.out = team->end_output(outputs) - first;
      params.y += first;
      if (params.bias != nullptr) params.bias += first;
      if (!shares) {
        params.weight.data = static_cast<const std::byte*>(params.weight.data) +
                             first * params.weight.stride[2] * bytes_of(params.weight.type);
      }
    }
    if (params.out > 0) {
      const bool tiles = choice.tiles();
      const cpu::LinearLayout layout =
          tiles ? cpu::tile_linear_layout(params, threads) : cpu::linear_layout(params, threads);
      engine::Scratch& scratch = engine::scratch_of(context);
      MULTIHEAD_TRY(scratch.reserve(threads, layout.scratch_bytes));
      const int64_t row_jobs = (params.rows + layout.job_rows - 1) / layout.job_rows;
      const int64_t column_jobs = (params.out + layout.job_columns - 1) / layout.job_columns;
      engine::parallel_for(threads, row_jobs * column_jobs, [&](int64_t job, int thread) {
        const int64_t row = job % row_jobs * layout.job_rows;
        const int64_t column = job / row_jobs * layout.job_columns;
        void* const memory = scratch.of_thread(thread);
        if (tiles) {
          cpu::tile_linear_block(params, layout, row, column, memory);
        } else {
          cpu::linear_block(params, layout, row, column, memory);
        }
      });
    }
    if (!divides || !team->exchanges_outputs()) return {};
    std::vector<uint32_t> bounds;
    for (int member = 0; member <= team->members(); ++member) {
      bounds.push_back(static_cast<uint32_t>(team->first_output(outputs, member)) * sizeof(float));
    }
    return team->exchange(y.data, params.rows,
                          params.y_stride * static_cast<int64_t>(sizeof(float)), bounds);
  });
}

}  // namespace multihead
