// Models in a team, whose members are threads here: each has a share of the matrices and caches,
// and they give the bits of one instance.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/golden_models.h"
#include "models/loader.h"
#include "models/session.h"
#include "multihead/models.h"
#include "multihead/safetensors.h"
#include "support/little_endian.h"
#include "support/random_case.h"
#include "support/thread_team.h"

namespace multihead {
namespace {

using models::Model;
using models::ModelLoader;
using models::OpenOptions;
using models::Session;
using testing::in_team;
using testing::kMembers;
using testing::logits_of;
using testing::model_folder;

constexpr int64_t kWider = 16;

// A golden model with many times its widths and random numbers.
struct WideModel {
  models::Config config;
  std::vector<models::StoredTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
};

std::vector<std::byte> bytes_of(const std::vector<float>& numbers) {
  return testing::little_endian(std::as_bytes(std::span(numbers)), sizeof(float));
}

void make_wide(const std::string& name, WideModel& wide) {
  ASSERT_TRUE(models::read_config(model_folder(name) + "/config.json", wide.config).ok());
  for (const char* width : {"hidden_size", "intermediate_size", "n_embd", "n_inner", "vocab_size",
                            "head_dim", "pooler_hidden_size"}) {
    const auto found = wide.config.find(width);
    if (found != wide.config.end()) found->second.number *= kWider;
  }
  Safetensors file;
  ASSERT_TRUE(Safetensors::read(model_folder(name) + "/model.safetensors", file).ok());
  testing::Random random(1);
  for (const auto& [tensor, entry] : file.entries()) {
    models::StoredTensor stored{tensor, "F32", {}};
    for (int axis = 0; axis < entry.shape.rank(); ++axis) {
      const bool positions = axis == 0 && (tensor.find("wpe") != std::string::npos ||
                                           tensor.find("rel_embeddings") != std::string::npos);
      stored.shape.push_back(entry.shape[axis] * (positions ? 1 : kWider));
    }
    wide.bytes.push_back(bytes_of(random.floats(stored.shape.elements(), -0.1F, 0.1F)));
    wide.tensors.push_back(std::move(stored));
  }
}

// Loads the share of a member, or the whole model without a team, in pieces of `piece` bytes.
Model load(const WideModel& wide, const OpenOptions& options, const engine::Team* team,
           size_t piece, int64_t& bytes) {
  ModelLoader loader;
  Model model;
  Status status = ModelLoader::Internals::create(wide.config, wide.tensors, options, team, loader);
  EXPECT_TRUE(status.ok()) << status.message();
  bytes = loader.bytes(false);
  for (const size_t tensor : loader.needed()) {
    std::span<const std::byte> rest = wide.bytes[tensor];
    while (!rest.empty()) {
      const auto next = rest.first(std::min(rest.size(), piece));
      status = loader.give(tensor, next);
      EXPECT_TRUE(status.ok()) << status.message();
      rest = rest.subspan(next.size());
    }
  }
  status = loader.finish(model);
  EXPECT_TRUE(status.ok()) << status.message();
  return model;
}

TEST(ModelInATeam, GivesTheBitsOfOneWithAShareOfTheMatrices) {
  const std::vector<int32_t> ids = {3, 14, 15, 92, 65, 35};
  // Transposed and tied; interleaved q, k and v; q, k and v as one; and each by itself.
  for (const char* name :
       {"gpt2", "gpt_neox", "phi3", "llama3", "gptj", "olmo", "glm", "deberta_v3"}) {
    WideModel wide;
    make_wide(name, wide);
    for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kInt8}) {
      // Pieces that end inside a row, and pieces that hold many rows.
      for (const size_t piece : {size_t{1001}, size_t{1} << 20}) {
        Context alone(1);
        int64_t whole = 0;
        const OpenOptions options{.weights = type};
        const std::vector<float> expected =
            logits_of(load(wide, options, nullptr, piece, whole), ids, alone);
        std::array<int64_t, kMembers> held{};
        const auto results = in_team([&](Context& context) {
          const engine::Team* const team = engine::team_of(context);
          const Model model =
              load(wide, options, team, piece, held[static_cast<size_t>(team->rank())]);
          return logits_of(model, ids, context);
        });
        for (const std::vector<float>& actual : results) EXPECT_EQ(expected, actual) << name;
        int64_t sum = 0;
        for (const int64_t bytes : held) {
          EXPECT_LT(bytes, whole / 2) << name;
          sum += bytes;
        }
        EXPECT_GE(sum, whole) << name;
      }
    }
  }
}

TEST(ModelInATeam, SessionsStoreAShareOfTheHeads) {
  // The caches grow after the prompt. Gemma 2's layers with a window have ring caches.
  std::vector<int32_t> ids(67);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>((7 * i + 3) % 97);
  for (const char* name :
       {"gpt2", "gemma2", "llama3", "gptj", "olmo", "granite", "cohere2", "arcee"}) {
    WideModel wide;
    make_wide(name, wide);
    for (const DType cache_type : {DType::kF32, DType::kInt8}) {
      std::array<int64_t, kMembers> stored{};
      int64_t whole = 0, kv_heads = 0;
      // The logits after a prompt and after each of the tokens that follow.
      const auto steps = [&](Context& context, int64_t& bytes) {
        engine::Team* const team = engine::team_of(context);
        int64_t held = 0;
        const Model model = load(wide, {}, team, 1 << 20, held);
        Session session;
        Status status = Session::Internals::create(
            model, {.capacity = 96, .cache_type = cache_type}, team, session);
        EXPECT_TRUE(status.ok()) << status.message();
        const int64_t vocabulary = model.info().vocab_size;
        std::vector<float> all;
        for (size_t begin = 0, end = 61; end <= ids.size(); begin = end, ++end) {
          std::vector<float> logits(static_cast<size_t>(vocabulary));
          status = session.append(std::span(ids).subspan(begin, end - begin),
                                  {logits.data(), {vocabulary}}, context);
          EXPECT_TRUE(status.ok()) << status.message();
          all.insert(all.end(), logits.begin(), logits.end());
        }
        bytes = session.bytes();
        if (team == nullptr) kv_heads = model.info().num_kv_heads;
        return all;
      };
      Context alone(1);
      const std::vector<float> expected = steps(alone, whole);
      for (const std::vector<float>& actual : in_team([&](Context& context) {
             const auto rank = static_cast<size_t>(engine::team_of(context)->rank());
             return steps(context, stored[rank]);
           })) {
        EXPECT_EQ(expected, actual) << name;
      }
      for (const int64_t bytes : stored) {
        if (kv_heads > 1) {
          EXPECT_LT(bytes, whole) << name;
        }
      }
    }
  }
}

// Where the columns of the heads are whole blocks of linear(), members exchange no queries, keys
// and values, unless edits change them: these see all heads.
TEST(ModelInATeam, SessionsExchangeFourTimesInALayer) {
  WideModel wide;
  make_wide("llama3", wide);
  wide.config["num_attention_heads"].number = 2 * testing::kMembers;
  wide.config["num_key_value_heads"].number = testing::kMembers;
  wide.config["head_dim"].number = 64;
  testing::Random random(3);
  for (size_t i = 0; i < wide.tensors.size(); ++i) {
    models::StoredTensor& tensor = wide.tensors[i];
    const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    if (is("q_proj.weight")) tensor.shape[0] = 128 * testing::kMembers;
    if (is("k_proj.weight") || is("v_proj.weight")) tensor.shape[0] = 64 * testing::kMembers;
    if (is("o_proj.weight")) tensor.shape[1] = 128 * testing::kMembers;
    wide.bytes[i] = bytes_of(random.floats(tensor.shape.elements()));
  }
  const std::vector<float> vector = random.floats(64);
  using Action = models::Edit::Action;
  std::vector<models::Edit> edits;
  const auto steps = [&](Context& context) {
    engine::Team* const team = engine::team_of(context);
    int64_t held = 0;
    const Model model = load(wide, {}, team, 1 << 20, held);
    Session session;
    EXPECT_TRUE(
        Session::Internals::create(model, {.capacity = 16, .edits = edits}, team, session).ok());
    const auto vocabulary = static_cast<size_t>(model.info().vocab_size);
    std::vector<float> all;
    for (const std::vector<int32_t>& ids : {std::vector<int32_t>{3, 14, 15, 92, 6}, {5}, {35}}) {
      std::vector<float> logits(vocabulary);
      testing::exchanges = 0;
      EXPECT_TRUE(session.append(ids, {logits.data(), {model.info().vocab_size}}, context).ok());
      // Attention, its output, and twice the MLP; before the layers the embedding, then the logits.
      if (team != nullptr) {
        const int64_t heads = edits.empty() ? 0 : 3;
        EXPECT_EQ(testing::exchanges, (4 + heads) * model.info().num_layers + 2);
      }
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  };
  Context alone(1);
  const std::vector<float> expected = steps(alone);
  for (const std::vector<float>& actual : in_team(steps)) EXPECT_EQ(expected, actual);
  edits = {
      {.site = models::Site::kQ, .action = Action::kAdd, .value = {vector.data(), {64}}},
      {.site = models::Site::kZ, .heads = {1, 5}, .action = Action::kScale, .factor = 2.0F},
      {.site = models::Site::kMlpHidden, .layer = 1, .action = Action::kScale, .factor = 0.5F}};
  const std::vector<float> edited = steps(alone);
  EXPECT_NE(edited, expected);
  for (const std::vector<float>& actual : in_team(steps)) EXPECT_EQ(edited, actual);
}

// A matrix of two blocks leaves a member without any of its rows.
TEST(ModelInATeam, WorksForAMemberWithoutRows) {
  int64_t outputs = 1;
  while (!engine::Team::divides(outputs)) ++outputs;
  WideModel wide;
  make_wide("llama3", wide);
  wide.config["vocab_size"].number = static_cast<double>(outputs);
  testing::Random random(2);
  for (size_t i = 0; i < wide.tensors.size(); ++i) {
    models::StoredTensor& tensor = wide.tensors[i];
    if (tensor.name != "lm_head.weight" && tensor.name != "model.embed_tokens.weight") continue;
    tensor.shape = {outputs, tensor.shape[1]};
    wide.bytes[i] = bytes_of(random.floats(tensor.shape.elements()));
  }
  const std::vector<int32_t> ids = {3, 1, 4};
  Context alone(1);
  int64_t bytes = 0;
  const std::vector<float> expected =
      logits_of(load(wide, {}, nullptr, 1 << 20, bytes), ids, alone);
  for (const std::vector<float>& actual : in_team([&](Context& context) {
         int64_t held = 0;
         return logits_of(load(wide, {}, engine::team_of(context), 1 << 20, held), ids, context);
       })) {
    EXPECT_EQ(expected, actual);
  }
}

}  // namespace
}  // namespace multihead
