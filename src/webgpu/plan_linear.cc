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
  std::vector<uint64_t> words(device.operands, 4);
  const auto operand = [&](const void* data, int64_t numbers) {
    const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) - 1);
    words[number] = static_cast<uint64_t>(numbers + 3) / 4 * 4;
    return number;
  };
  const auto word = [](int64_t number) { return static_cast<uint32_t>(number); };
  // The caller gives tensors without gaps.
  const Rows from{operand(x.data, rows * columns), 0, word(columns)};
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
  // Kernels read four numbers at once: other rows get zeros behind them.
  const auto in_fours = [&](const Rows& given, int64_t count) {
    if (columns % 4 == 0 && columns > 0) return given;
    const Rows padded = builder.rows(word(count), std::max<int64_t>(columns, 1));
    builder.pointwise(given, word(count), padded.stride,
                      {.with = Builder::Pointwise::With::kPadding, .each = word(columns)}, padded);
    return padded;
  };
  const Rows inputs = in_fours(from, rows), weights = in_fours({matrix, 0, from.stride}, outputs);
  builder.linear(inputs, word(rows), {WeightType::kF32, word(outputs), inputs.stride},
                 weights.buffer, {.bias = bias.data == nullptr ? kAbsent : 0}, to);
  return builder.finish(plan);
}

}  // namespace multihead::webgpu
