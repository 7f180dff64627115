// Every public call of modules and of safetensors while the n-th memory request fails.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "multihead/lab.h"
#include "multihead/multihead.h"
#include "multihead/safetensors.h"
#include "support/allocations.h"
#include "support/exhaustion.h"
#include "support/random_module.h"
#include "support/temporary_folder.h"

namespace multihead {
namespace {

using testing::Attempt;
using testing::bits_of;
using testing::bits_of_dict;
using testing::expect_refusal_survives_exhaustion;
using testing::expect_survives_exhaustion;
using testing::Random;
using testing::TemporaryFolder;

std::vector<float> numbers(uint64_t seed, int64_t count) {
  Random random(seed);
  return testing::sixteenths(random, count);
}

std::string bits_of_trace(const Trace& trace) {
  std::string bits;
  for (const TraceStep& step : trace.steps) {
    bits += step.name + step.shape.to_string() + bits_of(step.values);
  }
  return bits;
}

const MultiHeadAttentionConfig kPlain{.embed_dim = 8,
                                      .num_heads = 4,
                                      .num_kv_heads = 2,
                                      .sinks = true,
                                      .qk_norm = true,
                                      .rope = {.style = Rope::Style::kHalf}};
const MultiHeadAttentionConfig kAppending{
    .embed_dim = 8, .num_heads = 2, .add_bias_kv = true, .add_zero_attn = true};
const MultiHeadAttentionConfig kLatent{.embed_dim = 8,
                                       .num_heads = 2,
                                       .head_dim = 6,
                                       .bias = false,
                                       .kv_latent_dim = 5,
                                       .q_latent_dim = 4,
                                       .rope_head_dim = 2,
                                       .rope = {.style = Rope::Style::kInterleaved}};

// Parameters by name, and the memory that they view.
class Parameters {
 public:
  void add(const std::string& name, const Dims& shape) {
    auto& values = values_[name];
    values = testing::sixteenths(random_, shape.elements());
    dict_[name] = ConstTensor(values.data(), shape);
  }
  const StateDict& dict() const { return dict_; }

 private:
  Random random_{7};
  std::map<std::string, std::vector<float>> values_;
  StateDict dict_;
};

Parameters parameters_of(const MultiHeadAttentionConfig& c) {
  Parameters parameters;
  if (c.kv_latent_dim > 0) {
    parameters.add("q_a_proj.weight", {4, 8});
    parameters.add("q_a_layernorm.weight", {4});
    parameters.add("q_b_proj.weight", {12, 4});
    parameters.add("kv_a_proj_with_mqa.weight", {7, 8});
    parameters.add("kv_a_layernorm.weight", {5});
    parameters.add("kv_b_proj.weight", {2 * (4 + 4), 5});
    parameters.add("o_proj.weight", {8, 8});
    return parameters;
  }
  const int64_t heads = c.num_heads, kv_heads = c.num_kv_heads == 0 ? heads : c.num_kv_heads;
  const int64_t head = c.embed_dim / heads, rows = (heads + 2 * kv_heads) * head;
  parameters.add("in_proj_weight", {rows, c.embed_dim});
  parameters.add("in_proj_bias", {rows});
  parameters.add("out_proj.weight", {c.embed_dim, heads * head});
  parameters.add("out_proj.bias", {c.embed_dim});
  if (c.sinks) parameters.add("sinks", {heads});
  if (c.add_bias_kv) {
    parameters.add("bias_k", {1, 1, kv_heads * head});
    parameters.add("bias_v", {1, 1, kv_heads * head});
  }
  if (c.qk_norm) {
    parameters.add("q_norm.weight", {head});
    parameters.add("k_norm.weight", {head});
  }
  return parameters;
}

// A module with weights, a cache with some tokens, the trace of an earlier call, and outputs.
struct ModuleFixture {
  static constexpr int64_t kBatch = 2, kTokens = 3, kBefore = 4;
  MultiHeadAttentionConfig config;
  Parameters parameters;
  MultiHeadAttention module;
  MultiHeadAttentionCache cache;
  std::vector<float> x, out, weights, mean;
  Trace trace;
  Context context{2};

  explicit ModuleFixture(const MultiHeadAttentionConfig& config_, bool loaded = true)
      : config(config_), parameters(parameters_of(config_)) {
    EXPECT_TRUE(MultiHeadAttention::create(config, module).ok());
    x = numbers(3, kBatch * kBefore * 8);
    out.resize(static_cast<size_t>(kBatch * kTokens * 8));
    weights.resize(static_cast<size_t>(kBatch * config.num_heads * kTokens * (kBefore + kTokens)));
    mean.resize(static_cast<size_t>(kBatch * kTokens * (kBefore + kTokens)));
    if (loaded) {
      const Status status = module.load_state_dict(parameters.dict());
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }

  Status forward(bool traced, const MultiHeadAttentionOptions& options = {}) {
    const int64_t keys = kTokens + (config.add_bias_kv ? 1 : 0) + (config.add_zero_attn ? 1 : 0);
    weights.resize(static_cast<size_t>(kBatch * config.num_heads * kTokens * keys));
    mean.resize(static_cast<size_t>(kBatch * kTokens * keys));
    return module.forward({.query = {x.data(), {kBatch, kTokens, 8}}}, options,
                          {.out = {out.data(), {kBatch, kTokens, 8}},
                           .weights = {weights.data(), {kBatch, config.num_heads, kTokens, keys}},
                           .mean_weights = {mean.data(), {kBatch, kTokens, keys}}},
                          traced ? &trace : nullptr, context);
  }

  // Fills the cache and the trace in a separate context, so that the context of the tested calls is
  // unused.
  void begin(KVCacheConfig of_cache) {
    Context other{1};
    of_cache.batch = kBatch;
    Status status = module.create_cache(of_cache, cache);
    if (status.ok()) {
      std::vector<float> ignored(x.size());
      status = module.step({x.data(), {kBatch, kBefore, 8}}, {},
                           {.out = {ignored.data(), {kBatch, kBefore, 8}}}, cache, &trace, other);
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }
  Status step(bool traced) {
    const int64_t keys = cache.length() + kTokens;
    weights.resize(static_cast<size_t>(kBatch * config.num_heads * kTokens * keys));
    return module.step({x.data(), {kBatch, kTokens, 8}}, {},
                       {.out = {out.data(), {kBatch, kTokens, 8}},
                        .weights = {weights.data(), {kBatch, config.num_heads, kTokens, keys}}},
                       cache, traced ? &trace : nullptr, context);
  }

  std::string outputs() const { return bits_of(out) + bits_of(weights) + bits_of(mean); }
  std::string cached() const {
    std::string text;
    for (int64_t b = 0; b < cache.kv().config().batch; ++b) {
      text += std::to_string(cache.length(b)) + " of " + std::to_string(cache.kv().bytes()) + " ";
    }
    return text;
  }
  std::string parameter_bits() const {
    StateDict dict;
    return module.state_dict(dict).ok() ? bits_of_dict(dict) : "none";
  }
};

TEST(ExhaustedMemory, ModulesAreCreated) {
  for (const MultiHeadAttentionConfig& config : {kPlain, kLatent}) {
    expect_survives_exhaustion("create", [&]() -> Attempt {
      const auto fixture = std::make_shared<ModuleFixture>(config);
      const auto made = std::make_shared<MultiHeadAttention>();
      return {.call = [=] { return MultiHeadAttention::create(fixture->config, *made); },
              .result = [=] { return std::to_string(made->config().embed_dim); },
              .state = [=] { return std::to_string(made->config().embed_dim); }};
    });
  }
}

TEST(ExhaustedMemory, ModulesLoadAndKeepTheirWeights) {
  for (const MultiHeadAttentionConfig& config : {kPlain, kAppending, kLatent}) {
    for (const bool loaded : {false, true}) {
      expect_survives_exhaustion("load_state_dict", [&]() -> Attempt {
        const auto fixture = std::make_shared<ModuleFixture>(config, loaded);
        // The module already has weights: two times the weights that it will load.
        if (loaded) {
          Parameters doubled = fixture->parameters;
          StateDict dict = doubled.dict();
          std::vector<std::vector<float>> memory;
          for (auto& [name, tensor] : dict) {
            auto& values = memory.emplace_back(static_cast<size_t>(tensor.shape.elements()));
            for (size_t i = 0; i < values.size(); ++i) {
              values[i] = 2 * static_cast<const float*>(tensor.data)[i];
            }
            tensor.data = values.data();
          }
          EXPECT_TRUE(fixture->module.load_state_dict(dict).ok());
        }
        return {.call = [=] { return fixture->module.load_state_dict(fixture->parameters.dict()); },
                .result =
                    [=] {
                      EXPECT_TRUE(fixture->forward(false).ok());
                      return fixture->parameter_bits() + fixture->outputs();
                    },
                .state = [=] { return fixture->parameter_bits(); }};
      });
    }
    expect_survives_exhaustion("state_dict", [&]() -> Attempt {
      const auto fixture = std::make_shared<ModuleFixture>(config);
      const auto dict = std::make_shared<StateDict>();
      return {.call = [=] { return fixture->module.state_dict(*dict); },
              .result = [=] { return bits_of_dict(*dict); },
              .state = [=] { return bits_of_dict(*dict); }};
    });
    expect_survives_exhaustion("use_weights", [&]() -> Attempt {
      const auto fixture = std::make_shared<ModuleFixture>(config);
      const auto other = std::make_shared<ModuleFixture>(config, false);
      return {.call = [=] { return other->module.use_weights(fixture->module.weights()); },
              .result =
                  [=] {
                    EXPECT_TRUE(other->forward(false).ok());
                    return other->outputs();
                  },
              .state = [=] { return std::to_string(other->module.weights().out_proj.given()); }};
    });
  }
}

TEST(ExhaustedMemory, ModulesRun) {
  const std::vector<uint8_t> padding{0, 0, 1, 0, 1, 0};
  const MultiHeadAttentionOptions masked{
      .attention = {.causal = Causal::top_left()},
      .key_padding_blocked = {padding.data(), {ModuleFixture::kBatch, ModuleFixture::kTokens}}};
  for (const MultiHeadAttentionConfig& config : {kPlain, kAppending, kLatent}) {
    for (const bool traced : {false, true}) {
      expect_survives_exhaustion("forward", [&]() -> Attempt {
        const auto fixture = std::make_shared<ModuleFixture>(config);
        if (!config.add_bias_kv) fixture->begin({.capacity = 8});
        return {.call = [=] { return fixture->forward(traced, masked); },
                .result = [=] { return fixture->outputs() + bits_of_trace(fixture->trace); },
                .state = [=] { return fixture->parameter_bits() + bits_of_trace(fixture->trace); },
                .repeats_without_memory = !traced};
      });
    }
  }
}

// After a product has failed, no further products may be computed.
TEST(ExhaustedMemory, ACallEndsWhereItFails) {
  const ModuleFixture fixture(kAppending);
  // Enough rows for a product to need memory.
  const Dims shape{64, 8};
  const std::vector<float> x = numbers(1, shape.elements());
  std::vector<float> out(x.size());
  for (int64_t n = 0;; ++n) {
    Context context(1);
    const testing::FailingMemory memory(n, testing::FailingMemory::Fail::kOnce);
    const Status status = fixture.module.forward({.query = {x.data(), shape}}, {},
                                                 {.out = {out.data(), shape}}, nullptr, context);
    if (status.ok()) break;
    EXPECT_EQ(memory.later(), 0) << "after request " << n;
  }
}

TEST(ExhaustedMemory, CachesKeepTheirTokens) {
  using Layout = KVCacheConfig::Layout;
  for (MultiHeadAttentionConfig config : {kPlain, kLatent}) {
    for (const Layout layout : {Layout::kContiguous, Layout::kPaged, Layout::kRing}) {
      config.window.left = layout == Layout::kRing ? 3 : -1;
      // In a ring of 7, the three tokens of the second step overwrite older ones.
      const KVCacheConfig kept{.batch = ModuleFixture::kBatch,
                               .capacity = layout == Layout::kRing ? 7 : 16,
                               .layout = layout,
                               .type = KVCacheConfig::Type::kF16,
                               .page_size = 2};
      expect_survives_exhaustion("create_cache", [&]() -> Attempt {
        const auto fixture = std::make_shared<ModuleFixture>(config);
        return {.call = [=] { return fixture->module.create_cache(kept, fixture->cache); },
                .result = [=] { return fixture->cached(); },
                .state = [=] { return fixture->cached(); }};
      });
      for (const bool traced : {false, true}) {
        expect_survives_exhaustion("step", [&]() -> Attempt {
          const auto fixture = std::make_shared<ModuleFixture>(config);
          fixture->begin(kept);
          return {.call = [=] { return fixture->step(traced); },
                  .result =
                      [=] {
                        std::string bits = fixture->outputs() + bits_of_trace(fixture->trace);
                        EXPECT_TRUE(fixture->step(false).ok());
                        return bits + fixture->outputs() + fixture->cached();
                      },
                  .state = [=] { return fixture->cached() + bits_of_trace(fixture->trace); }};
        });
      }
      expect_survives_exhaustion("truncate", [&]() -> Attempt {
        const auto fixture = std::make_shared<ModuleFixture>(config);
        fixture->begin(kept);
        return {.call = [=] { return fixture->cache.truncate(2); },
                .result = [=] { return fixture->cached(); },
                .state = [=] { return fixture->cached(); }};
      });
    }
  }
}

// A transformer of two blocks with all optional parts.
struct TransformerFixture {
  static constexpr int64_t kWords = 9, kBatch = 2, kTokens = 3;
  Parameters parameters;
  TransformerConfig config{
      .block = {.attention = {.embed_dim = 8, .num_heads = 2}, .mlp_dim = 6, .gated = true},
      .num_layers = 2,
      .vocab_size = kWords,
      .max_positions = 12};
  Transformer model;
  TransformerBlock block;
  MultiHeadAttentionCache block_cache;
  TransformerCache cache;
  std::vector<int32_t> tokens{0, 3, 5, 8, 1, 2};
  std::vector<float> logits, hidden, x;
  std::vector<Trace> traces{2};
  Context context{2};

  explicit TransformerFixture(bool latent = false, bool loaded = true) {
    if (latent) config.block.attention = kLatent;
    const auto add_block = [&](const std::string& prefix) {
      const Parameters attention = parameters_of(config.block.attention);
      for (const auto& [name, tensor] : attention.dict()) {
        parameters.add(prefix + "self_attn." + name, tensor.shape);
      }
      for (const char* norm : {"norm1", "norm2"}) {
        parameters.add(prefix + norm + ".weight", {8});
        parameters.add(prefix + norm + ".bias", {8});
      }
      for (const char* linear : {"linear1", "linear_gate"}) {
        parameters.add(prefix + linear + ".weight", {6, 8});
        parameters.add(prefix + linear + ".bias", {6});
      }
      parameters.add(prefix + "linear2.weight", {8, 6});
      parameters.add(prefix + "linear2.bias", {8});
    };
    add_block("layers.0.");
    add_block("layers.1.");
    parameters.add("embedding.weight", {kWords, 8});
    parameters.add("position.weight", {12, 8});
    parameters.add("norm.weight", {8});
    parameters.add("norm.bias", {8});
    parameters.add("output.weight", {kWords, 8});
    logits.resize(static_cast<size_t>(kBatch * kTokens * kWords));
    hidden.resize(static_cast<size_t>(2 * kBatch * kTokens * 8));
    x = numbers(4, kBatch * kTokens * 8);
    Status status = Transformer::create(config, model);
    if (status.ok() && loaded) status = model.load_state_dict(parameters.dict());
    if (status.ok()) status = TransformerBlock::create(config.block, block);
    if (status.ok() && loaded) status = block.load_state_dict(block_parameters());
    EXPECT_TRUE(status.ok()) << status.message();
  }

  // The parameters of the first fixture.
  StateDict block_parameters() const {
    StateDict dict;
    const std::string prefix = "layers.0.";
    for (const auto& [name, tensor] : parameters.dict()) {
      if (name.starts_with(prefix)) dict[name.substr(prefix.size())] = tensor;
    }
    return dict;
  }
  TransformerOutputs outputs() {
    return {.logits = {logits.data(), {kBatch, kTokens, kWords}},
            .hidden = {hidden.data(), {2, kBatch, kTokens, 8}},
            .traces = traces};
  }
  std::string bits() const {
    return bits_of(logits) + bits_of(hidden) + bits_of_trace(traces[0]) + bits_of_trace(traces[1]);
  }
  template <class Object>
  static std::string parameter_bits(const Object& object) {
    StateDict dict;
    return object.state_dict(dict).ok() ? bits_of_dict(dict) : "none";
  }
  void begin() {
    Context other{1};
    Status status = model.create_cache(
        {.batch = kBatch, .capacity = 9, .layout = KVCacheConfig::Layout::kPaged, .page_size = 2},
        cache);
    if (status.ok()) status = model.step(tokens, {}, outputs(), cache, other);
    if (status.ok()) {
      status = block.attention().create_cache({.batch = kBatch, .capacity = 9}, block_cache);
    }
    EXPECT_TRUE(status.ok()) << status.message();
  }
};

TEST(ExhaustedMemory, TransformersLoadAndKeepTheirWeights) {
  for (const bool latent : {false, true}) {
    expect_survives_exhaustion("create", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent);
      const auto made = std::make_shared<Transformer>();
      return {.call = [=] { return Transformer::create(fixture->config, *made); },
              .result = [=] { return std::to_string(made->config().num_layers); },
              .state = [=] { return std::to_string(made->config().num_layers); }};
    });
    expect_survives_exhaustion("load_state_dict", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent, false);
      return {.call = [=] { return fixture->model.load_state_dict(fixture->parameters.dict()); },
              .result =
                  [=] {
                    EXPECT_TRUE(fixture->model
                                    .forward(fixture->tokens, TransformerFixture::kBatch, {},
                                             fixture->outputs(), fixture->context)
                                    .ok());
                    return TransformerFixture::parameter_bits(fixture->model) + fixture->bits();
                  },
              .state =
                  [=] {
                    // No fixture has weights either.
                    for (int64_t i = 0; i < 2; ++i) {
                      EXPECT_FALSE(fixture->model.layer(i).attention().weights().out_proj.given());
                    }
                    return TransformerFixture::parameter_bits(fixture->model);
                  }};
    });
    expect_survives_exhaustion("block", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent, false);
      const auto made = std::make_shared<TransformerBlock>();
      const auto dict = std::make_shared<StateDict>(fixture->block_parameters());
      return {.call =
                  [=] {
                    Status status = TransformerBlock::create(fixture->config.block, *made);
                    return status.ok() ? made->load_state_dict(*dict) : status;
                  },
              .result = [=] { return TransformerFixture::parameter_bits(*made); },
              .state = [=] { return TransformerFixture::parameter_bits(*made); }};
    });
  }
  expect_survives_exhaustion("state_dict", [&]() -> Attempt {
    const auto fixture = std::make_shared<TransformerFixture>();
    const auto dict = std::make_shared<StateDict>();
    return {.call = [=] { return fixture->model.state_dict(*dict); },
            .result = [=] { return bits_of_dict(*dict); },
            .state = [=] { return bits_of_dict(*dict); }};
  });
}

TEST(ExhaustedMemory, TransformersRun) {
  for (const bool latent : {false, true}) {
    expect_survives_exhaustion("forward", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent);
      return {.call =
                  [=] {
                    return fixture->model.forward(fixture->tokens, TransformerFixture::kBatch, {},
                                                  fixture->outputs(), fixture->context);
                  },
              .result = [=] { return fixture->bits(); }};
    });
    expect_survives_exhaustion("create_cache", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent);
      return {.call = [=] { return fixture->model.create_cache({.capacity = 5}, fixture->cache); },
              .result = [=] { return std::to_string(fixture->cache.bytes()); },
              .state = [=] { return std::to_string(fixture->cache.bytes()); }};
    });
    expect_survives_exhaustion("step", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent);
      fixture->begin();
      return {.call =
                  [=] {
                    return fixture->model.step(fixture->tokens, {}, fixture->outputs(),
                                               fixture->cache, fixture->context);
                  },
              .result =
                  [=] {
                    std::string bits = fixture->bits();
                    EXPECT_TRUE(fixture->model
                                    .step(fixture->tokens, {}, fixture->outputs(), fixture->cache,
                                          fixture->context)
                                    .ok());
                    return bits + fixture->bits();
                  },
              .state = [=] { return std::to_string(fixture->cache.length()); }};
    });
    expect_survives_exhaustion("truncate", [&]() -> Attempt {
      const auto fixture = std::make_shared<TransformerFixture>(latent);
      fixture->begin();
      return {.call = [=] { return fixture->cache.truncate(1); },
              .result = [=] { return std::to_string(fixture->cache.length()); },
              .state = [=] { return std::to_string(fixture->cache.length()); }};
    });
    // The MLP of a block may fail after its attention has appended the tokens to the cache.
    for (const bool steps : {false, true}) {
      expect_survives_exhaustion(steps ? "block's step" : "block's forward", [&]() -> Attempt {
        const auto fixture = std::make_shared<TransformerFixture>(latent);
        fixture->begin();
        const auto out = std::make_shared<std::vector<float>>(fixture->x.size());
        return {.call =
                    [=] {
                      const Dims shape{TransformerFixture::kBatch, TransformerFixture::kTokens, 8};
                      const ConstTensor x(fixture->x.data(), shape);
                      const TransformerBlockOutputs outputs{.out = {out->data(), shape}};
                      return steps ? fixture->block.step(x, {}, outputs, fixture->block_cache,
                                                         &fixture->traces[0], fixture->context)
                                   : fixture->block.forward(x, {}, outputs, &fixture->traces[0],
                                                            fixture->context);
                    },
                .result = [=] { return bits_of(*out) + bits_of_trace(fixture->traces[0]); },
                .state = [=] { return std::to_string(fixture->block_cache.length()); }};
      });
    }
  }
}

TEST(ExhaustedMemory, LatentAttentionRuns) {
  for (const LatentForm form : {LatentForm::kExpanded, LatentForm::kAbsorbed}) {
    expect_survives_exhaustion("latent_attention", [&]() -> Attempt {
      struct Call {
        std::vector<float> values = numbers(5, 200), out;
        Context context{2};
      };
      const auto call = std::make_shared<Call>();
      call->out.resize(2 * 3 * 4);
      return {.call =
                  [=] {
                    const float* const data = call->values.data();
                    return latent_attention({.q_nope = {data, {1, 2, 3, 4}},
                                             .q_rope = {data + 9, {1, 2, 3, 2}},
                                             .latent = {data + 20, {1, 5, 6}},
                                             .k_rope = {data + 50, {1, 5, 2}},
                                             .w_uk = {data + 60, {2, 4, 6}},
                                             .w_uv = {data + 108, {2, 4, 6}}},
                                            form, {}, {.out = {call->out.data(), {1, 2, 3, 4}}},
                                            call->context);
                  },
              .result = [=] { return bits_of(call->out); }};
    });
  }
}

// Returns a file that write_safetensors() wrote, with parameters of two types.
std::vector<std::byte> small_file() {
  const Parameters parameters = parameters_of(kPlain);
  const std::vector<Float16> halves(5, Float16{0x3C00});
  StateDict dict = parameters.dict();
  dict["half"] = ConstAnyTensor(halves.data(), DType::kF16, {5}, {1});
  std::vector<std::byte> bytes;
  EXPECT_TRUE(write_safetensors(dict, SafetensorsType::kAsGiven, bytes).ok());
  return bytes;
}

// Returns a file with metadata and a tensor of doubles, which parsing converts to float.
std::vector<std::byte> file_of_doubles() {
  const std::string header =
      R"({"__metadata__":{"a long enough name":"b"},"weight":{"dtype":"F64","shape":[2],)"
      R"("data_offsets":[0,16],"more":[{"a":1}]}})";
  std::vector<std::byte> bytes(8 + header.size() + 16);
  bytes[0] = static_cast<std::byte>(header.size());
  for (size_t i = 0; i < header.size(); ++i) bytes[8 + i] = static_cast<std::byte>(header[i]);
  return bytes;
}

std::string contents(const Safetensors& tensors) {
  StateDict dict;
  EXPECT_TRUE(tensors.state_dict(dict).ok());
  return bits_of_dict(dict);
}

TEST(ExhaustedMemory, SafetensorsAreReadAndWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.file("model.safetensors");
  for (const auto& bytes : {small_file(), file_of_doubles()}) {
    expect_survives_exhaustion("parse", [&]() -> Attempt {
      const auto tensors = std::make_shared<Safetensors>();
      // Each call moves one copy in, whether it succeeds or not.
      const auto copies = std::make_shared<std::vector<std::vector<std::byte>>>(3, bytes);
      return {.call =
                  [=] {
                    std::vector<std::byte> copy = std::move(copies->back());
                    copies->pop_back();
                    return Safetensors::parse(std::move(copy), *tensors);
                  },
              .result = [=] { return contents(*tensors); },
              .state = [=] { return contents(*tensors); }};
    });
    expect_survives_exhaustion("state_dict", [&]() -> Attempt {
      const auto tensors = std::make_shared<Safetensors>();
      EXPECT_TRUE(Safetensors::parse(bytes, *tensors).ok());
      const auto dict = std::make_shared<StateDict>();
      return {.call = [=] { return tensors->state_dict(*dict); },
              .result = [=] { return bits_of_dict(*dict); },
              .state = [=] { return bits_of_dict(*dict); }};
    });
    for (const bool into_file : {false, true}) {
      expect_survives_exhaustion("write", [&]() -> Attempt {
        const auto tensors = std::make_shared<Safetensors>();
        EXPECT_TRUE(Safetensors::parse(bytes, *tensors).ok());
        const auto dict = std::make_shared<StateDict>();
        EXPECT_TRUE(tensors->state_dict(*dict).ok());
        const auto written = std::make_shared<std::vector<std::byte>>();
        return {.call =
                    [=] {
                      return into_file ? write_safetensors(*dict, SafetensorsType::kF32, path)
                                       : write_safetensors(*dict, SafetensorsType::kF32, *written);
                    },
                // The dict holds views of the tensors.
                .result = [=] { return contents(*tensors) + bits_of(*written); },
                .state = [=] { return bits_of(*written); }};
      });
    }
    expect_survives_exhaustion("read", [&]() -> Attempt {
      const auto tensors = std::make_shared<Safetensors>();
      return {.call = [=] { return Safetensors::read(path, *tensors); },
              .result = [=] { return contents(*tensors); },
              .state = [=] { return contents(*tensors); }};
    });
  }
}

// Making an error's text needs memory too.
TEST(ExhaustedMemory, RefusalsAreRefusals) {
  const auto owner = std::make_shared<ModuleFixture>(kPlain);
  const auto fixture = std::make_shared<TransformerFixture>();
  owner->begin({.capacity = 8});
  fixture->begin();
  StateDict unknown;
  unknown["a name that is long enough to need memory"] = ConstTensor(owner->x.data(), {2, 2});
  const auto refuses = [&](const char* name, const std::function<Status()>& call) {
    expect_refusal_survives_exhaustion(name, call);
  };
  MultiHeadAttention module;
  refuses("create", [&] { return MultiHeadAttention::create({.embed_dim = 7}, module); });
  refuses("load_state_dict", [&] { return owner->module.load_state_dict(unknown); });
  refuses("use_weights", [&] { return owner->module.use_weights({}); });
  StateDict dict;
  refuses("state_dict", [&] { return module.state_dict(dict); });
  Trace wrong{.wanted = {"a step of a name that there is not"}};
  const Dims shape{ModuleFixture::kBatch, ModuleFixture::kTokens, 8};
  refuses("forward", [&] {
    return owner->module.forward({.query = {owner->x.data(), shape}}, {},
                                 {.out = {owner->out.data(), shape}}, &wrong, owner->context);
  });
  refuses("step", [&] {
    return owner->module.step({owner->x.data(), shape}, {}, {.out = {owner->out.data(), shape}},
                              owner->cache, &wrong, owner->context);
  });
  MultiHeadAttentionCache cache;
  refuses("create_cache", [&] { return owner->module.create_cache({.capacity = -1}, cache); });
  refuses("truncate", [&] { return owner->cache.truncate(1000); });
  Transformer model;
  refuses("create", [&] { return Transformer::create({.num_layers = -1}, model); });
  refuses("load_state_dict", [&] { return fixture->model.load_state_dict(unknown); });
  refuses("state_dict", [&] { return model.state_dict(dict); });
  refuses("forward", [&] {
    return fixture->model.forward(fixture->tokens, 5, {}, fixture->outputs(), fixture->context);
  });
  refuses("step", [&] {
    return fixture->model.step({}, {}, fixture->outputs(), fixture->cache, fixture->context);
  });
  TransformerCache other_cache;
  refuses("create_cache",
          [&] { return fixture->model.create_cache({.capacity = -1}, other_cache); });
  refuses("truncate", [&] { return fixture->cache.truncate(-1); });
  TransformerBlock block;
  refuses("create", [&] { return TransformerBlock::create({}, block); });
  refuses("load_state_dict", [&] { return fixture->block.load_state_dict(unknown); });
  refuses("forward", [&] { return fixture->block.forward({}, {}, {}, nullptr, fixture->context); });
  refuses("step", [&] {
    return fixture->block.step({}, {}, {}, fixture->block_cache, nullptr, fixture->context);
  });
  TransformerConfig config;
  refuses("gpt2_config", [&] { return gpt2_config(unknown, 2, config); });
  refuses("latent_attention",
          [&] { return latent_attention({}, LatentForm::kExpanded, {}, {}, owner->context); });
  refuses("head_statistics", [&] { return head_statistics({}, {}, {}); });
  Safetensors tensors;
  refuses("parse", [&] { return Safetensors::parse({}, tensors); });
  const std::string path = "no/such/file/in/any/folder";
  refuses("read", [&] { return Safetensors::read(path, tensors); });
  std::vector<std::byte> bytes;
  const StateDict no_utf8{{"\xFF", ConstTensor(owner->x.data(), {2})}};
  refuses("write", [&] { return write_safetensors(no_utf8, SafetensorsType::kF32, bytes); });
}

}  // namespace
}  // namespace multihead
