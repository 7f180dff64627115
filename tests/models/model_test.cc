// Model::forward(), attentions() and embed(): interventions, padding, and what wrong calls get. The
// numbers of whole models are compared by native/conformance_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/golden_models.h"
#include "multihead/models.h"

namespace multihead {
namespace {

using models::HeadMap;
using models::Model;
using models::ModelInputs;
using models::ModelOutputs;
using models::Pooling;
using testing::golden_ids;
using testing::logits_of;
using testing::model_folder;
using testing::open_golden;

TEST(Model, ResultsHaveTheSameBitsWithAnyNumberOfThreads) {
  Context one(1), two(2);
  for (const char* name : {"gemma2", "gpt_neox", "llama3"}) {
    const Model model = open_golden(name);
    const std::vector<int32_t> ids = golden_ids(name, "long.input_ids");
    EXPECT_EQ(logits_of(model, ids, one), logits_of(model, ids, two)) << name;
  }
}

TEST(Model, TheLastTokensLogitsAloneAreTheSame) {
  Context context(1);
  const Model model = open_golden("qwen2");
  const std::vector<int32_t> ids = golden_ids("qwen2", "long.input_ids");
  const int64_t vocabulary = model.info().vocab_size;
  const std::vector<float> all = logits_of(model, ids, context);
  std::vector<float> last(static_cast<size_t>(vocabulary));
  ASSERT_TRUE(
      model.forward({.ids = ids}, {.logits = {last.data(), {1, 1, vocabulary}}}, context).ok());
  for (size_t i = 0; i < last.size(); ++i) {
    EXPECT_NEAR(last[i], all[all.size() - last.size() + i], 1e-5F);
  }
}

// With all heads muted, a token's state depends on this token alone.
TEST(Model, HeadsCanBeMutedAndScaled) {
  Context context(1);
  const Model model = open_golden("gpt2");
  const models::ModelInfo& info = model.info();
  const std::vector<int32_t> ids = golden_ids("gpt2", "short.input_ids");
  const auto tokens = static_cast<int64_t>(ids.size());
  const auto run = [&](const std::vector<float>& scales) {
    std::vector<float> state(static_cast<size_t>(tokens * info.embed_dim));
    const Status status =
        model.forward({.ids = ids, .head_scales = scales},
                      {.last_hidden_state = {state.data(), {1, tokens, info.embed_dim}}}, context);
    EXPECT_TRUE(status.ok()) << status.message();
    return state;
  };
  const auto count = static_cast<size_t>(info.num_layers * info.num_heads);
  const std::vector<float> plain = run({});
  EXPECT_EQ(run(std::vector<float>(count, 1.0F)), plain);
  std::vector<float> one_muted(count, 1.0F);
  one_muted[1] = 0.0F;
  EXPECT_NE(run(one_muted), plain);
  // Without attention, a token's state does not depend on the others: repeat the first one.
  const std::vector<float> mute(count, 0.0F);
  const std::vector<float> muted = run(mute);
  std::vector<int32_t> others(ids.size(), 5);
  others[0] = ids[0];
  std::vector<float> state(muted.size());
  ASSERT_TRUE(model
                  .forward({.ids = others, .head_scales = mute},
                           {.last_hidden_state = {state.data(), {1, tokens, info.embed_dim}}},
                           context)
                  .ok());
  EXPECT_TRUE(std::equal(state.begin(), state.begin() + info.embed_dim, muted.begin()));
}

TEST(Model, PaddingDoesNotChangeTheVectorOfASentence) {
  Context context(1);
  for (const char* name : {"bert", "roberta", "distilbert_classes", "mpnet", "t5", "albert"}) {
    const Model model = open_golden(name);
    const int64_t width = model.info().embed_dim;
    const std::vector<int32_t> ids = golden_ids(name, "short.input_ids");
    // Padding has id 1 in the families whose positions depend on it.
    std::vector<int32_t> padded = ids;
    padded.resize(ids.size() + 5, 1);
    std::vector<uint8_t> mask(padded.size(), 1);
    std::fill(mask.begin() + static_cast<ptrdiff_t>(ids.size()), mask.end(), uint8_t{0});
    for (const Pooling pooling : {Pooling::kMean, Pooling::kFirstToken}) {
      std::vector<float> a(static_cast<size_t>(width)), b = a;
      ASSERT_TRUE(
          model.embed({.ids = ids}, {.pooling = pooling}, {a.data(), {1, width}}, context).ok());
      ASSERT_TRUE(model
                      .embed({.ids = padded, .mask = mask}, {.pooling = pooling},
                             {b.data(), {1, width}}, context)
                      .ok());
      double squares = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(a[i], b[i], 2e-6F) << name;
        squares += static_cast<double>(a[i]) * static_cast<double>(a[i]);
      }
      EXPECT_NEAR(squares, 1.0, 1e-5) << name;
    }
  }
}

TEST(Model, ResultsThatAreNotFiniteAreRefusedWithTheirLayer) {
  Context context(1);
  const std::vector<int32_t> ids = {5, 6, 7};
  const auto broken = [](const char* name, const std::string& part) {
    return testing::open_changed(name, [&](const std::string& tensor, std::span<std::byte> bytes) {
      if (tensor.find(part) != std::string::npos) {
        testing::break_last(bytes);
      }
    });
  };
  const Model bert = broken("bert", "encoder.layer.1.output.dense.bias");
  const int64_t width = bert.info().embed_dim;
  std::vector<float> vector(static_cast<size_t>(width)), states(static_cast<size_t>(3 * width));
  const Tensor one(vector.data(), {1, width});
  EXPECT_EQ(bert.embed({.ids = ids}, {}, one, context).message(),
            "embedding: expected finite numbers, got NaN or an infinity, first in the output of "
            "layer 1");
  EXPECT_EQ(vector, std::vector<float>(vector.size())) << "embed() wrote";
  EXPECT_EQ(bert.forward({.ids = ids}, {.pooler_output = one}, context).argument(),
            "pooler_output");
  // Hidden states are given as they are.
  EXPECT_TRUE(
      bert.forward({.ids = ids}, {.last_hidden_state = {states.data(), {1, 3, width}}}, context)
          .ok());
  EXPECT_TRUE(std::isnan(states.back()));
  const Model classes = broken("bert_classes", "classifier.weight");
  std::vector<float> logits(static_cast<size_t>(classes.info().num_labels));
  const Tensor out(logits.data(), {1, classes.info().num_labels});
  EXPECT_EQ(classes.forward({.ids = ids}, {.logits = out}, context).message(),
            "logits: expected finite numbers, got NaN or an infinity, although every layer's "
            "output is finite");
}

TEST(Model, RowsOfMapsSumToOneAndSeeNoHiddenKey) {
  Context context(1);
  const Model model = open_golden("mistral");
  const std::vector<int32_t> ids = golden_ids("mistral", "long.input_ids");
  const auto tokens = static_cast<int64_t>(ids.size());
  std::vector<float> map(static_cast<size_t>(tokens * tokens));
  ASSERT_TRUE(
      model.attentions({.ids = ids}, 1, 1, {map.data(), {1, tokens, tokens}}, context).ok());
  constexpr int64_t kWindow = 5;
  for (int64_t i = 0; i < tokens; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < tokens; ++j) {
      const float weight = map[static_cast<size_t>(i * tokens + j)];
      sum += static_cast<double>(weight);
      if (j > i || j <= i - kWindow) {
        EXPECT_EQ(weight, 0.0F);
      }
    }
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST(Model, WrongCallsAreRefused) {
  Context context(1);
  const Model bert = open_golden("bert"), gpt2 = open_golden("gpt2"), vit = open_golden("vit");
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  std::vector<float> numbers(100000);
  const auto refused = [&](const Model& model, const ModelInputs& inputs,
                           const ModelOutputs& outputs) {
    const Status status = model.forward(inputs, outputs, context);
    EXPECT_FALSE(status.ok());
    return status.argument();
  };
  EXPECT_EQ(refused(Model(), {.ids = ids}, {}), "model");
  EXPECT_EQ(refused(bert, {}, {}), "ids");
  EXPECT_EQ(refused(bert, {.ids = ids, .batch = 3}, {}), "ids");
  EXPECT_EQ(refused(bert, {.ids = ids, .batch = 0}, {}), "batch");
  const std::vector<int32_t> negative = {1, -1}, unknown = {100000}, many(49, 1);
  EXPECT_EQ(refused(bert, {.ids = negative}, {}), "ids");
  EXPECT_EQ(refused(bert, {.ids = unknown}, {}), "ids");
  EXPECT_EQ(refused(bert, {.ids = many}, {}), "ids");
  const std::vector<uint8_t> mask(3, 1);
  EXPECT_EQ(refused(bert, {.ids = ids, .mask = mask}, {}), "mask");
  const std::vector<int32_t> types = {0, 1, 2, 0};
  EXPECT_EQ(refused(bert, {.ids = ids, .token_types = types}, {}), "token_types");
  EXPECT_EQ(refused(gpt2, {.ids = ids, .token_types = ids}, {}), "token_types");
  EXPECT_EQ(refused(bert, {.ids = ids, .head_scales = numbers}, {}), "head_scales");
  EXPECT_EQ(refused(bert, {.ids = ids}, {.logits = {numbers.data(), {1, 4, 10}}}), "logits");
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.logits = {numbers.data(), {1, 4, 10}}}), "logits");
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.pooler_output = {numbers.data(), {1, 16}}}),
            "pooler_output");
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.hidden_states = {numbers.data(), {2, 1, 4, 16}}}),
            "hidden_states");
  EXPECT_EQ(refused(vit, {.ids = ids}, {}), "pixels");
  const HeadMap no_layer{2, 0, {numbers.data(), {1, 4, 4}}};
  const HeadMap no_head{0, -1, {numbers.data(), {1, 4, 4}}};
  const HeadMap other_shape{0, 0, {numbers.data(), {1, 4, 5}}};
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.maps = {&no_layer, 1}}), "layer");
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.maps = {&no_head, 1}}), "head");
  EXPECT_EQ(refused(gpt2, {.ids = ids}, {.maps = {&other_shape, 1}}), "maps");
}

// An error of a layer came after the hidden states of the layers before it.
TEST(Model, NothingIsWrittenOnAnErrorOfTheArguments) {
  Context context(1);
  const Model model = open_golden("bert");
  const std::vector<int32_t> ids = {5, 6, 7};
  constexpr float kMark = 7.0F;
  std::vector<float> hidden(3 * 3 * 16, kMark), map(2 * 2 * 9, kMark), pooled(16, kMark);
  const Tensor states(hidden.data(), {3, 1, 3, 16});
  const auto refused = [&](const ModelOutputs& outputs) {
    const Status status = model.forward({.ids = ids}, outputs, context);
    EXPECT_EQ(status.code(), StatusCode::kShape) << status.message();
    for (const std::vector<float>* const memory : {&hidden, &map, &pooled}) {
      EXPECT_EQ(std::count(memory->begin(), memory->end(), kMark),
                static_cast<ptrdiff_t>(memory->size()))
          << status.message();
    }
    return status.argument();
  };
  const auto map_of = [&](const Dims& strides) {
    return HeadMap{1, 0, {map.data(), {1, 3, 3}, strides}};
  };
  for (const Dims& strides : {Dims{18, 6, 2}, Dims{9, 1, 3}, Dims{9, 2, 1}, Dims{9, 3}}) {
    const HeadMap wrong = map_of(strides);
    EXPECT_EQ(refused({.hidden_states = states, .maps = {&wrong, 1}}), "maps");
  }
  const HeadMap none{1, 0, {nullptr, {1, 3, 3}}};
  EXPECT_EQ(refused({.hidden_states = states, .maps = {&none, 1}}), "maps");
#if !defined(__EMSCRIPTEN__)  // there the package refuses overlaps
  const HeadMap same[] = {map_of({9, 3, 1}), {1, 1, {map.data() + 8, {1, 3, 3}}}};
  EXPECT_EQ(refused({.hidden_states = states, .maps = same}), "outputs");
  EXPECT_EQ(refused({.hidden_states = states, .pooler_output = {hidden.data() + 140, {1, 16}}}),
            "outputs");
#endif
  const Tensor last(nullptr, {1, 3, 16});
  EXPECT_EQ(refused({.hidden_states = {nullptr, {3, 1, 3, 16}}}), "hidden_states");
  EXPECT_EQ(refused({.hidden_states = states, .last_hidden_state = last}), "last_hidden_state");
  EXPECT_EQ(refused({.hidden_states = states, .pooler_output = {nullptr, {1, 16}}}),
            "pooler_output");
  const Model masked = open_golden("bert_masked");
  EXPECT_EQ(masked.forward({.ids = ids}, {.logits = {nullptr, {1, 3, 120}}}, context).argument(),
            "logits");
  // Rows of two maps may alternate, and rows may have gaps.
  std::vector<float> both(18);
  const HeadMap right[] = {{1, 0, {both.data(), {1, 3, 3}, {18, 6, 1}}},
                           {1, 1, {both.data() + 3, {1, 3, 3}, {18, 6, 1}}}};
  EXPECT_TRUE(model.forward({.ids = ids}, {.hidden_states = states, .maps = right}, context).ok());
}

// ALBERT projects its embeddings, also where they are as wide as its layers.
TEST(Model, EmbeddingsAsWideAsTheLayersAreProjected) {
  models::Config config;
  Safetensors file;
  ASSERT_TRUE(models::read_config(model_folder("albert") + "/config.json", config).ok());
  ASSERT_TRUE(Safetensors::read(model_folder("albert") + "/model.safetensors", file).ok());
  const auto hidden = static_cast<int64_t>(config.at("hidden_size").number);
  const auto narrow = static_cast<int64_t>(config.at("embedding_size").number);
  config.at("embedding_size") = config.at("hidden_size");
  std::vector<models::StoredTensor> tensors;
  std::vector<std::vector<float>> values;
  for (const auto& [name, entry] : file.entries()) {
    Dims shape;
    for (int axis = 0; axis < entry.shape.rank(); ++axis) {
      const bool widened = name.find("embedding") != std::string::npos ||
                           name.find("predictions") != std::string::npos;
      const bool wide = widened && entry.shape[axis] == narrow;
      shape.push_back(wide ? hidden : entry.shape[axis]);
    }
    tensors.push_back({name, "F32", shape});
    values.emplace_back(static_cast<size_t>(shape.elements()), 0.25F);
  }
  models::ModelLoader loader;
  models::Model model;
  Status status = models::ModelLoader::create(config, tensors, {}, loader);
  for (const size_t i : loader.needed()) {
    if (status.ok()) status = loader.give(i, std::as_bytes(std::span(values[i])));
  }
  if (status.ok()) status = loader.finish(model);
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<int32_t> ids{5, 6, 7};
  std::vector<float> states(static_cast<size_t>((model.info().num_layers + 1) * 3 * hidden));
  Context context(1);
  status = model.forward(
      {.ids = ids}, {.hidden_states = {states.data(), {model.info().num_layers + 1, 1, 3, hidden}}},
      context);
  EXPECT_TRUE(status.ok()) << status.message();
  // Equal numbers are normalized to 0, plus a bias of 1/4: each projection is 16 / 16 + 1/4.
  EXPECT_NEAR(states[0], static_cast<float>(hidden) / 16.0F + 0.25F, 1e-5F);
}

TEST(Model, TheTowerOfImagesIsOpenedOnRequest) {
  const Model texts = open_golden("clip");
  EXPECT_TRUE(texts.info().has_images);
  EXPECT_FALSE(texts.info().takes_pixels);
  EXPECT_NEAR(texts.info().logit_scale, std::exp(1.9), 1e-5);
  Model images = open_golden("clip", {.images = true});
  EXPECT_TRUE(images.info().takes_pixels);
  EXPECT_FALSE(images.info().has_images);
  EXPECT_EQ(images.info().vector_dim, texts.info().vector_dim);
  EXPECT_EQ(models::open(model_folder("vit"), {.images = true}, images).argument(),
            "config.json: model_type");
}

TEST(Model, OnlyAPoolerPools) {
  Context context(1);
  const Model clip = open_golden("clip"), bert = open_golden("bert");
  const std::vector<int32_t> ids = {5, 6, 7};
  std::vector<float> vector(static_cast<size_t>(clip.info().vector_dim));
  const models::EmbedOptions options{.pooling = models::Pooling::kPooler};
  const Tensor out(vector.data(), {1, clip.info().vector_dim});
  EXPECT_EQ(clip.embed({.ids = ids}, options, out, context).argument(), "pooling");
  const int64_t width = bert.info().embed_dim;
  std::vector<float> pooled(static_cast<size_t>(width)), embedded = pooled;
  ASSERT_TRUE(
      bert.forward({.ids = ids}, {.pooler_output = {pooled.data(), {1, width}}}, context).ok());
  ASSERT_TRUE(bert.embed({.ids = ids}, {.pooling = models::Pooling::kPooler, .normalize = false},
                         {embedded.data(), {1, width}}, context)
                  .ok());
  EXPECT_EQ(embedded, pooled);
}

TEST(Model, PixelsOfAnotherNumberAreRefused) {
  Context context(1);
  const Model vit = open_golden("vit");
  const std::vector<float> pixels(16);
  for (const int64_t batch : {int64_t{1}, int64_t{1} << 62}) {
    EXPECT_EQ(vit.forward({.batch = batch, .pixels = pixels}, {}, context).argument(), "pixels");
  }
}

}  // namespace
}  // namespace multihead
