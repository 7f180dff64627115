#include "conformance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "conformance_case.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {

std::string Case::unused() const {
  for (const auto& [name, value] : (*this)["inputs"].items()) {
    if (!used_.contains("input " + name)) return "input " + name;
  }
  const auto attributes = description_.find("attrs");
  if (attributes == description_.end()) return {};
  for (const auto& [name, value] : attributes->items()) {
    const bool is_set = !(value.is_null() || value == false || value == 0 || value == -1);
    if (is_set && !used_.contains("attribute " + name)) return "attribute " + name;
  }
  return {};
}

std::string compare(const std::string& output, const std::vector<float>& golden,
                    const std::vector<float>& result, Tolerance tolerance,
                    const std::vector<uint8_t>& mask, double& worst) {
  if (golden.empty() || golden.size() != result.size()) {
    return output + ": expected " + std::to_string(golden.size()) + " numbers of F32, got " +
           std::to_string(result.size());
  }
  const size_t width = mask.empty() ? 1 : result.size() / mask.size();
  for (size_t i = 0; i < result.size(); ++i) {
    if (!mask.empty() && mask[i / width] == 0) continue;
    const auto g = static_cast<double>(golden[i]);
    const auto r = static_cast<double>(result[i]);
    const double most = tolerance.atol + tolerance.rtol * std::abs(g);
    if (std::isinf(g) ? r != g : !(std::abs(r - g) <= most)) {
      return output + "[" + std::to_string(i) + "]: expected " + std::to_string(g) + ", got " +
             std::to_string(r) + " (atol " + json(tolerance.atol).dump() + ")";
    }
    if (std::isfinite(g) && most > 0) worst = std::max(worst, std::abs(r - g) / most);
  }
  return {};
}

namespace {

// Operations by their names in the manifests.
const std::map<std::string, Outcome (*)(const Case&, Context&)>& operations() {
  static const std::map<std::string, Outcome (*)(const Case&, Context&)> kOperations = {
      {"attention", run_attention},
      {"attention_grad", run_attention_grad},
      {"attention_varlen", run_attention_varlen},
      {"onnx_attention", run_onnx_attention},
      {"softmax_masked", run_softmax},
      {"heads_concat", run_heads_concat},
      {"multihead_attention", run_multihead_attention},
      {"multihead_attention_grad", run_multihead_attention_grad},
      {"attention_only_transformer", run_attention_only_transformer},
      {"gpt2_block", run_gpt2_block},
  };
  return kOperations;
}

// Returns why the case fails, or an empty string.
std::string run_case(const json& description, const Safetensors& tensors, Context& context) {
  const Case c(description, tensors);
  const auto found = operations().find(c["op"].get<std::string>());
  if (found == operations().end()) return "not supported yet: op " + c["op"].get<std::string>();
  const Outcome outcome = found->second(c, context);
  if (!outcome.failure.empty()) return outcome.failure;
  if (std::string unused = c.unused(); !unused.empty()) return unsupported(unused).failure;
  size_t compared = 0;
  for (const auto& [output, tensor] : c["outputs"].items()) {
    const auto computed = outcome.outputs.find(output);
    if (computed == outcome.outputs.end()) return output + " was not computed";
    const Values golden = Case::floats_of(c.golden(output));
    if (!(golden.shape == computed->second.shape)) {
      return output + ": expected " + golden.shape.to_string() + ", got " +
             computed->second.shape.to_string();
    }
    if (golden.data.empty()) continue;
    compared += golden.data.size();
    const json tighter = description.value("output_tolerance", json());
    const json own = tighter.is_object() ? tighter.value(output, json()) : json();
    const json& tolerance = own.is_null() ? c["tolerance"] : own;
    double worst = 0;
    std::string difference = compare(
        output, golden.data, computed->second.data,
        {tolerance.at("atol").get<double>(), tolerance.at("rtol").get<double>()}, {}, worst);
    if (!difference.empty()) return difference;
  }
  return compared == 0 ? "outputs: nothing to compare" : "";
}

void run_manifest(const std::filesystem::path& path, Context& context,
                  std::vector<CaseResult>& results) {
  const std::string file = path.stem().string();
  std::ifstream stream(path, std::ios::binary);
  const json manifest = json::parse(stream, nullptr, false);
  const json cases = manifest.is_object() ? manifest.value("cases", json()) : json();
  if (!cases.is_array() || cases.empty()) {
    results.push_back({file, "manifest", "not a conformance manifest"});
    return;
  }
  Safetensors tensors;
  const std::string name = manifest.value("file", file + ".safetensors");
  const Status status = Safetensors::read((path.parent_path() / name).string(), tensors);
  if (!status.ok()) {
    results.push_back({file, "tensors", status.message()});
    return;
  }
  for (const json& description : cases) {
    results.push_back(
        {file, description.at("name").get<std::string>(), run_case(description, tensors, context)});
  }
}

}  // namespace

std::vector<CaseResult> run_folder(const std::string& folder, Context& context) {
  if (is_model_folder(folder)) return run_model_folder(folder, context);
  std::error_code error;
  std::vector<std::filesystem::path> manifests, models;
  // Folders of models may be in a folder of their own.
  constexpr int kDeepest = 1;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry.depth() >= kDeepest) entry.disable_recursion_pending();
    if (entry.depth() == 0 && entry->path().extension() == ".json") {
      manifests.push_back(entry->path());
    }
    if (is_model_folder(entry->path().string())) models.push_back(entry->path());
  }
  if (error || (manifests.empty() && models.empty())) {
    return {{folder, "folder", error ? error.message() : "holds no .json manifest and no model"}};
  }
  std::vector<CaseResult> results;
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
