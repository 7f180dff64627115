#include "multihead/weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "cpu/elementwise/elementwise.h"
#include "cpu/gemm/gemm.h"
#include "cpu/gemm/weight_blocks.h"
#include "engine/attention/overlap.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/linear.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "rules/integers.h"

namespace multihead {
namespace engine {
namespace {

DType dtype_of(WeightType type) {
  return type == WeightType::kF16    ? DType::kF16
         : type == WeightType::kBF16 ? DType::kBF16
                                     : DType::kF32;
}

// A matrix of f32, f16 or bf16 as a tensor; one of blocks as a tensor of its shape, whose data must
// not be read.
ConstAnyTensor tensor_of(const WeightMatrix& weight) {
  const Dims shape{weight.rows, weight.columns};
  return {weight.data, dtype_of(weight.type), shape, contiguous_strides(shape)};
}

// The memory of a matrix.
ConstBoolTensor bytes_of(const WeightMatrix& weight) {
  return {static_cast<const uint8_t*>(weight.data),
          {weight.rows, weight_row_bytes(weight.type, weight.columns)}};
}

// Magnitudes from here on are infinite as numbers or scales of the type; 0: there is no such limit
// in whole numbers.
int64_t limit_of(WeightType type) {
  constexpr int64_t kLeastInfinite = 65520;  // the least number that f16 rounds to infinity
  switch (type) {
    case WeightType::kF16:
      return kLeastInfinite;
    case WeightType::kInt8:
      return 127 * kLeastInfinite;
    case WeightType::kInt4:
      return 8 * kLeastInfinite;
    default:
      break;
  }
  return 0;
}

Status validate_numbers(float largest, WeightType type) {
  const int64_t limit = limit_of(type);
  const auto magnitude = static_cast<double>(largest);
  if (limit != 0) {
    if (magnitude < static_cast<double>(limit)) return {};
    return real_error(Name::kFrom, Message::kNumbersBelow, magnitude, limit);
  }
  // bf16 rounds numbers above this one to infinity.
  constexpr float kMostBfloat16 = 0x1.FEFFFEp127F;
  const float most = type == WeightType::kBF16 ? kMostBfloat16 : std::numeric_limits<float>::max();
  if (largest <= most) return {};
  return real_error(Name::kFrom, Message::kFiniteNumbers, magnitude);
}

float largest_of(const cpu::NumberRows& numbers, int64_t rows, double operations,
                 const Context& context) {
  // Magnitudes have the order of their bits.
  std::atomic<uint32_t> most = 0;
  over_ranges(&context, "quantize", operations, rows, [&](int64_t first, int64_t end) {
    const auto bits = std::bit_cast<uint32_t>(cpu::largest_number(numbers, first, end));
    uint32_t before = most.load();
    while (before < bits && !most.compare_exchange_weak(before, bits)) {
    }
  });
  return std::bit_cast<float>(most.load());
}

Status quantize_matrix(const ConstAnyTensor& from, WeightType type, void* to, Context& context) {
  MULTIHEAD_TRY(validate_rank(Name::kFrom, Axes::kLinearWeight, from, 2));
  MULTIHEAD_TRY(validate_exact(Name::kFrom, Axes::kLinearWeight, from, from.shape));
  MULTIHEAD_TRY(validate_enumerator(Name::kType, type, WeightType::kInt4));
  const int64_t rows = from.shape[0], columns = from.shape[1];
  if (rows == 0 || columns == 0) return {};
  const WeightMatrix target{to, type, rows, columns};
  if (to == nullptr) {
    return shape_error(Name::kTo, Message::kNullData, from.shape);
  }
  const TensorView<uint8_t> written{static_cast<uint8_t*>(to), bytes_of(target).shape};
  MULTIHEAD_TRY(validate_apart({{Name::kFrom, from}}, {{Name::kTo, written}}));
  const cpu::NumberRows numbers{from.data, from.dtype, from.strides[0], columns};
  const double operations = 4.0 * static_cast<double>(rows) * static_cast<double>(columns);
  MULTIHEAD_TRY(validate_numbers(largest_of(numbers, rows, operations, context), type));
  over_ranges(&context, "quantize", operations, rows, [&](int64_t first, int64_t end) {
    if (cpu::has_blocks(type)) {
      cpu::quantize_rows(numbers, type, static_cast<std::byte*>(to), first, end);
      return;
    }
    const int64_t size = multihead::bytes_of(from.dtype);
    cpu::convert_rows(
        {.from = static_cast<const std::byte*>(from.data) + first * from.strides[0] * size,
         .from_type = from.dtype,
         .from_stride = from.strides[0],
         .to = static_cast<std::byte*>(to) + first * weight_row_bytes(type, columns),
         .to_type = dtype_of(type),
         .to_stride = columns,
         .scales = nullptr,
         .scale_stride = 0,
         .rows = end - first,
         .width = columns});
  });
  return {};
}

Status dequantize_listed(const WeightMatrix& weight, std::span<const int32_t> rows,
                         const Tensor& to) {
  MULTIHEAD_TRY(validate_enumerator(Name::kType, weight.type, WeightType::kQ6_K));
  MULTIHEAD_TRY(validate_rank(Name::kWeight, Axes::kLinearWeight, tensor_of(weight), 2));
  MULTIHEAD_TRY(validate_exact(Name::kTo, Axes::kRows, to,
                               {static_cast<int64_t>(rows.size()), weight.columns}));
  for (const int32_t row : rows) {
    if (row >= 0 && row < weight.rows) continue;
    return option_error(Name::kRows, Message::kRange, 0, weight.rows - 1, row);
  }
  MULTIHEAD_TRY(validate_apart({{Name::kWeight, bytes_of(weight)}}, {{Name::kTo, to}}));
  if (weight.columns == 0) return {};
  float* target = to.data;
  for (const int32_t row : rows) {
    if (cpu::has_blocks(weight.type)) {
      cpu::dequantize_rows(weight, row, row + 1, target, 0);
    } else {
      cpu::convert_rows({.from = weight.part(row, 1).data,
                         .from_type = dtype_of(weight.type),
                         .from_stride = weight.columns,
                         .to = target,
                         .to_type = DType::kF32,
                         .to_stride = weight.columns,
                         .scales = nullptr,
                         .scale_stride = 0,
                         .rows = 1,
                         .width = weight.columns});
    }
    target += to.strides[0];
  }
  return {};
}

// Multiplies by blocks of outputs, whose weights a job first writes as floats to its scratch
// memory. These cost as much as one row of the product.
Status multiply_widened(const cpu::GemmParams& product, const WeightMatrix& weight, int threads,
                        Context& context) {
  const GemmJobs jobs(product, cpu::projection_layout(product, threads, false));
  const cpu::GemmLayout& layout = jobs.layout;
  const uint64_t floats = static_cast<uint64_t>(std::min(layout.job_columns, weight.rows)) *
                          static_cast<uint64_t>(weight.columns);
  // The block's scratch memory begins where its alignment does not change.
  constexpr uint64_t kAlignment = 128;
  const uint64_t widened_bytes =
      (floats * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  Scratch& scratch = scratch_of(context);
  MULTIHEAD_TRY(scratch.reserve(threads, widened_bytes + layout.scratch_bytes));
  return parallel_for_or_abort(
      context, "linear", threads, jobs.count(), [&](int64_t job, int thread) {
        auto* const memory = static_cast<std::byte*>(scratch.thread_memory(thread));
        auto* const widened = reinterpret_cast<float*>(memory);
        const int64_t first = jobs.first_column(job);
        cpu::GemmParams part = product;
        part.columns = std::min(layout.job_columns, product.columns - first);
        cpu::dequantize_rows(weight, first, first + part.columns, widened, weight.columns);
        part.b.data = widened;
        if (part.bias != nullptr) part.bias += first;
        part.c += first;
        cpu::gemm_block(part, layout, jobs.first_row(job), 0, memory + widened_bytes);
      });
}

Status multiply_few_rows(const cpu::FewRows& call, int threads, Context& context) {
  const int64_t outputs = call.weight.rows;
  const int64_t row_bytes = weight_row_bytes(call.weight.type, call.weight.columns);
  const int64_t job_outputs =
      threads == 1 ? outputs
                   : cpu::outputs_of_job(row_bytes, outputs, threads, cpu::kFewRowsOutputs);
  const uint64_t bytes = cpu::few_rows_memory(call);
  Buffer& memory = scratch_of(context).partials();
  if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
  cpu::prepare_few_rows(call, memory.data());
  return parallel_for_or_abort(
      context, "linear", threads, rules::ceil_div(outputs, job_outputs), [&](int64_t job, int) {
        const int64_t first = job * job_outputs;
        cpu::few_rows_outputs(call, memory.data(), first, std::min(outputs, first + job_outputs));
      });
}

struct WeightCall {
  const ConstTensor& x;
  const WeightMatrix& weight;
  const ConstTensor& bias;
  const Tensor& y;
};

// Makes all checks. `outputs`: rows of the whole matrix, of which call.weight may be a share.
Status check(const WeightCall& call, int64_t outputs) {
  const auto& [x, weight, bias, y] = call;
  MULTIHEAD_TRY(validate_enumerator(Name::kType, weight.type, WeightType::kQ6_K));
  ConstAnyTensor whole = tensor_of(weight);
  whole.shape[0] = outputs;
  MULTIHEAD_TRY(validate_linear(x, whole, bias, y));
  return validate_apart({{Name::kX, x}, {Name::kWeight, bytes_of(weight)}, {Name::kBias, bias}},
                        {{Name::kY, y}});
}

// Computes a checked call.
Status compute(const WeightCall& call, Context& context) {
  const auto& [x, weight, bias, y] = call;
  const int64_t rows = x.shape[0];
  if (rows == 0 || weight.rows == 0) return {};
  const bool few = rows <= kFewWeightRows && cpu::multiplies_few_rows(weight.type);
  if (weight.columns == 0 || !(few || cpu::has_blocks(weight.type))) {
    return compute_linear({x, tensor_of(weight), bias, y, Precision::kF32}, context);
  }
  const cpu::GemmParams product{.a = x.data,
                                .b = {.stride = {0, 0, weight.columns}},
                                .bias = bias.data,
                                .c = y.data,
                                .a_stride = x.strides[0],
                                .c_stride = y.strides[0],
                                .rows = rows,
                                .columns = weight.rows,
                                .depth = weight.columns,
                                .b_transposed = true};
  const int threads = threads_for(product.operations(), context.threads());
  if (!few) return multiply_widened(product, weight, threads, context);
  return multiply_few_rows({.x = x.data,
                            .x_stride = x.strides[0],
                            .rows = rows,
                            .weight = weight,
                            .bias = bias.data,
                            .y = y.data,
                            .y_stride = y.strides[0]},
                           threads, context);
}

}  // namespace
}  // namespace engine

Status quantize(const ConstAnyTensor& from, WeightType type, void* to, Context& context) {
  return engine::memory_guard([&] { return engine::quantize_matrix(from, type, to, context); });
}

Status dequantize(const WeightMatrix& weight, std::span<const int32_t> rows, const Tensor& to) {
  return engine::memory_guard([&] { return engine::dequantize_listed(weight, rows, to); });
}

Status linear(const ConstTensor& x, const WeightMatrix& weight, const ConstTensor& bias,
              const Tensor& y, Context& context) {
  return engine::memory_guard([&]() -> Status {
    const engine::WeightCall call{x, weight, bias, y};
    if (engine::Team* const team = engine::team_of(context); team != nullptr) {
      return engine::linear_in_team(
          *team, x, weight.rows, bias, y, [&](int64_t rows) { return engine::check(call, rows); },
          [&](int64_t first, int64_t count, const ConstTensor& own_bias, const Tensor& own_y) {
            return engine::compute({x, weight.part(first, count), own_bias, own_y}, context);
          });
    }
    MULTIHEAD_TRY(engine::check(call, weight.rows));
    return engine::compute(call, context);
  });
}

}  // namespace multihead
