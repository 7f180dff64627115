#include "nn/parameters.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/error.h"
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

}  // namespace

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void Parameters::add(std::string name, const Dims& shape, Stored stored) {
  items_.push_back({std::move(name), shape, stored, floats_});
  floats_ += shape.elements();
}

Status Parameters::load(const StateDict& dict,
                        const std::function<bool(std::string_view)>& ignored) {
  std::vector<std::string> missing, unexpected, misshaped, unreadable;
  std::map<std::string_view, const Item*> known;
  for (const Item& item : items_) {
    known.emplace(item.name, &item);
    const auto found = dict.find(item.name);
    if (found == dict.end()) {
      missing.push_back(item.name + " " + item.shape.to_string());
      continue;
    }
    const ConstAnyTensor& tensor = found->second;
    if (!(tensor.shape == item.shape)) {
      misshaped.push_back(item.name + " " + tensor.shape.to_string() + " instead of " +
                          item.shape.to_string());
    } else if (tensor.strides.rank() != item.shape.rank()) {
      unreadable.push_back(item.name + " with " + std::to_string(tensor.strides.rank()) +
                           " strides");
    } else if (tensor.data == nullptr) {
      unreadable.push_back(item.name + " without data");
    } else if (tensor.dtype > DType::kBF16) {
      unreadable.push_back(item.name + " of element type number " +
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
                              static_cast<int64_t>(items_.size()));
  }
  engine::Buffer memory;
  // Not null where there is nothing to keep.
  const uint64_t bytes = static_cast<uint64_t>(floats_) * sizeof(float) + sizeof(float);
  if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
  for (const Item& item : items_) {
    const ConstAnyTensor& tensor = dict.find(item.name)->second;
    copy_tensor(item.stored == Stored::kTransposed ? transposed(tensor) : tensor,
                static_cast<float*>(memory.data()) + item.offset);
  }
  memory_ = std::move(memory);
  return {};
}

ConstTensor Parameters::find(std::string_view name) const {
  const auto found = std::find_if(items_.begin(), items_.end(),
                                  [&](const Item& item) { return item.name == name; });
  if (found == items_.end() || memory_.data() == nullptr) return {};
  Dims shape = found->shape;
  if (found->stored == Stored::kTransposed) std::swap(shape[0], shape[1]);
  return {static_cast<const float*>(memory_.data()) + found->offset, shape};
}

StateDict Parameters::state_dict() const {
  StateDict dict;
  if (memory_.data() == nullptr) return dict;
  for (const Item& item : items_) {
    const ConstAnyTensor tensor = find(item.name);
    dict.emplace(item.name, item.stored == Stored::kTransposed ? transposed(tensor) : tensor);
  }
  return dict;
}

}  // namespace multihead::nn
