#include "conformance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "conformance_case.h"
#include "conformance_models.h"
#include "conformance_operations.h"
#include "engine/error/printable.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {
namespace {

// The functions below return an error as a sentence, or an empty string.

std::string rope_problem(const json& rope) {
  if (is_unset(rope)) return {};
  if (!rope.is_object()) return expected("attrs.rope", "an object", &rope);
  const json* const style = member(rope, "style");
  if (style == nullptr || !style->is_string()) return expected("rope.style", "a string", style);
  if (*style != "half" && *style != "interleaved") {
    return "not supported yet: rope style " + described(style);
  }
  for (const auto& [name, value] : rope.items()) {
    if (name == "style") continue;
    if (name == "base") {
      if (!number_of(value)) return expected("rope.base", "a number", &value);
    } else if (name == "rotary_dim") {
      if (!integer_of(value)) return expected("rope.rotary_dim", "an integer", &value);
    } else if (!is_unset(value)) {
      return "not supported yet: attribute rope." + name;
    }
  }
  return {};
}

std::string attribute_problem(const Operation& operation, const std::string& name,
                              const json& value) {
  const auto rule = std::find_if(operation.attributes.begin(), operation.attributes.end(),
                                 [&](const AttributeRule& known) { return known.name == name; });
  if (rule == operation.attributes.end()) {
    return is_unset(value) ? "" : "not supported yet: attribute " + name;
  }
  if (value.is_null()) return {};
  const auto unless = [&](bool right, const char* type) {
    return right ? std::string() : expected("attrs." + name, type, &value);
  };
  switch (rule->kind) {
    case Kind::kFlag:
      return unless(flag_of(value).has_value(), "true or false");
    case Kind::kInteger:
      return unless(integer_of(value).has_value(), "an integer");
    case Kind::kNumber:
      return unless(number_of(value).has_value(), "a number");
    case Kind::kText:
      return unless(value.is_string(), "a string");
    case Kind::kIntegers:
      return unless(value.is_array() &&
                        std::all_of(value.begin(), value.end(),
                                    [](const json& item) { return integer_of(item).has_value(); }),
                    "an array of integers");
    case Kind::kRope:
      return rope_problem(value);
  }
  return "attrs." + name;
}

// Returns the rules of an operation for `layers` layers.
Operation with_layers(const Operation& operation, int64_t layers) {
  Operation result{operation.run, {}, {}, operation.attributes};
  // Calls `add` with `name`, or with one name per layer if it contains a #.
  const auto each = [layers](const std::string& name, auto add) {
    const size_t at = name.find('#');
    if (at == std::string::npos) return add(name);
    for (int64_t layer = 0; layer < layers; ++layer) {
      std::string numbered = name;
      add(numbered.replace(at, 1, std::to_string(layer)));
    }
  };
  for (const InputRule& rule : operation.inputs) {
    each(rule.name, [&](const std::string& name) {
      result.inputs.push_back(rule);
      result.inputs.back().name = name;
    });
  }
  for (const std::string& output : operation.outputs) {
    each(output, [&](const std::string& name) { result.outputs.push_back(name); });
  }
  return result;
}

std::string tensor_problem(const std::string& argument, const json& tensor,
                           const Safetensors& tensors, const SafetensorsEntry*& entry) {
  if (!tensor.is_string()) return expected(argument, "the name of a tensor", &tensor);
  entry = tensors.find(tensor.get<std::string>());
  if (entry == nullptr) return argument + ": no tensor " + described(&tensor);
  if (!fits(entry->shape)) return argument + ": " + too_large().failure;
  return {};
}

std::string input_problem(const Operation& operation, const json& inputs,
                          const Safetensors& tensors) {
  for (const auto& [name, tensor] : inputs.items()) {
    if (std::none_of(operation.inputs.begin(), operation.inputs.end(),
                     [&argument = name](const InputRule& rule) { return rule.name == argument; })) {
      return "not supported yet: input " + name;
    }
  }
  for (const InputRule& rule : operation.inputs) {
    const json* const tensor = member(inputs, rule.name);
    if (tensor == nullptr) {
      if (rule.need == Need::kRequired) return rule.name + ": no such input";
      continue;
    }
    const SafetensorsEntry* entry = nullptr;
    if (auto problem = tensor_problem(rule.name, *tensor, tensors, entry); !problem.empty()) {
      return problem;
    }
    const std::string& name = rule.name;
    if (std::find(rule.types.begin(), rule.types.end(), entry->type) == rule.types.end()) {
      return name + ": a tensor of a type that it cannot have";
    }
    const int rank = entry->shape.rank();
    if (rank < rule.least_rank || rank > rule.most_rank) {
      return name + ": expected rank " + std::to_string(rule.least_rank) + " to " +
             std::to_string(rule.most_rank) + ", got " + entry->shape.to_string();
    }
    if (rule.need == Need::kOptional && entry->shape.elements() == 0) {
      return name + ": a tensor without elements";
    }
  }
  return {};
}

std::string output_problem(const Operation& operation, const json& outputs,
                           const Safetensors& tensors) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : outputs.items()) {
    if (std::none_of(operation.outputs.begin(), operation.outputs.end(),
                     [&output = name](const std::string& known) { return known == output; })) {
      return "not supported yet: output " + name;
    }
    const SafetensorsEntry* entry = nullptr;
    if (auto problem = tensor_problem(name, tensor, tensors, entry); !problem.empty()) {
      return problem;
    }
    if (entry->type != SafetensorsEntry::Type::kF32) return name + ": expected a golden of F32";
    elements += entry->shape.elements();
  }
  return elements > 0 ? "" : "outputs: nothing to compare";
}

// Requires |r - g| <= atol + rtol * |g|. An infinite golden value requires the same infinity, and
// no result may be NaN.
std::string compare(const Case& c, const Outcome& outcome) {
  for (const auto& [output, tensor] : c.outputs().items()) {
    const auto found = outcome.outputs.find(output);
    if (found == outcome.outputs.end()) return output + " was not computed";
    const Values golden = Case::floats_of(c.find(tensor));
    const std::vector<float>& result = found->second.data;
    if (!(golden.shape == found->second.shape) || golden.data.size() != result.size()) {
      return output + ": expected " + golden.shape.to_string() + ", got " +
             found->second.shape.to_string();
    }
    const auto [atol, rtol] = c.tolerance(output);
    for (size_t i = 0; i < result.size(); ++i) {
      const auto g = static_cast<double>(golden.data[i]);
      const auto r = static_cast<double>(result[i]);
      const bool agrees = std::isinf(g) ? r == g : std::abs(r - g) <= atol + rtol * std::abs(g);
      if (!agrees) {
        return output + "[" + std::to_string(i) + "]: expected " + std::to_string(g) + ", got " +
               std::to_string(r) + " (atol " + json(atol).dump() + ")";
      }
    }
  }
  return {};
}

// Returns the first error in a case's description, without its tensors.
std::string description_problem(const json& description) {
  if (!description.is_object()) return expected("case", "an object", &description);
  for (const char* field : {"name", "op"}) {
    const json* const value = member(description, field);
    if (value == nullptr || !value->is_string()) return expected(field, "a string", value);
  }
  for (const char* field : {"attrs", "inputs", "outputs"}) {
    const json* const value = member(description, field);
    if (value == nullptr || !value->is_object()) return expected(field, "an object", value);
  }
  constexpr const char* kTolerance = "an object of atol and rtol, neither negative";
  const json* const tolerance = member(description, "tolerance");
  if (tolerance == nullptr || !tolerance_of(*tolerance)) {
    return expected("tolerance", kTolerance, tolerance);
  }
  const json* const tighter = member(description, "output_tolerance");
  if (tighter == nullptr || tighter->is_null()) return {};
  if (!tighter->is_object()) return expected("output_tolerance", "an object", tighter);
  for (const auto& [output, value] : tighter->items()) {
    if (!value.is_null() && !tolerance_of(value)) {
      return expected("output_tolerance." + output, kTolerance, &value);
    }
  }
  return {};
}

std::string run_case(const json& description, const Safetensors& tensors, Context& context) {
  if (auto problem = description_problem(description); !problem.empty()) return problem;
  const Case c(description, tensors);
  const std::string op = member(description, "op")->get<std::string>();
  const auto found = operations().find(op);
  if (found == operations().end()) return "not supported yet: op " + op;
  for (const auto& [name, value] : c.attrs().items()) {
    auto problem = attribute_problem(found->second, name, value);
    if (!problem.empty()) return problem;
  }
  // Every layer has its own inputs, so `layers` is at most their number.
  const int64_t layers = c.integer("layers", 0);
  if (layers < 0 || layers > static_cast<int64_t>(c.inputs().size())) {
    return "attrs.layers: expected one of every layer's inputs at least, got " +
           std::to_string(layers) + " layers";
  }
  const Operation operation = with_layers(found->second, layers);
  if (auto problem = input_problem(operation, c.inputs(), tensors); !problem.empty()) {
    return problem;
  }
  if (auto problem = output_problem(operation, c.outputs(), tensors); !problem.empty()) {
    return problem;
  }
  const Outcome outcome = operation.run(c, context);
  return outcome.failure.empty() ? compare(c, outcome) : outcome.failure;
}

// Most characters of a case's name, and of the reason why it failed.
constexpr size_t kMostCharacters = 400;

// Returns false if `path` is not a readable file.
bool read_text(const std::filesystem::path& path, std::string& text) {
  constexpr uintmax_t kMostBytes = uintmax_t{1} << 28;
  // Opening a directory succeeds, so check the type first.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMostBytes) return false;
  text.resize(static_cast<size_t>(size));
  std::ifstream stream(path, std::ios::binary);
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  return static_cast<bool>(stream);
}

void run_manifest(const std::filesystem::path& path, Context& context,
                  std::vector<CaseResult>& results) {
  const std::string stem = path.stem().string(), file = engine::printable(stem);
  const auto fail = [&](const char* name, const std::string& reason) {
    results.push_back({file, name, engine::printable(reason, kMostCharacters)});
  };
  std::string text;
  if (!read_text(path, text)) return fail("manifest", "not a file that can be read");
  const json manifest = json::parse(text, nullptr, false);
  const json* const cases = member(manifest, "cases");
  if (cases == nullptr || !cases->is_array()) {
    return fail("manifest", "not a conformance manifest");
  }
  if (cases->empty()) return fail("manifest", "there are no cases in it");
  const json* const name = member(manifest, "file");
  if (name != nullptr && !name->is_string()) {
    return fail("manifest", expected("file", "a string", name));
  }
  const auto data =
      path.parent_path() / (name != nullptr ? name->get<std::string>() : stem + ".safetensors");
  Safetensors tensors;
  if (const Status status = Safetensors::read(data.string(), tensors); !status.ok()) {
    return fail("tensors", status.message());
  }
  for (size_t i = 0; i < cases->size(); ++i) {
    const json& description = (*cases)[i];
    const json* const given = member(description, "name");
    const bool named = given != nullptr && given->is_string();
    results.push_back(
        {file,
         named ? engine::printable(given->get<std::string>(), kMostCharacters)
               : "cases[" + std::to_string(i) + "]",
         engine::printable(run_case(description, tensors, context), kMostCharacters)});
  }
}

}  // namespace

std::vector<CaseResult> run_folder(const std::string& folder, Context& context) {
  if (is_model_folder(folder)) return run_model_folder(folder, context);
  std::error_code error;
  std::vector<std::filesystem::path> manifests, models;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".json") manifests.push_back(entry->path());
  }
  // Folders of models may be in a folder of their own.
  constexpr int kDeepest = 1;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kDeepest) entry.disable_recursion_pending();
    if (is_model_folder(entry->path().string())) models.push_back(entry->path());
  }
  std::vector<CaseResult> results;
  if (error || (manifests.empty() && models.empty())) {
    results.push_back({engine::printable(folder, kMostCharacters), "folder",
                       error ? error.message() : "holds no .json manifest and no model"});
    return results;
  }
  std::sort(manifests.begin(), manifests.end());
  for (const auto& path : manifests) run_manifest(path, context, results);
  std::sort(models.begin(), models.end());
  for (const auto& path : models) {
    for (CaseResult& result : run_model_folder(path.string(), context)) {
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace multihead::conformance
