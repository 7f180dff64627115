// A golden case and the outcome of running it, shared by the sources of the runner.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {

using nlohmann::json;

// Limit on the elements of a tensor; golden cases are small.
inline constexpr int64_t kMostElements = int64_t{1} << 26;

inline bool fits(const Dims& shape) {
  int64_t most = kMostElements;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] < 0) return false;
    most /= std::max(shape[axis], int64_t{1});
  }
  return shape.rank() <= Dims::kMaxRank && most > 0;
}

inline bool fit(std::initializer_list<Dims> shapes) {
  return std::all_of(shapes.begin(), shapes.end(), fits);
}

// `shape` must have at most kMostElements elements.
struct Values {
  Dims shape;
  std::vector<float> data;

  Values() = default;
  explicit Values(const Dims& dims) : shape(dims), data(static_cast<size_t>(dims.elements())) {}
  Tensor tensor() { return {data.data(), shape}; }
  ConstTensor view() const { return {data.data(), shape}; }
};

// The computed tensors by output name, or the reason why the case could not run.
struct Outcome {
  std::map<std::string, Values> outputs;
  std::string failure;
};

inline Outcome unsupported(const std::string& what) { return {{}, "not supported yet: " + what}; }
inline Outcome failed(const Status& status) { return {{}, status.message()}; }
inline Outcome too_large() {
  return {{}, "a tensor of more than " + std::to_string(kMostElements) + " elements"};
}

// ---- Reading untrusted JSON. It throws no exceptions, so it checks every type first. ----

// A short description for messages. dump() of deeply nested JSON would overflow the stack.
inline std::string described(const json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object()) return "an object";
  if (value->is_array()) return "an array";
  return value->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60);
}

inline std::string expected(const std::string& what, const std::string& type, const json* got) {
  return what + ": expected " + type + ", got " + described(got);
}

// Returns null if `object` is not an object, or has no such member.
inline const json* member(const json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

inline std::optional<double> number_of(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return std::abs(number) <= static_cast<double>(FLT_MAX) ? std::optional(number) : std::nullopt;
}

inline std::optional<int64_t> integer_of(const json& value) {
  const std::optional<double> number = number_of(value);
  // Reject numbers from 2^53 on: a double does not represent every integer there.
  if (!number || std::abs(*number) >= 9007199254740992.0 || *number != std::floor(*number)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

inline std::optional<bool> flag_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  const std::optional<int64_t> integer = integer_of(value);
  return integer == 0 || integer == 1 ? std::optional(integer == 1) : std::nullopt;
}

// True if an attribute is not used: null, false, 0 or -1.
inline bool is_unset(const json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  const std::optional<double> number = number_of(value);
  return number == 0.0 || number == -1.0;
}

struct Tolerance {
  double atol = 0, rtol = 0;
};

// Returns nullopt unless atol and rtol are present, finite and not negative.
inline std::optional<Tolerance> tolerance_of(const json& value) {
  Tolerance result;
  for (const auto& [name, number] : {std::pair{"atol", &result.atol}, {"rtol", &result.rtol}}) {
    const json* const given = member(value, name);
    const std::optional<double> read = given != nullptr ? number_of(*given) : std::nullopt;
    if (!read || *read < 0) return std::nullopt;
    *number = *read;
  }
  return result;
}

// ---- A case. Its accessors require types that problem_in() has checked. ----

class Case {
 public:
  Case(const json& description, const Safetensors& tensors)
      : description_(description), tensors_(tensors) {}

  const json& attrs() const { return *member(description_, "attrs"); }
  const json& inputs() const { return *member(description_, "inputs"); }
  const json& outputs() const { return *member(description_, "outputs"); }

  bool is_set(const char* attribute) const { return given(attribute) != nullptr; }
  bool flag(const char* attribute) const {
    const json* const value = given(attribute);
    return value != nullptr && flag_of(*value).value_or(false);
  }
  int64_t integer(const char* attribute, int64_t otherwise) const {
    const json* const value = given(attribute);
    return value == nullptr ? otherwise : integer_of(*value).value_or(otherwise);
  }
  double number(const char* attribute, double otherwise) const {
    const json* const value = given(attribute);
    return value == nullptr ? otherwise : number_of(*value).value_or(otherwise);
  }
  std::string text(const char* attribute, const char* otherwise) const {
    const json* const value = given(attribute);
    return value == nullptr || !value->is_string() ? otherwise : value->get<std::string>();
  }
  // Returns null if the attribute is not set.
  const json* given(const char* attribute) const {
    const json* const value = member(attrs(), attribute);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  bool has_input(const char* input) const { return inputs().contains(input); }
  bool has_output(const char* output) const { return outputs().contains(output); }

  // Returns null if the case has no such input.
  const SafetensorsEntry* input(const char* argument) const {
    return has_input(argument) ? find(*member(inputs(), argument)) : nullptr;
  }
  const SafetensorsEntry* find(const json& tensor) const {
    return tensor.is_string() ? tensors_.find(tensor.get<std::string>()) : nullptr;
  }

  // Empty, with rank 0, if the case has no such input.
  Values floats(const char* argument) const { return floats_of(input(argument)); }
  static Values floats_of(const SafetensorsEntry* entry) {
    Values values;
    if (entry == nullptr || entry->type != SafetensorsEntry::Type::kF32) return values;
    values = Values(entry->shape);
    if (!values.data.empty()) {
      std::memcpy(values.data.data(), entry->data.data(), entry->data.size());
    }
    return values;
  }

  // Empty if the case has no such input.
  std::vector<int32_t> integers(const char* argument) const {
    const SafetensorsEntry* const entry = input(argument);
    if (entry == nullptr || entry->type != SafetensorsEntry::Type::kI32) return {};
    std::vector<int32_t> values(static_cast<size_t>(entry->shape.elements()));
    if (!values.empty()) std::memcpy(values.data(), entry->data.data(), entry->data.size());
    return values;
  }

  Tolerance tolerance(const std::string& output) const {
    const json* const tighter = member(description_, "output_tolerance");
    const json* value = tighter != nullptr ? member(*tighter, output) : nullptr;
    if (value == nullptr || value->is_null()) value = member(description_, "tolerance");
    return tolerance_of(*value).value_or(Tolerance{});
  }

 private:
  const json& description_;
  const Safetensors& tensors_;
};

// Returns the case's `align`; nullopt if this runner does not know it.
inline std::optional<Causal> alignment_of(const Case& c) {
  const std::string align = c.text("align", "top_left");
  if (align == "top_left") return Causal::top_left();
  if (align == "bottom_right") return Causal::bottom_right();
  if (align == "bottom_right_kv_len") return Causal::bottom_right_of_length();
  if (align == "explicit" && c.is_set("offset")) return Causal::at_offset(c.integer("offset", 0));
  return std::nullopt;
}

inline std::string unknown_alignment(const Case& c) {
  const std::string align = c.text("align", "top_left");
  return "not supported yet: align " + align + (align == "explicit" ? " without an offset" : "");
}

// Pads a shape with leading 1s to four axes, because masks are aligned at the last axis.
inline Dims of_rank_four(const Dims& shape) {
  Dims result;
  for (int axis = shape.rank(); axis < 4; ++axis) result.push_back(1);
  for (int axis = 0; axis < shape.rank(); ++axis) result.push_back(shape[axis]);
  return result;
}

// Operations in conformance_attention.cc.
Outcome run_attention(const Case& c, Context& context);
Outcome run_attention_grad(const Case& c, Context& context);
Outcome run_attention_varlen(const Case& c, Context& context);
Outcome run_softmax(const Case& c, Context& context);

// Operation in conformance_onnx.cc.
Outcome run_onnx_attention(const Case& c, Context& context);

// Operations in conformance_modules.cc.
Outcome run_heads_concat(const Case& c, Context& context);
Outcome run_multihead_attention(const Case& c, Context& context);
Outcome run_multihead_attention_grad(const Case& c, Context& context);
Outcome run_attention_only_transformer(const Case& c, Context& context);
Outcome run_gpt2_block(const Case& c, Context& context);

}  // namespace multihead::conformance
