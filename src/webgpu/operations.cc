#include "webgpu/operations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "webgpu/params.h"
#include "webgpu/plan_attention.h"

namespace multihead::webgpu {
namespace {

constexpr uint64_t kAlignment = 64;  // words: WebGPU's largest one of a binding's offset
constexpr uint32_t kUnitWords = 4;
// Rows of which units and scales end at multiples of kAlignment words.
constexpr uint32_t kPieceRows = 64;
constexpr uint32_t kInvocations = 64;

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }
uint64_t ceil_div(uint64_t value, uint64_t by) { return (value + by - 1) / by; }
bool has_scales(WeightType type) { return type >= WeightType::kInt8; }

uint32_t blocks_of(uint32_t columns) {
  return static_cast<uint32_t>(ceil_div(columns, static_cast<uint64_t>(kWeightBlock)));
}

// Columns of a unit. Other types have no kernel, see DeviceModel::create().
uint32_t unit_columns(WeightType type) {
  constexpr std::array<uint32_t, 5> kColumns{4, 8, 8, 16, 32};
  return type <= WeightType::kInt4 ? kColumns[static_cast<size_t>(type)] : 0;
}

uint32_t type_constant(const MatrixForm& matrix) { return static_cast<uint32_t>(matrix.type); }

// True if the last unit of a row has columns that the matrix has not.
uint32_t has_tail(const MatrixForm& matrix) {
  const uint32_t columns =
      has_scales(matrix.type) ? uint32_t{kWeightBlock} : unit_columns(matrix.type);
  return matrix.columns % columns == 0 ? 0 : 1;
}

}  // namespace

uint32_t MatrixForm::units() const {
  if (type == WeightType::kInt8) return 2 * blocks_of(columns);
  return static_cast<uint32_t>(ceil_div(columns, unit_columns(type)));
}

uint32_t MatrixForm::scale_words() const {
  return has_scales(type) ? (blocks_of(columns) + 1) / 2 : 0;
}

uint64_t MatrixForm::first_scale() const {
  const uint64_t words = uint64_t{rows} * units() * kUnitWords;
  return has_scales(type) ? round_up(words, kAlignment) : words;
}

void pack_rows(const WeightMatrix& matrix, int64_t first, int64_t count, uint32_t* units,
               uint32_t* scales) {
  const MatrixForm form{matrix.type, static_cast<uint32_t>(matrix.rows),
                        static_cast<uint32_t>(matrix.columns)};
  const auto row_bytes = static_cast<size_t>(weight_row_bytes(matrix.type, matrix.columns));
  const size_t of_scales = has_scales(matrix.type) ? size_t{2} * blocks_of(form.columns) : 0;
  const size_t unit_words = size_t{form.units()} * kUnitWords;
  const auto* from = static_cast<const std::byte*>(matrix.part(first, count).data);
  for (int64_t row = 0; row < count; ++row, from += row_bytes, units += unit_words) {
    std::fill_n(units, unit_words, 0U);
    std::memcpy(units, from + of_scales, row_bytes - of_scales);
    if (of_scales == 0) continue;
    std::fill_n(scales, form.scale_words(), 0U);
    std::memcpy(scales, from, of_scales);
    scales += form.scale_words();
  }
}

Function function_of(Activation activation) {
  constexpr std::array kFunctions{Function::kRelu, Function::kGelu, Function::kGeluTanh,
                                  Function::kSilu};
  return kFunctions[static_cast<size_t>(activation)];
}

bool Builder::fits(const MatrixForm& matrix) const {
  return uint64_t{matrix.rows} * matrix.units() * kUnitWords * sizeof(uint32_t) <=
         device().binding_bytes;
}

template <class Piece>
void Builder::in_pieces(const MatrixForm& matrix, uint32_t buffer, const Piece& piece) const {
  const uint64_t row_words = uint64_t{matrix.units()} * kUnitWords;
  uint64_t most = device().binding_bytes / sizeof(uint32_t) / row_words / kPieceRows * kPieceRows;
  most = std::max<uint64_t>(most, kPieceRows);
  for (uint64_t first = 0; first < matrix.rows; first += most) {
    const uint64_t rows = std::min<uint64_t>(most, matrix.rows - first);
    const Binding units{buffer, static_cast<uint32_t>(first * row_words),
                        static_cast<uint32_t>(rows * row_words)};
    const uint64_t scales = matrix.first_scale() + first * matrix.scale_words();
    piece(static_cast<uint32_t>(first), static_cast<uint32_t>(rows), units,
          matrix.scale_words() == 0 ? units
                                    : Binding{buffer, static_cast<uint32_t>(scales),
                                              static_cast<uint32_t>(rows * matrix.scale_words())});
  }
}

void Builder::linear(const Rows& x, uint32_t rows, const MatrixForm& matrix, uint32_t buffer,
                     const Linear& options, const Rows& y) {
  const bool gated = options.gate_row != kNone;
  const uint32_t tail = has_tail(matrix);
  in_pieces(matrix, buffer, [&](uint32_t first, uint32_t count, Binding units, Binding scales) {
    std::vector<Binding> bindings{whole(x.buffer), units, scales, whole(vectors_), whole(y.buffer)};
    const uint32_t bias = options.bias == kNone ? kNone : options.bias + first;
    const uint32_t outputs = gated ? count / 2 : count;
    const LinearBlock block{.rows = rows,
                            .outputs = outputs,
                            .columns = matrix.columns,
                            .units = matrix.units(),
                            .scale_words = matrix.scale_words(),
                            .x_first = x.first,
                            .x_stride = x.stride,
                            .y_first = y.first + first,
                            .y_stride = y.stride,
                            .bias = bias,
                            .norm = static_cast<uint32_t>(options.norm.kind),
                            .gain = options.norm.gain,
                            .shift = options.norm.shift,
                            .eps = options.norm.eps,
                            .code = static_cast<uint32_t>(options.function),
                            .adds = options.adds ? 1U : 0U,
                            .gated = gated ? 1U : 0U,
                            .gate_row = gated ? options.gate_row : 0,
                            .factor_row = gated ? options.factor_row : 0,
                            .last_row = count - 1,
                            .factor = options.factor,
                            .cap = options.cap};
    if (rows > kFewRows) {
      constexpr uint32_t kTile = 64;
      const uint64_t tiles = ceil_div(count, kTile) * ceil_div(rows, kTile);
      dispatch(Kernel::kLinearMany, {type_constant(matrix), tail}, static_cast<double>(tiles),
               std::move(bindings), block);
      return;
    }
    // 16 invocations have two outputs, or a gate and its factor.
    const uint32_t together = rows == 1 ? 1 : 4;
    const uint64_t pairs = gated ? outputs : ceil_div(outputs, 2);
    dispatch(Kernel::kLinearFew, {type_constant(matrix), together, tail},
             static_cast<double>(ceil_div(pairs, 4)), std::move(bindings), block,
             static_cast<uint32_t>(ceil_div(rows, together)));
  });
}

void Builder::norm(const Rows& x, uint32_t rows, uint32_t columns, const Norm& norm,
                   const Rows& y) {
  const NormBlock block{.rows = rows,
                        .columns = columns,
                        .x_first = x.first,
                        .x_stride = x.stride,
                        .y_first = y.first,
                        .y_stride = y.stride,
                        .gain = norm.gain,
                        .shift = norm.shift,
                        .eps = norm.eps,
                        .layer = norm.kind == Norm::Kind::kLayer ? 1U : 0U};
  dispatch(Kernel::kNorm, {}, rows, {whole(x.buffer), whole(vectors_), whole(y.buffer)}, block);
}

void Builder::heads(const Rows& x, HeadsBlock block, uint32_t y) {
  block.x_first = x.first;
  block.x_stride = x.stride;
  // Without a rotation there may be no data.
  const Binding tables = whole(block.pairs == 0 ? vectors_ : kData);
  dispatch(Kernel::kHeads, {},
           static_cast<double>(block.tokens) * (block.q[2] + block.k[2] + block.v[2]),
           {whole(x.buffer), whole(vectors_), tables, whole(y)}, block);
}

void Builder::pointwise(const Rows& x, uint32_t rows, uint32_t columns, const Pointwise& o,
                        const Rows& y) {
  using With = Pointwise::With;
  const bool has_z =
      o.with == With::kTimes || o.with == With::kFactors || o.with == With::kWhereZero;
  const Rows z = has_z ? o.z : x;
  const PointwiseBlock block{.rows = rows,
                             .columns = columns,
                             .code = static_cast<uint32_t>(o.function),
                             .mode = static_cast<uint32_t>(o.with) + (o.keeps_hidden ? 8U : 0U),
                             .x_first = x.first,
                             .x_stride = x.stride,
                             .z_first = z.first,
                             .z_stride = z.stride,
                             .y_first = y.first,
                             .y_stride = y.stride,
                             .each = o.each,
                             .scale = o.scale};
  dispatch(Kernel::kPointwise, {},
           static_cast<double>(ceil_div(uint64_t{rows} * columns, kInvocations)),
           {whole(x.buffer), whole(z.buffer), whole(y.buffer)}, block);
}

void Builder::weighted(const Rows& weights, const GpuRows& v, WeightedBlock block, const Rows& y) {
  block.v = v.block();
  block.y_first = y.first;
  block.y_stride = y.stride;
  dispatch(
      Kernel::kWeighted, {},
      static_cast<double>(ceil_div(uint64_t{block.rows} * block.heads * block.width, kInvocations)),
      {whole(weights.buffer), v.binding, whole(y.buffer)}, block);
}

void Builder::embed(const MatrixForm& table, uint32_t buffer, uint32_t rows, const Embed& o,
                    const Rows& y) {
  in_pieces(table, buffer, [&](uint32_t first, uint32_t count, Binding units, Binding scales) {
    const EmbedBlock block{.rows = rows,
                           .columns = table.columns,
                           .units = table.units(),
                           .scale_words = table.scale_words(),
                           .y_first = y.first,
                           .y_stride = y.stride,
                           .first_row = first,
                           .table_rows = count,
                           .indices = o.indices,
                           .factors = o.factors,
                           .adds = o.adds ? 1U : 0U};
    const uint64_t quads = ceil_div(table.columns, 4);
    dispatch(Kernel::kEmbed, {type_constant(table)},
             static_cast<double>(ceil_div(rows * quads, kInvocations)),
             {units, scales, whole(kData), whole(y.buffer)}, block);
  });
}

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
    const Rows padded = builder.new_rows(word(count), std::max<int64_t>(columns, 1));
    builder.pointwise(given, word(count), padded.stride,
                      {.with = Builder::Pointwise::With::kPadding, .each = word(columns)}, padded);
    return padded;
  };
  const Rows inputs = in_fours(from, rows), weights = in_fours({matrix, 0, from.stride}, outputs);
  builder.linear(inputs, word(rows), {WeightType::kF32, word(outputs), inputs.stride},
                 weights.buffer, {.bias = bias.data == nullptr ? kNone : 0}, to);
  return builder.finish(plan);
}

}  // namespace multihead::webgpu
