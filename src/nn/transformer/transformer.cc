#include "multihead/transformer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/linear.h"
#include "nn/attention/attention_parameters.h"
#include "nn/call_memory.h"
#include "nn/transformer/initialize.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {
namespace {

using engine::validate_exact;

// Returns an error instead of throwing, because WebAssembly builds have no exceptions.
template <class T>
Status allocate_array(int64_t count, std::unique_ptr<T[]>& array) {
  array.reset(new (std::nothrow) T[static_cast<size_t>(count)]);
  if (array != nullptr) return {};
  return Status::out_of_memory(static_cast<uint64_t>(count) * sizeof(T));
}

}  // namespace

int64_t TransformerCache::bytes() const {
  int64_t sum = 0;
  for (const MultiHeadAttentionCache& layer : layers()) sum += layer.kv().bytes();
  return sum;
}

Status TransformerCache::truncate(int64_t length) {
  // All layers hold the same number of tokens, so an error comes from the first layer, before any
  // is changed.
  for (MultiHeadAttentionCache& layer : layers()) {
    MULTIHEAD_TRY(layer.truncate(length));
  }
  return {};
}

Status Transformer::create(const TransformerConfig& config, Transformer& model) {
  return engine::memory_guard([&]() -> Status {
    const struct {
      Name name;
      int64_t value, least, most;
    } extents[] = {{Name::kNumLayers, config.num_layers, 0, 1 << 16},
                   {Name::kVocabSize, config.vocab_size, 1, 1 << 26},
                   {Name::kMaxPositions, config.max_positions, 0, 1 << 26},
                   {Name::kNumReadouts, config.num_readouts, 1, 1 << 16}};
    for (const auto& [name, value, least, most] : extents) {
      if (value >= least && value <= most) continue;
      return option_error(name, Message::kRange, least, most, value);
    }
    if (config.tied_output && config.num_readouts > 1) {
      return option_error(Name::kNumReadouts, Message::kOneReadout, config.num_readouts);
    }
    MULTIHEAD_TRY(nn::validate_probability(Name::kEmbeddingDropout, config.embedding_dropout));
    Transformer made;
    made.config_ = config;
    // Checks the config even if the model has no layers.
    TransformerBlock block;
    MULTIHEAD_TRY(TransformerBlock::create(config.block, block));
    made.config_.block = block.config();
    std::unique_ptr<TransformerBlock[]> layers;
    MULTIHEAD_TRY(allocate_array(config.num_layers, layers));
    made.layers_ = std::move(layers);
    for (TransformerBlock& layer : made.layers()) {
      // Creates each layer anew. Copies would share an identity, but caches distinguish layers by
      // it.
      MULTIHEAD_TRY(TransformerBlock::create(config.block, layer));
    }
    model = std::move(made);
    return {};
  });
}

Status Transformer::load_state_dict(const StateDict& dict, ParameterNames names) {
  return engine::memory_guard([&] { return Internals::load(*this, dict, names, {}); });
}

Status Transformer::initialize(const Initialization& initialization, ParameterNames names) {
  return engine::memory_guard(
      [&] { return Internals::take_parameters(*this, nullptr, initialization, names, {}); });
}

Status Transformer::Internals::take_parameters(Transformer& model, const StateDict* dict,
                                               const Initialization& initialization,
                                               ParameterNames names, const nn::Loading& loading) {
  const TransformerConfig& config = model.config_;
  MULTIHEAD_TRY(nn::validate_initialization(initialization));
  const bool gpt2 = names == ParameterNames::kGpt2;
  const int64_t width = config.block.attention.embed_dim;
  const bool moved_from = config.num_layers > 0 && model.layers_ == nullptr;
  if (width == 0 || moved_from) return option_error(Name::kModel, Message::kCreated);
  MULTIHEAD_TRY(nn::validate_names(names, config.block.attention));
  const std::string prefix = gpt2 && dict != nullptr ? nn::gpt2_prefix(*dict) : "";
  const std::string embedding = prefix + (gpt2 ? "wte.weight" : "embedding.weight");
  const std::string position = prefix + (gpt2 ? "wpe.weight" : "position.weight");
  const std::string norm = prefix + (gpt2 ? "ln_f" : "norm");
  const std::string output = gpt2 ? "lm_head.weight" : "output.weight";

  // Loads copies of the layers, so that an error leaves this model unchanged.
  const auto blocks = model.layers();
  std::unique_ptr<TransformerBlock[]> loaded;
  std::unique_ptr<MultiHeadAttentionWeights[]> attention;
  MULTIHEAD_TRY(allocate_array(config.num_layers, loaded));
  MULTIHEAD_TRY(allocate_array(config.num_layers, attention));
  Weights weights;
  nn::ParameterList list(loading.team);
  const auto add_share = [&](const std::string& name, int64_t rows, nn::ParameterRole role,
                             ConstTensor& view) {
    list.add(name, {rows, width}, role, view, nn::DictLayout::kAsInMemory, nn::Held::kShare);
  };
  add_share(embedding, config.vocab_size, nn::ParameterRole::kEmbedding, weights.embedding);
  if (config.max_positions > 0) {
    list.add(position, {config.max_positions, width}, nn::ParameterRole::kEmbedding,
             weights.position);
  }
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    loaded[layer] = blocks[layer];
    TransformerBlock::Internals::list(loaded[layer], nn::layer_name(prefix, names, layer), names,
                                      attention[layer], list);
  }
  if (config.final_norm) {
    nn::list_norm(norm, config.block, weights.norm_weight, weights.norm_bias, list);
  }
  if (!config.tied_output) {
    add_share(output, config.num_readouts * config.vocab_size, nn::ParameterRole::kOutput,
              weights.output);
  }
  const auto ignored = [&](std::string_view name) {
    return (gpt2 && nn::is_gpt2_buffer(name)) || (config.tied_output && name == output);
  };
  auto memory = std::make_shared<Memory>();
  if (dict != nullptr) {
    MULTIHEAD_TRY(memory->parameters.load(list, *dict, loading, ignored));
  } else {
    MULTIHEAD_TRY(memory->parameters.make(list));
    nn::initialize(initialization, memory->parameters);
  }
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    MULTIHEAD_TRY(MultiHeadAttention::Internals::take_weights(
        loaded[layer].attention_, attention[layer], std::make_shared<MultiHeadAttention::Memory>(),
        {.same_values = loading.same_values}));
    loaded[layer].memory_ = memory;
  }
  MULTIHEAD_TRY(loading.agree());
  if (loading.same_values && model.memory_ != nullptr) memory->version = model.memory_->version;
  if (config.tied_output) weights.output = weights.embedding;
  model.layers_ = std::move(loaded);
  model.weights_ = weights;
  model.memory_ = std::move(memory);
  return {};
}

void Transformer::parameters_changed() {
  memory_->version = nn::new_version();
  for (TransformerBlock& layer : layers()) layer.attention_.weights_changed();
}

Status Transformer::create_cache(const KVCacheConfig& config, TransformerCache& cache) const {
  return engine::memory_guard(
      [&] { return Internals::create_cache(*this, config, nullptr, cache); });
}

Status Transformer::Internals::create_cache(const Transformer& model, const KVCacheConfig& config,
                                            const engine::Team* team, TransformerCache& cache) {
  TransformerCache made;
  const std::span<const TransformerBlock> blocks = model.layers();
  MULTIHEAD_TRY(allocate_array(model.config_.num_layers, made.layers_));
  made.count_ = blocks.size();
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    MULTIHEAD_TRY(MultiHeadAttention::Internals::create_cache(blocks[layer].attention(), config,
                                                              team, made.layers_[layer]));
  }
  cache = std::move(made);
  return {};
}

}  // namespace multihead
