#include "webgpu/plan_linear.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "webgpu/operations.h"

namespace multihead::webgpu {

Status plan_linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                   const Tensor& y, const Device& device, Plan& plan) {
  MULTIHEAD_TRY(engine::validate_linear(x, weight, bias, y));
  plan = {};
  const int64_t rows = x.shape[0];
  const int64_t columns = x.shape[1];
  const int64_t outputs = weight.shape[0];
  if (rows == 0 || outputs == 0) return {};
  // Kernels read four numbers at once.
  const bool in_fours = columns % 4 == 0 && x.strides[0] % 4 == 0;
  if (columns == 0 || !in_fours || weight.strides[0] != columns || y.strides[0] != outputs) {
    return {StatusCode::kOption, "x",
            "rows of a multiple of 4 numbers, and a weight without gaps, on a GPU",
            std::to_string(columns) + " numbers"};
  }
  std::vector<uint64_t> words(device.operands, 4);
  const auto operand = [&](const void* data, int64_t numbers) {
    const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) - 1);
    words[number] = static_cast<uint64_t>(numbers + 3) / 4 * 4;
    return number;
  };
  const auto word = [](int64_t number) { return static_cast<uint32_t>(number); };
  const Rows from{operand(x.data, (rows - 1) * x.strides[0] + columns), 0, word(x.strides[0])};
  const uint32_t matrix = operand(weight.data, outputs * columns);
  const Rows to{operand(y.data, rows * outputs), 0, word(outputs)};
  const uint32_t vectors = bias.data == nullptr ? matrix : operand(bias.data, outputs);
  // The matrix is cut into pieces.
  const uint64_t most = 4 * std::max(words[from.buffer], words[to.buffer]);
  if (most > device.binding_bytes) {
    return {StatusCode::kOption, "x",
            "at most " + std::to_string(device.binding_bytes) + " bytes on this GPU",
            std::to_string(most) + " bytes: multiply a part of the rows"};
  }
  Builder builder(device, words, vectors);
  builder.linear(from, word(rows), {WeightType::kF32, word(outputs), word(columns)}, matrix,
                 {.bias = bias.data == nullptr ? kAbsent : 0}, to);
  return builder.finish(plan);
}

}  // namespace multihead::webgpu
