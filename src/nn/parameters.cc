#include "nn/parameters.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/guard.h"
#include "rules/element.h"

namespace multihead::nn {
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

ConstAnyTensor transposed(ConstAnyTensor tensor) {
  std::swap(tensor.shape[0], tensor.shape[1]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  return tensor;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
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

void ParameterList::add(std::string name, const Dims& shape, ParameterRole role, ConstTensor& view,
                        DictLayout layout) {
  targets_.push_back({&view, shape, elements_});
  if (!parameters_.empty() && parameters_.back().name == name) {
    parameters_.back().shape[layout == DictLayout::kTransposed ? 1 : 0] += shape[0];
  } else {
    parameters_.push_back({std::move(name), shape_in_dict(shape, layout), role, layout, elements_});
  }
  elements_ += shape.elements();
}

void ParameterList::add_like(std::string name, const Parameter& parameter) {
  parameters_.push_back(
      {std::move(name), parameter.shape, parameter.role, parameter.layout, elements_});
  elements_ += parameter.shape.elements();
}

void ParameterList::add_linear(const std::string& name, int64_t out, int64_t in, ParameterRole role,
                               DictLayout layout, ConstTensor& weight, ConstTensor* bias) {
  add(name + ".weight", {out, in}, role, weight, layout);
  if (bias != nullptr) add(name + ".bias", {out}, ParameterRole::kBias, *bias);
}

void ParameterList::bind(const float* memory) const {
  for (const Target& target : targets_) *target.view = {memory + target.offset, target.shape};
}

Status Parameters::load(const ParameterList& list, const StateDict& dict,
                        const std::function<bool(std::string_view)>& ignored) {
  std::vector<std::string> missing, unexpected, misshaped, unreadable;
  std::set<std::string_view> known;
  for (const Parameter& parameter : list.parameters()) {
    known.insert(parameter.name);
    const auto found = dict.find(parameter.name);
    if (found == dict.end()) {
      missing.push_back(parameter.name + " " + parameter.shape.to_string());
      continue;
    }
    const ConstAnyTensor& tensor = found->second;
    if (!(tensor.shape == parameter.shape)) {
      misshaped.push_back(parameter.name + " " + tensor.shape.to_string() + " instead of " +
                          parameter.shape.to_string());
    } else if (tensor.strides.rank() != parameter.shape.rank()) {
      unreadable.push_back(parameter.name + " with " + std::to_string(tensor.strides.rank()) +
                           " strides");
    } else if (tensor.data == nullptr) {
      unreadable.push_back(parameter.name + " without data");
    } else if (tensor.dtype > DType::kBF16) {
      unreadable.push_back(parameter.name + " of element type number " +
                           std::to_string(static_cast<int>(tensor.dtype)));
    }
  }
  for (const auto& [name, tensor] : dict) {
    if (!known.contains(name) && !(ignored && ignored(name))) unexpected.push_back(name);
  }
  std::string problems;
  for (const auto& [what, names] : {std::pair{"missing: ", &missing},
                                    {"unexpected: ", &unexpected},
                                    {"of another shape: ", &misshaped},
                                    {"not to be read: ", &unreadable}}) {
    if (!names->empty()) problems += (problems.empty() ? "" : "; ") + (what + joined(*names));
  }
  if (!problems.empty()) {
    return engine::text_error(StatusCode::kShape, engine::Name::kStateDict,
                              engine::Message::kParameters, std::move(problems),
                              static_cast<int64_t>(list.parameters().size()));
  }
  if (Status status = make(list); !status.ok()) return status;
  for (const Parameter& parameter : list_) {
    const ConstAnyTensor& tensor = dict.find(parameter.name)->second;
    copy_tensor(parameter.layout == DictLayout::kTransposed ? transposed(tensor) : tensor,
                values() + parameter.offset);
  }
  return {};
}

Status Parameters::make(const ParameterList& list) {
  engine::Buffer memory;
  // One float more, so that a module of no parameters has memory too.
  const uint64_t bytes = (static_cast<uint64_t>(list.elements()) + 1) * sizeof(float);
  if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
  list_.assign(list.parameters().begin(), list.parameters().end());
  elements_ = list.elements();
  memory_ = std::move(memory);
  list.bind(values());
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

Status validate_block(const Parameters* own, size_t floats) {
  if (own == nullptr || own->empty()) {
    return engine::option_error(engine::Name::kBlock, engine::Message::kOwnParameters);
  }
  const auto given = static_cast<int64_t>(floats);
  if (given == own->elements()) return {};
  return engine::shape_error(engine::Name::kBlock, engine::Message::kFloatPerParameter,
                             own->elements(), given);
}

Status read_block(const Parameters* own, std::span<const float> block, StateDict& dict) {
  return engine::memory_guard([&]() -> Status {
    if (Status status = validate_block(own, block.size()); !status.ok()) return status;
    dict = own->state_dict(block.data());
    return {};
  });
}

Status read_state_dict(const Parameters* own, StateDict& dict) {
  return engine::memory_guard([&]() -> Status {
    if (own == nullptr || own->empty()) {
      return engine::option_error(engine::Name::kStateDict, engine::Message::kOwnParameters);
    }
    dict = own->state_dict();
    return {};
  });
}

}  // namespace multihead::nn
