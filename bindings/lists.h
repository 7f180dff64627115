// Reads lists of JavaScript, which have no place in the block.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "argument_block.h"
#include "multihead/models.h"

namespace multihead::bindings {

// Reads lists that JavaScript wrote as texts, each followed by a zero, and numbers beside them.
class ListReader {
 public:
  ListReader(std::span<const char> texts, std::span<const double> numbers)
      : texts_(texts.data(), texts.size()), numbers_(numbers) {}

  explicit ListReader(std::span<const double> numbers) : numbers_(numbers) {}

  bool at_end() const { return texts_.empty(); }
  bool has_numbers() const { return !numbers_.empty(); }
  std::string_view text() {
    const std::string_view found = texts_.substr(0, texts_.find('\0'));
    texts_.remove_prefix(std::min(texts_.size(), found.size() + 1));
    return found;
  }
  double number() {
    if (numbers_.empty()) return 0;
    const double found = numbers_.front();
    numbers_ = numbers_.subspan(1);
    return found;
  }
  int64_t whole() { return static_cast<int64_t>(number()); }
  // Their number, and the numbers.
  std::vector<int64_t> wholes() {
    std::vector<int64_t> list;
    for (int64_t left = whole(); left > 0; --left) list.push_back(whole());
    return list;
  }
  // An address, the rank and the extents.
  template <class T>
  TensorView<T> tensor() {
    T* const data = pointer<T>(static_cast<uint32_t>(number()));
    Dims shape;
    for (const int64_t extent : wholes()) shape.push_back(extent);
    return {data, shape};
  }

 private:
  std::string_view texts_;
  std::span<const double> numbers_;
};

// Captures: site, layer, heads, output.
inline std::vector<models::Capture> captures_of(std::span<const double> numbers) {
  std::vector<models::Capture> captures;
  for (ListReader list(numbers); list.has_numbers();) {
    models::Capture& capture = captures.emplace_back();
    capture.site = static_cast<models::Site>(list.whole());
    capture.layer = list.whole();
    capture.heads = list.wholes();
    capture.out = list.tensor<float>();
  }
  return captures;
}

// Edits: site, layer, heads, tokens, action, factor, value.
inline std::vector<models::Edit> edits_of(std::span<const double> numbers) {
  std::vector<models::Edit> edits;
  for (ListReader list(numbers); list.has_numbers();) {
    models::Edit& edit = edits.emplace_back();
    edit.site = static_cast<models::Site>(list.whole());
    edit.layer = list.whole();
    edit.heads = list.wholes();
    edit.tokens = list.wholes();
    edit.action = static_cast<models::Edit::Action>(list.whole());
    edit.factor = static_cast<float>(list.number());
    edit.value = list.tensor<const float>();
  }
  return edits;
}

// The inputs of a call with its edits.
struct Edited {
  Edited(const models::ModelInputs& given, std::span<const double> numbers)
      : edits(edits_of(numbers)), inputs(given) {
    inputs.edits = edits;
  }
  std::vector<models::Edit> edits;
  models::ModelInputs inputs;
};

}  // namespace multihead::bindings
