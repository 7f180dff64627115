// A golden case and the outcome of running it, shared by the sources of the runner. The files are
// the repository's own: JSON of another form than theirs ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "conformance.h"
#include "multihead/models.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {

using nlohmann::json;

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

struct Tolerance {
  double atol = 0, rtol = 0;
};

// Requires |r - g| <= atol + rtol * |g|. An infinite golden value requires the same infinity, and
// no result may be NaN. Rows whose entry of `mask` is 0 do not count; without a mask all rows do.
// Returns the first difference, or an empty string; raises `worst` to the largest error, as a part
// of its tolerance.
std::string compare(const std::string& output, const std::vector<float>& golden,
                    const std::vector<float>& result, Tolerance tolerance,
                    const std::vector<uint8_t>& mask, double& worst);

// A case remembers which attributes and inputs were looked up, because one that the runner does not
// use must fail the case.
class Case {
 public:
  Case(const json& description, const Safetensors& tensors)
      : description_(description), tensors_(tensors) {}

  const json& operator[](const char* field) const { return description_.at(field); }

  // Returns null if the attribute is not set.
  const json* given(const char* attribute) const {
    used_.insert(std::string("attribute ") + attribute);
    const auto found = (*this)["attrs"].find(attribute);
    return found == (*this)["attrs"].end() || found->is_null() ? nullptr : &*found;
  }
  bool is_set(const char* attribute) const { return given(attribute) != nullptr; }
  // Flags are true and false, or 1 and 0.
  bool flag(const char* attribute) const {
    const json* const value = given(attribute);
    return value != nullptr && *value != false && *value != 0;
  }
  int64_t integer(const char* attribute, int64_t otherwise) const {
    return static_cast<int64_t>(number(attribute, static_cast<double>(otherwise)));
  }
  double number(const char* attribute, double otherwise) const {
    const json* const value = given(attribute);
    return value == nullptr ? otherwise : value->get<double>();
  }
  std::string text(const char* attribute, const char* otherwise) const {
    const json* const value = given(attribute);
    return value == nullptr ? otherwise : value->get<std::string>();
  }
  // Counts attributes as used that say what the tensors' shapes and types say, too.
  void implied(std::initializer_list<const char*> attributes) const {
    for (const char* attribute : attributes) given(attribute);
  }

  bool has_input(const std::string& name) const { return (*this)["inputs"].contains(name); }
  bool has_field(const std::string& name) const { return description_.contains(name); }
  bool has_output(const std::string& name) const { return (*this)["outputs"].contains(name); }

  // Returns null if the case has no such input.
  const SafetensorsEntry* input(const std::string& name) const {
    used_.insert("input " + name);
    return entry("inputs", name);
  }
  const SafetensorsEntry* golden(const std::string& name) const { return entry("outputs", name); }

  // Empty, with rank 0, if the case has no such input of F32.
  Values floats(const std::string& name) const {
    return has_type(name, SafetensorsEntry::Type::kF32) ? floats_of(input(name)) : Values();
  }
  static Values floats_of(const SafetensorsEntry* entry) {
    if (entry == nullptr || entry->type != SafetensorsEntry::Type::kF32) return {};
    Values values(entry->shape);
    if (!values.data.empty()) {
      std::memcpy(values.data.data(), entry->data.data(), entry->data.size());
    }
    return values;
  }
  // Empty if the case has no such input of I32.
  std::vector<int32_t> integers(const std::string& name) const {
    return has_type(name, SafetensorsEntry::Type::kI32) ? integers_of(input(name))
                                                        : std::vector<int32_t>();
  }
  static std::vector<int32_t> integers_of(const SafetensorsEntry* entry) {
    if (entry == nullptr || entry->type != SafetensorsEntry::Type::kI32) return {};
    std::vector<int32_t> values(static_cast<size_t>(entry->shape.elements()));
    if (!values.empty()) std::memcpy(values.data(), entry->data.data(), entry->data.size());
    return values;
  }

  // Returns an input, or an attribute that is set, that nothing has looked up; an empty string if
  // there is none. Attributes without effect are null, false, 0 or -1.
  std::string unused() const;

 private:
  const SafetensorsEntry* entry(const char* table, const std::string& name) const {
    const auto found = (*this)[table].find(name);
    return found == (*this)[table].end() ? nullptr : tensors_.find(found->get<std::string>());
  }
  // An input of another type does not count as looked up.
  bool has_type(const std::string& name, SafetensorsEntry::Type type) const {
    const SafetensorsEntry* const found = entry("inputs", name);
    return found != nullptr && found->type == type;
  }

  const json& description_;
  const Safetensors& tensors_;
  mutable std::set<std::string> used_;
};

// Returns the case's `align`; nullopt if this runner does not know it.
inline std::optional<Causal> alignment_of(const Case& c) {
  const std::string align = c.text("align", "top_left");
  const int64_t offset = c.integer("offset", 0);  // for information, with other alignments
  if (align == "top_left") return Causal::top_left();
  if (align == "bottom_right") return Causal::bottom_right();
  if (align == "bottom_right_kv_len") return Causal::bottom_right_of_length();
  if (align == "explicit") return Causal::at_offset(offset);
  return std::nullopt;
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

// Whole models, in conformance_models.cc. True if the folder has config.json and cases.json.
bool is_model_folder(const std::string& folder);
std::vector<CaseResult> run_model_folder(const std::string& folder, Context& context);
// A case of lens_cases.json, in conformance_lens.cc. Returns what is wrong, or an empty string.
std::string run_lens_case(const Case& c, const Safetensors& tensors, const models::Model& model,
                          Context& context, double& worst);

}  // namespace multihead::conformance
