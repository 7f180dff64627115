// The arrays of sites, for tests of what reads and changes the values inside a model.
#pragma once

#include <gtest/gtest.h>
#include <cmath>
#include <span>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "models/parameters.h"
#include "multihead/models.h"
#include "support/random_case.h"

namespace multihead::testing {

// All golden models that continue text, and all others.
inline constexpr const char* kLanguageModels[] = {
    "gemma",         "gemma2",       "gemma3",     "gpt2",     "gpt_neox",   "llama3",
    "llama_dynamic", "llama_linear", "llama_yarn", "mistral",  "olmo2",      "phi3",
    "phi3_long",     "qwen2",        "qwen3",      "smollm3",  "starcoder2", "arcee",
    "cohere",        "cohere2",      "ernie4_5",   "exaone4",  "glm",        "glm4",
    "gpt_neo",       "gptj",         "granite",    "helium",   "hunyuan",    "olmo",
    "olmo3",         "opt",          "phi",        "seed_oss", "stablelm",   "stablelm_12b",
    "bloom",         "gpt_bigcode",  "nanochat"};
inline constexpr const char* kOtherModels[] = {"albert",
                                               "bert",
                                               "bert_classes",
                                               "bert_masked",
                                               "bert_tokens",
                                               "deberta_classes",
                                               "deberta_v3",
                                               "distilbert_classes",
                                               "electra",
                                               "electra_classes",
                                               "embeddinggemma",
                                               "esm",
                                               "eurobert",
                                               "gte",
                                               "jina_v2",
                                               "modernbert",
                                               "modernbert_classes",
                                               "modernbert_tokens",
                                               "mistral_classes",
                                               "mpnet",
                                               "nomic_bert",
                                               "roberta",
                                               "t5",
                                               "t5_gated",
                                               "vit",
                                               "xlm_roberta_classes"};

inline std::vector<models::Site> all_sites() {
  std::vector<models::Site> sites;
  // Sites of cross-attention are left out.
  for (int site = 0; site <= static_cast<int>(models::Site::kResidPost); ++site)
    sites.push_back(static_cast<models::Site>(site));
  return sites;
}

// Those that a model has.
inline std::vector<models::Site> sites_of(const models::Model& model) {
  std::vector<models::Site> sites = all_sites();
  const bool parallel = models::Model::Internals::of(model)->architecture.parallel;
  if (parallel) std::erase(sites, models::Site::kResidMid);
  return sites;
}

inline bool is_weights(models::Site site) {
  return site == models::Site::kScores || site == models::Site::kPattern;
}
inline bool has_heads(models::Site site) {
  return is_weights(site) || site == models::Site::kQ || site == models::Site::kK ||
         site == models::Site::kV || site == models::Site::kZ;
}

// As multihead/sites.h says.
inline Dims site_shape(const models::Model& model, models::Site site, int64_t batch,
                       int64_t tokens) {
  using models::Site;
  const models::ModelInfo& info = model.info();
  if (is_weights(site)) return {batch, info.num_heads, tokens, tokens};
  if (site == Site::kQ || site == Site::kZ) return {batch, tokens, info.num_heads, info.head_dim};
  if (has_heads(site)) return {batch, tokens, info.num_kv_heads, info.head_dim};
  if (site == Site::kMlpHidden) {
    return {batch, tokens, models::Model::Internals::of(model)->architecture.mlp};
  }
  return {batch, tokens, info.embed_dim};
}

// Numbers with their shape.
struct Numbers {
  Dims shape;
  std::vector<float> data;

  explicit Numbers(const Dims& shape_ = {0})
      : shape(shape_), data(static_cast<size_t>(shape_.elements())) {}
  Tensor tensor() { return {data.data(), shape}; }
  ConstTensor view() const { return {data.data(), shape}; }
};

using Place = std::pair<models::Site, int64_t>;
using SiteValues = std::map<Place, Numbers>;

// Inputs with memory of their own.
struct OwnInputs {
  std::vector<int32_t> ids = {};
  std::vector<float> pixels = {};
  std::vector<uint8_t> mask = {};
  int64_t batch = 1, tokens = 0;

  models::ModelInputs inputs(std::span<const models::Edit> edits = {}) const {
    return {.ids = ids, .batch = batch, .mask = mask, .pixels = pixels, .edits = edits};
  }
};

inline OwnInputs random_inputs(const models::Model& model, int64_t batch, int64_t tokens,
                               Random& random) {
  const models::ModelInfo& info = model.info();
  OwnInputs made{.batch = batch, .tokens = tokens};
  if (info.takes_pixels) {
    made.tokens = info.max_tokens;
    made.pixels = random.floats(batch * info.channels * info.image_size * info.image_size);
    return made;
  }
  made.ids.resize(static_cast<size_t>(batch * tokens));
  // From 2 on: small ids are padding in some families.
  for (int32_t& id : made.ids) id = static_cast<int32_t>(random.integer(2, info.vocab_size - 1));
  return made;
}

// One pass: the last hidden states, and the values of places.
inline Numbers run_and_capture(const models::Model& model, const OwnInputs& in,
                               std::span<const models::Edit> edits,
                               const std::vector<Place>& places, SiteValues& values,
                               Context& context) {
  std::vector<models::Capture> captures;
  for (const Place& place : places) {
    Numbers& numbers = values[place];
    numbers = Numbers(site_shape(model, place.first, in.batch, in.tokens));
    captures.push_back({.site = place.first, .layer = place.second, .out = numbers.tensor()});
  }
  Numbers state({in.batch, in.tokens, model.info().embed_dim});
  const Status status = model.forward(
      in.inputs(edits), {.last_hidden_state = state.tensor(), .captures = captures}, context);
  EXPECT_TRUE(status.ok()) << status.message();
  return state;
}

// Places of all sites in all layers, in the order of computation.
inline std::vector<Place> places_of(const models::Model& model) {
  std::vector<Place> places;
  for (int64_t layer = 0; layer < model.info().num_layers; ++layer) {
    for (const models::Site site : sites_of(model)) places.emplace_back(site, layer);
  }
  return places;
}

// A copy that can be the value of Edit::Action::kReplace: hidden scores, which stay hidden, are 0.
inline Numbers finite_copy(Numbers numbers) {
  for (float& number : numbers.data) {
    if (!(number > -INFINITY)) number = 0.0F;
  }
  return numbers;
}

}  // namespace multihead::testing
