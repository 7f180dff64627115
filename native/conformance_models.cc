// Golden cases of whole models: a folder with config.json, weights, cases.json and
// expected.safetensors, as transformers writes the first two. Every case runs once for each form of
// the configuration that the folder has: config.json and config_v4.json.
#include "conformance_models.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "conformance_case.h"
#include "engine/error/printable.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {
namespace {

namespace fs = std::filesystem;

struct ModelCase {
  const json& description;
  const Safetensors& expected;
  const models::Model& model;
  Context& context;
};

const SafetensorsEntry* tensor_of(const ModelCase& c, const char* table, const std::string& name) {
  const json* const names = member(c.description, table);
  const json* const tensor = names == nullptr ? nullptr : member(*names, name);
  if (tensor == nullptr || !tensor->is_string()) return nullptr;
  return c.expected.find(tensor->get<std::string>());
}

// The integers of an input; empty if the case does not have it.
std::vector<int32_t> integers(const ModelCase& c, const char* table, const std::string& name) {
  const SafetensorsEntry* const entry = tensor_of(c, table, name);
  if (entry == nullptr || entry->type != SafetensorsEntry::Type::kI32) return {};
  std::vector<int32_t> values(entry->data.size() / sizeof(int32_t));
  if (!values.empty()) std::memcpy(values.data(), entry->data.data(), entry->data.size());
  return values;
}

std::vector<float> floats(const SafetensorsEntry* entry) {
  if (entry == nullptr || entry->type != SafetensorsEntry::Type::kF32) return {};
  std::vector<float> values(entry->data.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), entry->data.data(), entry->data.size());
  return values;
}

double tolerance_of_output(const ModelCase& c, const std::string& output) {
  constexpr double kTightest = 1e-5;
  const json* const table = member(c.description, "tolerance");
  const json* const value = table == nullptr ? nullptr : member(*table, output);
  const std::optional<double> number = value == nullptr ? std::nullopt : number_of(*value);
  return number && *number >= 0 ? *number : kTightest;
}

// Compares with the golden tensor. Rows whose entry of the mask is 0 do not count; without a mask
// all rows count.
std::string compare_output(const ModelCase& c, const std::string& output,
                           const std::vector<float>& result, const std::vector<uint8_t>& mask,
                           double& worst) {
  const SafetensorsEntry* const entry = tensor_of(c, "outputs", output);
  const std::vector<float> golden = floats(entry);
  if (golden.empty()) return output + ": no golden of F32";
  if (golden.size() != result.size()) {
    return output + ": expected " + std::to_string(golden.size()) + " numbers, got " +
           std::to_string(result.size());
  }
  const double tolerance = tolerance_of_output(c, output);
  const size_t width = mask.empty() ? 1 : result.size() / mask.size();
  for (size_t i = 0; i < result.size(); ++i) {
    if (!mask.empty() && mask[i / width] == 0) continue;
    const double error = std::abs(static_cast<double>(golden[i]) - static_cast<double>(result[i]));
    if (!(error <= tolerance)) {
      return output + "[" + std::to_string(i) + "]: expected " + std::to_string(golden[i]) +
             ", got " + std::to_string(result[i]) + " (tolerance " + json(tolerance).dump() + ")";
    }
    worst = std::max(worst, error / tolerance);
  }
  return {};
}

// The arguments of one call.
struct Inputs {
  std::vector<int32_t> ids, token_types;
  std::vector<uint8_t> mask;
  std::vector<float> pixels;
  int64_t batch = 1, tokens = 0;

  models::ModelInputs view() const {
    return {.ids = ids, .batch = batch, .mask = mask, .token_types = token_types, .pixels = pixels};
  }
};

std::string read_inputs(const ModelCase& c, Inputs& inputs) {
  const models::ModelInfo& info = c.model.info();
  const char* const main = info.takes_pixels ? "pixel_values" : "input_ids";
  const SafetensorsEntry* const entry = tensor_of(c, "inputs", main);
  if (entry == nullptr || entry->shape.rank() < 2 || !fits(entry->shape)) {
    return std::string(main) + ": no such input";
  }
  inputs.batch = std::max<int64_t>(1, entry->shape[0]);
  if (info.takes_pixels) {
    inputs.pixels = floats(entry);
    inputs.tokens = info.max_tokens;
  } else {
    inputs.ids = integers(c, "inputs", main);
    inputs.tokens = entry->shape[1];
  }
  for (const int32_t value : integers(c, "inputs", "attention_mask")) {
    inputs.mask.push_back(value != 0 ? 1 : 0);
  }
  if (info.token_types > 0) inputs.token_types = integers(c, "inputs", "token_type_ids");
  return {};
}

// The number at the end of "attentions.3"; nullopt if the name does not begin with `begin`.
std::optional<int64_t> index_of(const std::string& name, const std::string& begin, int64_t most) {
  if (!name.starts_with(begin) || name.size() > begin.size() + 4) return std::nullopt;
  int64_t number = 0;
  for (size_t i = begin.size(); i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return std::nullopt;
    number = 10 * number + (name[i] - '0');
  }
  return name.size() > begin.size() && number < most ? std::optional(number) : std::nullopt;
}

std::string run_forward(const ModelCase& c, double& worst) {
  Inputs inputs;
  if (std::string problem = read_inputs(c, inputs); !problem.empty()) return problem;
  const models::ModelInfo& info = c.model.info();
  const int64_t batch = inputs.batch, tokens = inputs.tokens, width = info.embed_dim;
  const auto count = [](std::initializer_list<int64_t> extents) {
    return Dims(extents).elements();
  };
  if (!fit({{info.num_layers + 1, batch, tokens, width},
            {batch, tokens, tokens},
            {batch, tokens, std::max(info.vocab_size, info.num_labels)}})) {
    return too_large().failure;
  }
  const json& outputs = *member(c.description, "outputs");
  const auto wants = [&](const char* name) { return outputs.contains(name); };

  std::vector<float> states, last, logits, pooled;
  models::ModelOutputs results;
  std::vector<std::vector<float>> maps;
  std::vector<models::HeadMap> wanted_maps;
  states.resize(static_cast<size_t>(count({info.num_layers + 1, batch, tokens, width})));
  results.hidden_states = {states.data(), {info.num_layers + 1, batch, tokens, width}};
  last.resize(static_cast<size_t>(count({batch, tokens, width})));
  results.last_hidden_state = {last.data(), {batch, tokens, width}};
  if (wants("logits")) {
    const SafetensorsEntry* const golden = tensor_of(c, "outputs", "logits");
    if (golden == nullptr || !fits(golden->shape)) return "logits: no golden of F32";
    logits.resize(static_cast<size_t>(golden->shape.elements()));
    results.logits = {logits.data(), golden->shape};
  }
  if (wants("pooler_output")) {
    pooled.resize(static_cast<size_t>(count({batch, width})));
    results.pooler_output = {pooled.data(), {batch, width}};
  }
  maps.reserve(static_cast<size_t>(info.num_layers));
  for (int64_t layer = 0; layer < info.num_layers; ++layer) {
    if (!outputs.contains("attentions." + std::to_string(layer))) continue;
    if (!fit({{batch, info.num_heads, tokens, tokens}})) return too_large().failure;
    std::vector<float>& map =
        maps.emplace_back(static_cast<size_t>(count({batch, info.num_heads, tokens, tokens})));
    for (int64_t head = 0; head < info.num_heads; ++head) {
      wanted_maps.push_back({layer,
                             head,
                             {map.data() + head * tokens * tokens,
                              {batch, tokens, tokens},
                              {info.num_heads * tokens * tokens, tokens, 1}}});
    }
  }
  results.maps = wanted_maps;
  if (const Status status = c.model.forward(inputs.view(), results, c.context); !status.ok()) {
    return status.message();
  }

  size_t map = 0;
  for (const auto& [name, tensor] : outputs.items()) {
    std::string problem;
    const int64_t all = info.num_layers;
    if (name == "last_hidden_state") {
      // transformers' models with a head return hidden states only: the last one is compared.
      if (info.output != models::Output::kNone) {
        std::copy(states.end() - batch * tokens * width, states.end(), last.begin());
      }
      problem = compare_output(c, name, last, inputs.mask, worst);
    } else if (name == "logits") {
      // Logits of whole sequences, and of the last token alone, have no mask.
      const bool each = results.logits.shape.rank() == 3 && results.logits.shape[1] == tokens;
      problem = compare_output(c, name, logits, each ? inputs.mask : std::vector<uint8_t>(), worst);
    } else if (name == "pooler_output") {
      problem = compare_output(c, name, pooled, {}, worst);
    } else if (name == "mean_pooled" || name == "cls_pooled") {
      std::vector<float> vector(static_cast<size_t>(count({batch, width})));
      const auto pooling =
          name == "mean_pooled" ? models::Pooling::kMean : models::Pooling::kFirstToken;
      const Status status = c.model.embed(inputs.view(), {.pooling = pooling},
                                          {vector.data(), {batch, width}}, c.context);
      problem = status.ok() ? compare_output(c, name, vector, {}, worst) : status.message();
    } else if (const auto layer = index_of(name, "hidden_states.", all + 1); layer) {
      const int64_t size = batch * tokens * width;
      const auto begin = states.begin() + *layer * size;
      problem = compare_output(c, name, {begin, begin + size}, inputs.mask, worst);
    } else if (index_of(name, "attentions.", all)) {
      problem = compare_output(c, name, maps[map++], {}, worst);
    } else {
      problem = "not supported yet: output " + name;
    }
    if (!problem.empty()) return problem;
  }
  // One head by itself is the same map.
  if (wanted_maps.empty()) return {};
  const models::HeadMap& one = wanted_maps.back();
  std::vector<float> alone(static_cast<size_t>(count({batch, tokens, tokens})));
  const Status status = c.model.attentions(inputs.view(), one.layer, one.head,
                                           {alone.data(), {batch, tokens, tokens}}, c.context);
  if (!status.ok()) return status.message();
  for (int64_t b = 0; b < batch; ++b) {
    const float* const map_of_entry = one.out.data + b * one.out.strides[0];
    if (!std::equal(map_of_entry, map_of_entry + tokens * tokens,
                    alone.data() + b * tokens * tokens)) {
      return "attentions of one head: expected the bits of forward()";
    }
  }
  return {};
}

std::string run_generate(const ModelCase& c) {
  const std::vector<int32_t> prompt = integers(c, "inputs", "input_ids");
  const std::vector<int32_t> golden = integers(c, "outputs", "generated_ids");
  if (golden.empty()) return "generated_ids: no golden of I32";
  models::GenerateOptions options;
  options.max_new_tokens = static_cast<int64_t>(golden.size());
  options.stop_ids.emplace();
  std::vector<int32_t> tokens;
  const Status status = models::generate(
      c.model, prompt, options,
      [&](int32_t token) {
        tokens.push_back(token);
        return true;
      },
      c.context);
  if (!status.ok()) return status.message();
  const auto text = [](const std::vector<int32_t>& ids) {
    std::string list;
    for (const int32_t id : ids) list += (list.empty() ? "" : " ") + std::to_string(id);
    return list;
  };
  return tokens == golden ? ""
                          : "generated_ids: expected " + text(golden) + ", got " + text(tokens);
}

std::string run_model_case(const ModelCase& c, double& worst) {
  for (const char* table : {"inputs", "outputs"}) {
    const json* const names = member(c.description, table);
    if (names == nullptr || !names->is_object() || names->empty()) {
      return expected(table, "an object of names", names);
    }
  }
  const json* const op = member(c.description, "op");
  if (op != nullptr && *op == "forward") return run_forward(c, worst);
  if (op != nullptr && *op == "generate") return run_generate(c);
  return "not supported yet: op " + described(op);
}

}  // namespace

bool is_model_folder(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / "cases.json", error) &&
         fs::is_regular_file(fs::path(folder) / "config.json", error);
}

std::vector<CaseResult> run_model_folder(const std::string& folder, Context& context) {
  constexpr size_t kMostCharacters = 400;
  const std::string name = engine::printable(fs::path(folder).filename().string());
  std::vector<CaseResult> results;
  const auto report = [&](const std::string& what, const std::string& reason, double worst) {
    results.push_back({name, engine::printable(what, kMostCharacters),
                       engine::printable(reason, kMostCharacters), worst});
  };
  std::ifstream file(fs::path(folder) / "cases.json", std::ios::binary);
  const json manifest =
      json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  const json* const cases = member(manifest, "cases");
  if (cases == nullptr || !cases->is_array() || cases->empty()) {
    report("cases.json", "not a list of cases", 0);
    return results;
  }
  Safetensors tensors;
  const Status read =
      Safetensors::read((fs::path(folder) / "expected.safetensors").string(), tensors);
  if (!read.ok()) {
    report("expected.safetensors", read.message(), 0);
    return results;
  }
  for (const char* config : {"config.json", "config_v4.json"}) {
    std::error_code error;
    if (!fs::exists(fs::path(folder) / config, error)) continue;
    models::Model model;
    if (const Status status = models::open(folder, config, {}, model); !status.ok()) {
      report(config, status.message(), 0);
      continue;
    }
    for (const json& description : *cases) {
      const json* const given = member(description, "name");
      const std::string case_name =
          given != nullptr && given->is_string() ? given->get<std::string>() : "case";
      double worst = 0;
      const std::string reason = run_model_case({description, tensors, model, context}, worst);
      report(case_name + " (" + config + ")", reason, worst);
    }
  }
  return results;
}

}  // namespace multihead::conformance
