#include "webgpu/operations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/error/error.h"
#include "webgpu/params.h"

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

// Columns of a unit.
uint32_t unit_columns(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 4;
    case WeightType::kF16:
    case WeightType::kBF16:
      return 8;
    case WeightType::kInt8:
      return 16;
    case WeightType::kInt4:
      return 32;
    default:  // has no kernel, see DeviceModel::create()
      return 0;
  }
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
  switch (activation) {
    case Activation::kRelu:
      return Function::kRelu;
    case Activation::kGelu:
      return Function::kGelu;
    case Activation::kGeluTanh:
      return Function::kGeluTanh;
    case Activation::kSilu:
      return Function::kSilu;
  }
  return Function::kNone;
}

Builder::Builder(const Device& device, std::span<const uint64_t> operands, uint32_t vectors)
    : device_(device),
      buffers_(operands.begin(), operands.end()),
      operands_(static_cast<uint32_t>(operands.size())),
      vectors_(vectors) {}

uint32_t Builder::scratch(uint64_t words) {
  buffers_.push_back(round_up(std::max<uint64_t>(words, 1), kUnitWords));
  return static_cast<uint32_t>(buffers_.size()) - 1;
}

uint32_t Builder::add_data(const void* words, size_t count) {
  const auto first = static_cast<size_t>(round_up(plan_.data.size(), kAlignment));
  plan_.data.resize(first + count);
  if (count > 0) std::memcpy(plan_.data.data() + first, words, count * sizeof(uint32_t));
  return static_cast<uint32_t>(first);
}

Binding Builder::whole(uint32_t buffer) const {
  // finish() knows the words of the data.
  if (buffer == kData) return {kData, 0, 0};
  return {buffer, 0, static_cast<uint32_t>(buffers_[buffer])};
}

void Builder::add(Kernel kernel, std::initializer_list<uint32_t> constants, uint64_t groups,
                  std::vector<Binding> bindings, std::vector<uint32_t> parameters, uint32_t z) {
  Dispatch dispatch{
      .kernel = kernel, .bindings = std::move(bindings), .parameters = std::move(parameters)};
  std::copy(constants.begin(), constants.end(), dispatch.constants.begin());
  Status folded = fold("device", groups, device_, dispatch.groups);
  if (status_.ok()) status_ = std::move(folded);
  dispatch.groups[2] = z;
  plan_.dispatches.push_back(std::move(dispatch));
}

void Builder::append(const Plan& plan, std::span<const Operand> operands) {
  const uint32_t first_data = plan.data.empty() ? 0 : data(plan.data);
  std::vector<Operand> buffers(operands.begin(), operands.end());
  if (!plan.data.empty()) buffers.push_back({kData, first_data});
  for (const uint32_t words : plan.scratch) buffers.push_back({scratch(words), 0});
  for (Dispatch dispatch : plan.dispatches) {
    for (Binding& binding : dispatch.bindings) {
      const Operand& operand = buffers[binding.buffer];
      binding.buffer = operand.buffer;
      binding.first_word += operand.first;
    }
    plan_.dispatches.push_back(std::move(dispatch));
  }
}

bool Builder::fits(const MatrixForm& matrix) const {
  return uint64_t{matrix.rows} * matrix.units() * kUnitWords * sizeof(uint32_t) <=
         device_.binding_bytes;
}

template <class Piece>
void Builder::in_pieces(const MatrixForm& matrix, uint32_t buffer, const Piece& piece) const {
  const uint64_t row_words = uint64_t{matrix.units()} * kUnitWords;
  uint64_t most = device_.binding_bytes / sizeof(uint32_t) / row_words / kPieceRows * kPieceRows;
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
  const bool gated = options.gate_row != kAbsent;
  const auto code = static_cast<uint32_t>(options.function);
  const uint32_t tail = has_tail(matrix);
  in_pieces(matrix, buffer, [&](uint32_t first, uint32_t count, Binding units, Binding scales) {
    std::vector<Binding> bindings{whole(x.buffer), units, scales, whole(vectors_), whole(y.buffer)};
    const uint32_t bias = options.bias == kAbsent ? kAbsent : options.bias + first;
    if (rows > kFewRows) {
      const ManyBlock block{.rows = rows,
                            .outputs = count,
                            .columns = matrix.columns,
                            .units = matrix.units(),
                            .scale_words = matrix.scale_words(),
                            .x_first = x.first,
                            .x_stride = x.stride,
                            .y_first = y.first + first,
                            .y_stride = y.stride,
                            .bias = bias,
                            .code = code,
                            .adds = options.adds ? 1U : 0U,
                            .factor = options.factor,
                            .cap = options.cap};
      constexpr uint32_t kTile = 64;
      const uint64_t tiles = ceil_div(count, kTile) * ceil_div(rows, kTile);
      add(Kernel::kLinearMany, {type_constant(matrix), tail}, tiles, std::move(bindings),
          words_of(block));
      return;
    }
    const uint32_t outputs = gated ? count / 2 : count;
    const FewBlock block{.rows = rows,
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
                         .code = code,
                         .adds = options.adds ? 1U : 0U,
                         .gated = gated ? 1U : 0U,
                         .gate_row = gated ? options.gate_row : 0,
                         .factor_row = gated ? options.factor_row : 0,
                         .last_row = count - 1,
                         .factor = options.factor,
                         .cap = options.cap};
    // 16 invocations have two outputs, or a gate and its factor.
    const uint32_t together = rows == 1 ? 1 : 4;
    const uint64_t pairs = gated ? outputs : ceil_div(outputs, 2);
    add(Kernel::kLinearFew, {type_constant(matrix), together, tail}, ceil_div(pairs, 4),
        std::move(bindings), words_of(block), static_cast<uint32_t>(ceil_div(rows, together)));
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
  add(Kernel::kNorm, {}, rows, {whole(x.buffer), whole(vectors_), whole(y.buffer)},
      words_of(block));
}

void Builder::heads(const Rows& x, const Heads& o, uint32_t y) {
  const HeadsBlock block{.tokens = o.tokens,
                         .sequence = o.sequence,
                         .q_heads = o.q_heads,
                         .k_heads = o.k_heads,
                         .width = o.width,
                         .x_stride = x.stride,
                         .q_first = x.first + o.q_first,
                         .q_step = o.q_step,
                         .k_first = x.first + o.k_first,
                         .k_step = o.k_step,
                         .v_first = x.first + o.v_first,
                         .v_step = o.v_step,
                         .q_out = o.q_out,
                         .k_out = o.k_out,
                         .v_out = o.v_out,
                         .q_gain = o.q_norm.gain,
                         .k_gain = o.k_norm.gain,
                         .eps = o.q_norm.eps,
                         .norm_last = o.norm_last ? 1U : 0U,
                         .most = o.most,
                         .pairs = o.pairs,
                         .cos_first = o.cos,
                         .sin_first = o.sin,
                         .table_stride = o.table_stride,
                         .neighbours = o.neighbours ? 1U : 0U};
  // Without a rotation there may be no data.
  const Binding tables = whole(o.pairs == 0 ? vectors_ : kData);
  add(Kernel::kHeads, {}, uint64_t{o.tokens} * (o.q_heads + 2 * o.k_heads),
      {whole(x.buffer), whole(vectors_), tables, whole(y)}, words_of(block));
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
                             .mode = static_cast<uint32_t>(o.with),
                             .x_first = x.first,
                             .x_stride = x.stride,
                             .z_first = z.first,
                             .z_stride = z.stride,
                             .y_first = y.first,
                             .y_stride = y.stride,
                             .each = o.each,
                             .scale = o.scale};
  add(Kernel::kPointwise, {}, ceil_div(uint64_t{rows} * columns, kInvocations),
      {whole(x.buffer), whole(z.buffer), whole(y.buffer)}, words_of(block));
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
    add(Kernel::kEmbed, {type_constant(table)}, ceil_div(rows * quads, kInvocations),
        {units, scales, whole(kData), whole(y.buffer)}, words_of(block));
  });
}

Status Builder::finish(Plan& plan) {
  MULTIHEAD_TRY(status_);
  // The dispatches that use each scratch buffer.
  const size_t count = buffers_.size() - operands_;
  std::vector<size_t> last(count), place(count, std::numeric_limits<size_t>::max());
  for (size_t at = 0; at < plan_.dispatches.size(); ++at) {
    for (const Binding& binding : plan_.dispatches[at].bindings) {
      if (binding.buffer < operands_ || binding.buffer == kData) continue;
      last[binding.buffer - operands_] = at;
    }
  }
  struct Memory {
    uint64_t words;
    size_t busy_until;
  };
  std::vector<Memory> memories;
  const uint32_t first_scratch = operands_ + (plan_.data.empty() ? 0 : 1);
  uint64_t longest = plan_.data.size();
  for (size_t at = 0; at < plan_.dispatches.size(); ++at) {
    for (Binding& binding : plan_.dispatches[at].bindings) {
      if (binding.buffer == kData) {
        if (binding.words == 0) binding.words = static_cast<uint32_t>(plan_.data.size());
        binding.buffer = operands_;
        continue;
      }
      longest = std::max<uint64_t>(longest, binding.words);
      if (binding.buffer < operands_) continue;
      const size_t id = binding.buffer - operands_;
      const uint64_t words = buffers_[binding.buffer];
      if (place[id] == std::numeric_limits<size_t>::max()) {
        // The smallest free memory that is large enough, or the largest, which then grows.
        size_t best = memories.size();
        for (size_t i = 0; i < memories.size(); ++i) {
          if (memories[i].busy_until >= at) continue;
          const uint64_t here = memories[i].words;
          const uint64_t now = best == memories.size() ? 0 : memories[best].words;
          const bool better =
              best == memories.size() || (now < words ? here > now : here >= words && here < now);
          if (better) best = i;
        }
        if (best == memories.size()) memories.push_back({0, 0});
        memories[best].words = std::max(memories[best].words, words);
        memories[best].busy_until = last[id];
        place[id] = best;
      }
      binding.buffer = first_scratch + static_cast<uint32_t>(place[id]);
    }
  }
  if (longest * sizeof(uint32_t) > device_.binding_bytes) {
    return {StatusCode::kOption, "device",
            "bindings of " + std::to_string(longest * sizeof(uint32_t)) + " bytes",
            std::to_string(device_.binding_bytes)};
  }
  plan_.scratch.clear();
  for (const Memory& memory : memories) {
    plan_.scratch.push_back(static_cast<uint32_t>(memory.words));
  }
  plan = std::move(plan_);
  return {};
}

}  // namespace multihead::webgpu
