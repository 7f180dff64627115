// Golden cases of whole models: a folder with config.json, weights, cases.json and
// expected.safetensors, as transformers writes the first two. Every case runs once for each form of
// the configuration that the folder has: config.json and config_v4.json.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "conformance_case.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {
namespace {

namespace fs = std::filesystem;

// The arguments of one call.
struct Inputs {
  std::vector<int32_t> ids, token_types, source;
  std::vector<uint8_t> mask, source_mask;
  std::vector<float> pixels;
  int64_t batch = 1, tokens = 0, source_tokens = 0;

  models::ModelInputs view() const {
    return {.ids = ids,
            .batch = batch,
            .mask = mask,
            .token_types = token_types,
            .pixels = pixels,
            .source = source,
            .source_mask = source_mask};
  }
  // Those of the encoder alone.
  models::ModelInputs source_view() const {
    return {.ids = source, .batch = batch, .mask = source_mask};
  }
};

Inputs read_inputs(const Case& c, const models::ModelInfo& info) {
  Inputs inputs;
  if (info.takes_pixels) {
    const Values pixels = c.floats("pixel_values");
    inputs.batch = pixels.shape[0];
    inputs.tokens = info.max_tokens;
    inputs.pixels = pixels.data;
    return inputs;
  }
  const Dims shape = c.input("input_ids")->shape;
  inputs.batch = shape[0];
  inputs.tokens = shape[1];
  inputs.ids = c.integers("input_ids");
  for (const int32_t value : c.integers("attention_mask")) {
    inputs.mask.push_back(value != 0 ? 1 : 0);
  }
  if (info.has_encoder) {
    inputs.source_tokens = inputs.tokens;
    inputs.source = std::move(inputs.ids);
    inputs.source_mask = std::move(inputs.mask);
    inputs.mask = {};
    inputs.tokens = c.input("decoder_input_ids")->shape[1];
    inputs.ids = c.integers("decoder_input_ids");
  }
  // Tokenizers give types to models without such embeddings, too.
  const std::vector<int32_t> types = c.integers("token_type_ids");
  if (info.token_types > 0) inputs.token_types = types;
  return inputs;
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

// Compares the outputs of the encoder, which are those of the encoder as a model by itself.
std::string check_encoder(const Case& c, const models::Model& encoder, const Inputs& inputs,
                          const std::vector<float>& last, Context& context, double& worst) {
  const models::ModelInfo& info = encoder.info();
  const int64_t batch = inputs.batch, tokens = inputs.source_tokens;
  const Dims all{info.num_layers + 1, batch, tokens, info.embed_dim};
  const Dims maps{info.num_layers, batch, info.num_heads, tokens, tokens};
  std::vector<float> states(static_cast<size_t>(all.elements()));
  std::vector<float> weights(static_cast<size_t>(maps.elements()));
  std::vector<models::Capture> captures;
  const int64_t map = maps.elements() / std::max<int64_t>(1, info.num_layers);
  for (int64_t layer = 0; layer < info.num_layers; ++layer) {
    captures.push_back(
        {.site = models::Site::kPattern,
         .layer = layer,
         .out = {weights.data() + layer * map, {batch, info.num_heads, tokens, tokens}}});
  }
  const Status status = encoder.forward(
      inputs.source_view(), {.hidden_states = {states.data(), all}, .captures = captures}, context);
  if (!status.ok()) return status.message();
  if (!std::equal(last.begin(), last.end(), states.end() - static_cast<int64_t>(last.size()))) {
    return "encoder_last_hidden_state: expected the bits of the encoder by itself";
  }
  const auto part = [](const std::vector<float>& from, int64_t first, int64_t size) {
    return std::vector<float>(from.begin() + first, from.begin() + first + size);
  };
  for (const auto& [name, tensor] : c["outputs"].items()) {
    std::vector<float> result;
    const int64_t size = batch * tokens * info.embed_dim;
    const auto state = index_of(name, "encoder_hidden_states.", info.num_layers);
    const auto layer = index_of(name, "encoder_attentions.", info.num_layers);
    if (name == "encoder_last_hidden_state") result = last;
    if (state) result = part(states, *state * size, size);
    if (layer) result = part(weights, *layer * map, map);
    if (result.empty()) continue;
    const std::string problem = compare(name, Case::floats_of(c.golden(name)).data, result,
                                        {.atol = c["tolerance"].value(name, 1e-5)},
                                        layer ? std::vector<uint8_t>() : inputs.source_mask, worst);
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string run_forward(const Case& c, const models::Model& model, Context& context,
                        double& worst) {
  const models::ModelInfo& info = model.info();
  const Inputs inputs = read_inputs(c, info);
  const int64_t batch = inputs.batch, tokens = inputs.tokens, width = info.embed_dim;
  const auto count = [](std::initializer_list<int64_t> extents) {
    return Dims(extents).elements();
  };
  const auto compared = [&](const std::string& name, const std::vector<float>& result,
                            const std::vector<uint8_t>& mask) {
    return compare(name, Case::floats_of(c.golden(name)).data, result,
                   {.atol = c["tolerance"].value(name, 1e-5)}, mask, worst);
  };

  std::vector<float> states, last, logits, pooled, source;
  models::ModelOutputs results;
  std::vector<std::vector<float>> maps;
  std::vector<models::HeadMap> wanted_maps;
  states.resize(static_cast<size_t>(count({info.num_layers + 1, batch, tokens, width})));
  results.hidden_states = {states.data(), {info.num_layers + 1, batch, tokens, width}};
  last.resize(static_cast<size_t>(count({batch, tokens, width})));
  results.last_hidden_state = {last.data(), {batch, tokens, width}};
  if (c.has_output("logits")) {
    const Dims& shape = c.golden("logits")->shape;
    logits.resize(static_cast<size_t>(shape.elements()));
    results.logits = {logits.data(), shape};
  }
  if (c.has_output("pooler_output")) {
    pooled.resize(static_cast<size_t>(count({batch, width})));
    results.pooler_output = {pooled.data(), {batch, width}};
  }
  if (info.has_encoder) {
    source.resize(static_cast<size_t>(count({batch, inputs.source_tokens, width})));
    results.source_state = {source.data(), {batch, inputs.source_tokens, width}};
  }
  // In the order of the names of the outputs: "attentions" before "cross_attentions".
  maps.reserve(static_cast<size_t>(2 * info.num_layers));
  for (const bool cross : {false, true}) {
    const int64_t keys = cross ? inputs.source_tokens : tokens;
    for (int64_t layer = 0; layer < info.num_layers; ++layer) {
      if (!c.has_output((cross ? "cross_attentions." : "attentions.") + std::to_string(layer))) {
        continue;
      }
      std::vector<float>& map =
          maps.emplace_back(static_cast<size_t>(count({batch, info.num_heads, tokens, keys})));
      for (int64_t head = 0; head < info.num_heads; ++head) {
        wanted_maps.push_back({layer,
                               head,
                               {map.data() + head * tokens * keys,
                                {batch, tokens, keys},
                                {info.num_heads * tokens * keys, keys, 1}},
                               cross});
      }
    }
  }
  results.maps = wanted_maps;
  if (const Status status = model.forward(inputs.view(), results, context); !status.ok()) {
    return status.message();
  }

  size_t map = 0;
  for (const auto& [name, tensor] : c["outputs"].items()) {
    std::string problem;
    const int64_t all = info.num_layers;
    if (name == "last_hidden_state") {
      // transformers' models with a head return hidden states only: the last one is compared.
      if (info.output != models::Output::kNone) {
        std::copy(states.end() - batch * tokens * width, states.end(), last.begin());
      }
      problem = compared(name, last, inputs.mask);
    } else if (name == "logits") {
      // Logits of whole sequences, and of the last token alone, have no mask.
      const bool each = results.logits.shape.rank() == 3 && results.logits.shape[1] == tokens;
      problem = compared(name, logits, each ? inputs.mask : std::vector<uint8_t>());
    } else if (name == "pooler_output") {
      problem = compared(name, pooled, {});
    } else if (name == "embeds") {
      std::vector<float> vector(static_cast<size_t>(count({batch, info.vector_dim})));
      const Status status =
          model.embed(inputs.view(), {}, {vector.data(), {batch, info.vector_dim}}, context);
      problem = status.ok() ? compared(name, vector, {}) : status.message();
    } else if (name == "mean_pooled" || name == "cls_pooled") {
      std::vector<float> vector(static_cast<size_t>(count({batch, width})));
      const auto pooling =
          name == "mean_pooled" ? models::Pooling::kMean : models::Pooling::kFirstToken;
      const Status status = model.embed(inputs.view(), {.pooling = pooling},
                                        {vector.data(), {batch, width}}, context);
      problem = status.ok() ? compared(name, vector, {}) : status.message();
    } else if (const auto layer = index_of(name, "hidden_states.", all + 1); layer) {
      const int64_t size = batch * tokens * width;
      const auto begin = states.begin() + *layer * size;
      problem = compared(name, {begin, begin + size}, inputs.mask);
    } else if (index_of(name, "attentions.", all) || index_of(name, "cross_attentions.", all)) {
      problem = compared(name, maps[map++], {});
    } else if (info.has_encoder && name.starts_with("encoder_")) {
      continue;
    } else {
      problem = "not supported yet: output " + name;
    }
    if (!problem.empty()) return problem;
  }
  if (info.has_encoder) {
    const std::string problem = check_encoder(c, model.encoder(), inputs, source, context, worst);
    if (!problem.empty()) return problem;
  }
  // One head by itself is the same map.
  if (wanted_maps.empty()) return {};
  const models::HeadMap& one = wanted_maps.back();
  const int64_t keys = one.out.shape[2];
  std::vector<float> alone(static_cast<size_t>(count({batch, tokens, keys})));
  const Tensor out(alone.data(), {batch, tokens, keys});
  const Status status =
      one.cross ? model.cross_attentions(inputs.view(), one.layer, one.head, out, context)
                : model.attentions(inputs.view(), one.layer, one.head, out, context);
  if (!status.ok()) return status.message();
  for (int64_t b = 0; b < batch; ++b) {
    const float* const map_of_entry = one.out.data + b * one.out.strides[0];
    if (!std::equal(map_of_entry, map_of_entry + tokens * keys, alone.data() + b * tokens * keys)) {
      return "attentions of one head: expected the bits of forward()";
    }
  }
  return {};
}

// The rules of the model with those of a case, whose names are those of transformers.
models::TokenRules rules_of(const json& options, models::TokenRules rules) {
  const auto id = [&](const char* name, std::optional<int32_t>& value) {
    if (!options.contains(name)) return;
    value.reset();
    if (options[name].is_number()) value = options[name].get<int32_t>();
  };
  id("forced_bos_token_id", rules.forced_bos);
  id("forced_eos_token_id", rules.forced_eos);
  const auto read = [&](const char* name, auto& value) { value = options.value(name, value); };
  read("suppress_tokens", rules.suppress);
  read("begin_suppress_tokens", rules.begin_suppress);
  read("bad_words_ids", rules.bad_words);
  read("no_repeat_ngram_size", rules.no_repeat_ngram_size);
  read("encoder_no_repeat_ngram_size", rules.encoder_no_repeat_ngram_size);
  read("min_new_tokens", rules.min_new_tokens);
  if (options.contains("min_new_tokens")) rules.min_length = 0;
  return rules;
}

std::string run_generate(const Case& c, const models::Model& model, Context& context) {
  const std::vector<int32_t> prompt = c.integers("input_ids");
  const std::vector<int32_t> golden = Case::integers_of(c.golden("generated_ids"));
  if (golden.empty() || c["outputs"].size() != 1) return "outputs: expected generated_ids of I32";
  models::GenerateOptions options;
  if (c.has_field("options")) {
    const json& given = c["options"];
    const auto read = [&](const char* name, auto& value) {
      if (given.contains(name)) value.emplace(given[name]);
    };
    read("max_new_tokens", options.max_new_tokens);
    read("num_beams", options.num_beams);
    read("length_penalty", options.length_penalty);
    read("repetition_penalty", options.sampling.repetition_penalty);
    options.rules = rules_of(given, model.info().rules);
    const json stopping = given.value("early_stopping", json());
    if (stopping == false) options.early_stopping = models::EarlyStopping::kEstimate;
    if (stopping == true) options.early_stopping = models::EarlyStopping::kFirstFull;
    if (stopping == "never") options.early_stopping = models::EarlyStopping::kNever;
  } else {
    options.max_new_tokens = static_cast<int64_t>(golden.size());
    options.stop_ids.emplace();
  }
  std::vector<int32_t> tokens;
  const Status status = models::generate(
      model, prompt, options,
      [&](int32_t token) {
        tokens.push_back(token);
        return true;
      },
      context);
  if (!status.ok()) return status.message();
  const auto text = [](const std::vector<int32_t>& ids) {
    std::string list;
    for (const int32_t id : ids) list += (list.empty() ? "" : " ") + std::to_string(id);
    return list;
  };
  return tokens == golden ? ""
                          : "generated_ids: expected " + text(golden) + ", got " + text(tokens);
}

// Vectors of texts and images of a model with two towers, and their similarities.
std::string run_similarity(const Case& c, const models::Model& texts, const models::Model& images,
                           Context& context, double& worst) {
  const Inputs ids = read_inputs(c, texts.info()), pixels = read_inputs(c, images.info());
  const int64_t width = texts.info().vector_dim;
  const auto vectors = [&](const models::Model& model, const Inputs& inputs,
                           std::vector<float>& to) {
    to.resize(static_cast<size_t>(inputs.batch * width));
    return model.embed(inputs.view(), {}, {to.data(), {inputs.batch, width}}, context);
  };
  std::vector<float> of_texts, of_images, logits;
  for (const Status& status : {vectors(texts, ids, of_texts), vectors(images, pixels, of_images)}) {
    if (!status.ok()) return status.message();
  }
  for (int64_t image = 0; image < pixels.batch; ++image) {
    for (int64_t text = 0; text < ids.batch; ++text) {
      const float product = std::inner_product(of_images.begin() + image * width,
                                               of_images.begin() + (image + 1) * width,
                                               of_texts.begin() + text * width, 0.0F);
      logits.push_back(texts.info().logit_scale * product + texts.info().logit_bias);
    }
  }
  for (const auto& [name, values] : {std::pair{"text_embeds", &of_texts},
                                     {"image_embeds", &of_images},
                                     {"logits_per_image", &logits}}) {
    const std::string problem = compare(name, Case::floats_of(c.golden(name)).data, *values,
                                        {.atol = c["tolerance"].value(name, 1e-5)}, {}, worst);
    if (!problem.empty()) return problem;
  }
  return {};
}

std::string run_model_case(const Case& c, const models::Model& model, const models::Model& images,
                           Context& context, double& worst) {
  std::string problem = "not supported yet: op " + c["op"].dump();
  if (c["op"] == "forward") problem = run_forward(c, model, context, worst);
  if (c["op"] == "similarity") problem = run_similarity(c, model, images, context, worst);
  if (c["op"] == "generate") problem = run_generate(c, model, context);
  if (problem.empty() && c["outputs"].empty()) return "outputs: nothing to compare";
  const std::string unused = c.unused();
  return problem.empty() && !unused.empty() ? unsupported(unused).failure : problem;
}

}  // namespace

bool is_model_folder(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / "cases.json", error) &&
         fs::is_regular_file(fs::path(folder) / "config.json", error);
}

namespace {

// A list of cases and the tensors that it names.
struct CaseFile {
  json cases;
  Safetensors tensors;
  std::string problem;  // empty if both were read
};

CaseFile read_cases(const std::string& folder, const char* list, const char* tensors) {
  CaseFile read;
  std::ifstream file(fs::path(folder) / list, std::ios::binary);
  const json manifest = json::parse(file, nullptr, false);
  read.cases = manifest.is_object() ? manifest.value("cases", json()) : json();
  if (!read.cases.is_array() || read.cases.empty()) {
    read.problem = std::string(list) + ": not a list of cases";
    return read;
  }
  const Status status = Safetensors::read((fs::path(folder) / tensors).string(), read.tensors);
  if (!status.ok()) read.problem = status.message();
  return read;
}

}  // namespace

std::vector<CaseResult> run_model_folder(const std::string& folder, Context& context) {
  const std::string name = fs::path(folder).filename().string();
  const CaseFile cases = read_cases(folder, "cases.json", "expected.safetensors");
  if (!cases.problem.empty()) return {{name, "cases.json", cases.problem}};
  std::error_code error;
  CaseFile lens;
  if (fs::exists(fs::path(folder) / "lens_cases.json", error)) {
    lens = read_cases(folder, "lens_cases.json", "lens_expected.safetensors");
    if (!lens.problem.empty()) return {{name, "lens_cases.json", lens.problem}};
  }
  std::vector<CaseResult> results;
  for (const char* config : {"config.json", "config_v4.json"}) {
    if (!fs::exists(fs::path(folder) / config, error)) continue;
    models::Model model;
    if (const Status status = models::open(folder, config, {}, model); !status.ok()) {
      results.push_back({name, config, status.message()});
      continue;
    }
    models::Model images;
    if (model.info().has_images) {
      const Status status = models::open(folder, config, {.images = true}, images);
      if (!status.ok()) results.push_back({name, config, status.message()});
    }
    const auto add = [&](const json& description, std::string reason, double worst) {
      results.push_back({name, description["name"].get<std::string>() + " (" + config + ")",
                         std::move(reason), worst});
    };
    for (const json& description : cases.cases) {
      double worst = 0;
      std::string reason =
          run_model_case({description, cases.tensors}, model, images, context, worst);
      add(description, std::move(reason), worst);
    }
    for (const json& description : lens.cases) {
      double worst = 0;
      const Case c(description, lens.tensors);
      std::string reason = run_lens_case(c, lens.tensors, model, context, worst);
      add(description, std::move(reason), worst);
    }
  }
  return results;
}

}  // namespace multihead::conformance
