#include "nn/parameters.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "engine/error/error.h"
#include "engine/error/printable.h"
#include "nn/call_memory.h"
#include "rules/element.h"
#include "rules/integers.h"

namespace multihead {
namespace nn {
namespace {

template <class T>
void copy_strided(const T* from, const Dims& shape, const Dims& strides, int axis, float*& to) {
  if (axis == shape.rank()) {
    *to++ = rules::to_float(*from);
    return;
  }
  for (int64_t i = 0; i < shape[axis]; ++i) {
    copy_strided(from + i * strides[axis], shape, strides, axis + 1, to);
  }
}

void copy_tensor(const ConstAnyTensor& from, float* to) {
  rules::visit_element(from.dtype, [&]<class T>(std::type_identity<T>) {
    copy_strided(static_cast<const T*>(from.data), from.shape, from.strides, 0, to);
  });
}

// Returns a tensor of the state dict as the matrix in memory; a vector becomes a column.
ConstAnyTensor matrix_of(const ConstAnyTensor& tensor, DictLayout layout) {
  const Dims &shape = tensor.shape, &strides = tensor.strides;
  ConstAnyTensor matrix = tensor;
  if (layout == DictLayout::kTransposed) {
    matrix.shape = {shape[1], shape[0]};
    matrix.strides = {strides[1], strides[0]};
  } else if (layout == DictLayout::kThreeAxes || shape.rank() == 1) {
    const int last = shape.rank() - 1;
    matrix.shape = {shape[last], 1};
    matrix.strides = {strides[last], 1};
  }
  return matrix;
}

// Copies the rows of a tensor whose data is in memory.
void copy_rows(const ConstAnyTensor& matrix, const ParameterRows& rows, float* to) {
  ConstAnyTensor part = matrix;
  part.shape[0] = rows.end - rows.first;
  part.data = static_cast<const std::byte*>(matrix.data) +
              rows.first * matrix.strides[0] * bytes_of(matrix.dtype);
  copy_tensor(part, to);
}

Status not_read(const Parameter& parameter) {
  return engine::text_error(StatusCode::kShape, engine::Name::kStateDict,
                            engine::Message::kParameters,
                            "not to be read: " + engine::printable(parameter.name), 1);
}

// Reads rows of a matrix that the tensor stores row by row, through loading.read.
bool read_rows(const ConstAnyTensor& tensor, const ParameterRows& rows, const Loading& loading,
               float* to) {
  const int64_t end = rows.end * rows.columns;
  for (int64_t at = rows.first * rows.columns; at < end;) {
    const int64_t count = std::min(end - at, Loading::kMostRead);
    const void* const data = loading.read(tensor, at, count);
    if (data == nullptr) return false;
    rules::read_floats(data, tensor.dtype, 0, count, to);
    at += count;
    to += count;
  }
  return true;
}

// Reads rows of a matrix that the tensor stores column by column, with as many columns per round as
// one call to read() returns. Writing one column at a time would touch a cache line per element.
bool read_columns(const ConstAnyTensor& tensor, const ParameterRows& rows, const Loading& loading,
                  float* to) {
  const int64_t height = tensor.shape[1], columns = rows.columns;
  const int64_t most = std::max<int64_t>(1, Loading::kMostRead / std::max<int64_t>(1, height));
  for (int64_t column = 0; column < columns; column += most) {
    const int64_t count = std::min(most, columns - column);
    for (int64_t first = rows.first; first < rows.end; first += Loading::kMostRead) {
      const int64_t end = std::min(rows.end, first + Loading::kMostRead);
      // One read covers everything from the first column's first row to the last column's last row.
      const void* const data =
          loading.read(tensor, column * height + first, (count - 1) * height + end - first);
      if (data == nullptr) return false;
      const Dims shape{end - first, count};
      for (int64_t row = 0; row < end - first; ++row) {
        float* target = to + (first - rows.first + row) * columns + column;
        const auto* const from = static_cast<const std::byte*>(data) + row * bytes_of(tensor.dtype);
        copy_tensor({from, tensor.dtype, {count}, {height}}, target);
      }
    }
  }
  return true;
}

ConstAnyTensor transposed(ConstAnyTensor tensor) {
  std::swap(tensor.shape[0], tensor.shape[1]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  return tensor;
}

Dims shape_in_dict(const Dims& shape, DictLayout layout) {
  switch (layout) {
    case DictLayout::kTransposed:
      return {shape[1], shape[0]};
    case DictLayout::kThreeAxes:
      return {1, 1, shape[0]};
    case DictLayout::kAsInMemory:
      break;
  }
  return shape;
}

}  // namespace

uint64_t new_version() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void ParameterList::add(std::string name, const Dims& shape, ParameterRole role, ConstTensor& view,
                        DictLayout layout, Held held) {
  int64_t before = 0;
  if (!parameters_.empty() && parameters_.back().name == name) {
    int64_t& rows = parameters_.back().shape[layout == DictLayout::kTransposed ? 1 : 0];
    before = rows;
    rows += shape[0];
  } else {
    parameters_.push_back({std::move(name), shape_in_dict(shape, layout), role, layout, elements_});
  }
  elements_ = rules::saturating_add(elements_, shape.elements());

  ParameterRows rows{.parameter = parameters_.size() - 1,
                     .first = before,
                     .end = before + shape[0],
                     .columns = shape.rank() == 1 ? 1 : shape[1],
                     .offset = held_,
                     .divided_first = before,
                     .divided_end = before + shape[0]};
  const bool divides = team_ != nullptr && held == Held::kShare && engine::Team::divides(shape[0]);
  if (divides) {
    rows.first = before + team_->first_output(shape[0]);
    rows.end = before + team_->end_output(shape[0]);
  }
  Dims held_shape = shape;
  held_shape[0] = rows.end - rows.first;
  targets_.push_back({&view, held_shape, held_});
  held_ = rules::saturating_add(held_, rows.elements());
  // Merge with the previous rows of the parameter, which end where these rows begin.
  if (before > 0 && !divides && rows_.back().is_whole()) {
    rows_.back().end = rows_.back().divided_end = rows.end;
  } else {
    rows_.push_back(rows);
  }
}

void ParameterList::add_like(std::string name, const Parameter& parameter) {
  parameters_.push_back(
      {std::move(name), parameter.shape, parameter.role, parameter.layout, elements_});
  const Dims& shape = parameter.shape;
  const int64_t elements = shape.elements();
  const bool by_columns = parameter.layout == DictLayout::kTransposed;
  const int64_t rows = shape.rank() != 2 ? elements : by_columns ? shape[1] : shape[0];
  rows_.push_back({.parameter = parameters_.size() - 1,
                   .first = 0,
                   .end = rows,
                   .columns = shape.rank() != 2 ? 1 : parameter.columns(),
                   .offset = held_,
                   .divided_first = 0,
                   .divided_end = rows});
  elements_ += elements;
  held_ += elements;
}

void ParameterList::add_linear(const std::string& name, int64_t out, int64_t in, ParameterRole role,
                               DictLayout layout, ConstTensor& weight, ConstTensor* bias) {
  add(name + ".weight", {out, in}, role, weight, layout, Held::kShare);
  if (bias != nullptr) add(name + ".bias", {out}, ParameterRole::kBias, *bias);
}

void ParameterList::bind(const float* memory) const {
  for (const Target& target : targets_) *target.view = {memory + target.offset, target.shape};
}

Status Parameters::load(const ParameterList& list, const StateDict& dict, const Loading& loading,
                        const std::function<bool(std::string_view)>& ignored) {
  engine::NameList missing, unexpected, misshaped, unreadable;
  std::set<std::string_view> known;
  for (const Parameter& parameter : list.parameters()) {
    known.insert(parameter.name);
    const auto found = dict.find(parameter.name);
    if (found == dict.end()) {
      missing.add(parameter.name, " " + parameter.shape.to_string());
      continue;
    }
    const ConstAnyTensor& tensor = found->second;
    if (!(tensor.shape == parameter.shape)) {
      misshaped.add(parameter.name,
                    " " + tensor.shape.to_string() + " instead of " + parameter.shape.to_string());
    } else if (tensor.strides.rank() != parameter.shape.rank()) {
      unreadable.add(parameter.name, " with " + std::to_string(tensor.strides.rank()) + " strides");
    } else if (tensor.data == nullptr) {
      unreadable.add(parameter.name, " without data");
    } else if (tensor.dtype > DType::kBF16) {
      unreadable.add(parameter.name,
                     " of element type number " + std::to_string(static_cast<int>(tensor.dtype)));
    }
  }
  for (const auto& [name, tensor] : dict) {
    if (!known.contains(name) && !(ignored && ignored(name))) unexpected.add(name);
  }
  std::string problems;
  for (const auto& [what, names] : {std::pair{"missing: ", &missing},
                                    {"unexpected: ", &unexpected},
                                    {"of another shape: ", &misshaped},
                                    {"not to be read: ", &unreadable}}) {
    if (!names->empty()) problems += (problems.empty() ? "" : "; ") + (what + names->text());
  }
  if (!problems.empty()) {
    return engine::text_error(StatusCode::kShape, engine::Name::kStateDict,
                              engine::Message::kParameters, problems,
                              static_cast<int64_t>(list.parameters().size()));
  }
  MULTIHEAD_TRY(make(list));
  for (const ParameterRows& rows : rows_) {
    const Parameter& parameter = list_[rows.parameter];
    const ConstAnyTensor& tensor = dict.find(parameter.name)->second;
    float* const to = values() + rows.offset;
    if (loading.read == nullptr) {
      copy_rows(matrix_of(tensor, parameter.layout), rows, to);
      continue;
    }
    const bool read = parameter.layout == DictLayout::kTransposed
                          ? read_columns(tensor, rows, loading, to)
                          : read_rows(tensor, rows, loading, to);
    if (!read) return not_read(parameter);
  }
  return {};
}

Status Parameters::make(const ParameterList& list) {
  engine::Buffer memory;
  float* block = nullptr;
  MULTIHEAD_TRY(reserve_floats(memory, list.elements(), block));
  list_.assign(list.parameters().begin(), list.parameters().end());
  rows_.assign(list.rows().begin(), list.rows().end());
  elements_ = list.elements();
  elements_of_all_ = list.elements_of_all();
  memory_ = std::move(memory);
  list.bind(block);
  return {};
}

StateDict Parameters::state_dict(const float* block) const {
  StateDict dict;
  for (const Parameter& parameter : list_) {
    const bool turned = parameter.layout == DictLayout::kTransposed;
    const Dims& shape = parameter.shape;
    const ConstTensor stored(block + parameter.offset, turned ? Dims{shape[1], shape[0]} : shape);
    dict.emplace(parameter.name, turned ? transposed(stored) : ConstAnyTensor(stored));
  }
  return dict;
}

Status Parameters::gather(engine::Team& team, engine::Buffer& buffer, StateDict& dict) const {
  float* all = nullptr;
  MULTIHEAD_TRY(reserve_floats(buffer, elements_of_all_, all));
  for (const ParameterRows& rows : rows_) {
    const int64_t columns = rows.columns;
    float* const to = all + list_[rows.parameter].offset;
    std::copy_n(values() + rows.offset, rows.elements(), to + rows.first * columns);
    if (rows.is_whole()) continue;
    const int64_t divided = rows.divided_end - rows.divided_first;
    MULTIHEAD_TRY(team.exchange_rows(
        to + rows.divided_first * columns, columns * static_cast<int64_t>(sizeof(float)),
        [&](int member) { return team.first_output(divided, member); }));
  }
  dict = state_dict(all);
  return {};
}

const Parameters* parameters_of(const ModuleBase& module) {
  const ModuleBase::Memory* const memory = ModuleBase::Memory::of(module);
  return memory == nullptr ? nullptr : &memory->parameters;
}

Status validate_block(const ModuleBase& module, size_t floats) {
  const Parameters* const own = parameters_of(module);
  if (own == nullptr || own->empty() || own->is_share()) {
    return engine::option_error(engine::Name::kBlock, engine::Message::kOwnParameters);
  }
  const auto given = static_cast<int64_t>(floats);
  if (given == own->elements()) return {};
  return engine::shape_error(engine::Name::kBlock, engine::Message::kFloatPerParameter,
                             own->elements(), given);
}

}  // namespace nn

Status ModuleBase::state_dict(StateDict& dict) const {
  return engine::memory_guard([&]() -> Status {
    const nn::Parameters* const own = nn::parameters_of(*this);
    if (own == nullptr || own->empty() || own->is_share()) {
      return engine::option_error(engine::Name::kStateDict, engine::Message::kOwnParameters);
    }
    dict = own->state_dict();
    return {};
  });
}

int64_t ModuleBase::num_parameters() const {
  return memory_ == nullptr ? 0 : memory_->parameters.elements();
}

Status ModuleBase::named(std::span<const float> block, StateDict& dict) const {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(nn::validate_block(*this, block.size()));
    dict = memory_->parameters.state_dict(block.data());
    return {};
  });
}

}  // namespace multihead
