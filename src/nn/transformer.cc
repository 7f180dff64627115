#include "multihead/transformer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/validate.h"
#include "nn/transformer_block.h"

namespace multihead {
namespace {

using engine::option_error;
using engine::validate_exact;

constexpr const char* kPrefix = "transformer.";

// "transformer." where the names of this dict begin so.
std::string gpt2_prefix(const StateDict& dict) {
  return dict.contains(std::string(kPrefix) + "wte.weight") ? kPrefix : "";
}

std::string layer_name(const std::string& prefix, ParameterNames names, size_t layer) {
  return prefix + (names == ParameterNames::kGpt2 ? "h." : "layers.") + std::to_string(layer) + ".";
}

}  // namespace

int64_t TransformerCache::bytes() const {
  int64_t sum = 0;
  for (const MultiHeadAttentionCache& layer : layers_) sum += layer.kv().bytes();
  return sum;
}

Status TransformerCache::rewind(int64_t length) {
  // All or none: the layers are alike, so that the first refuses for all.
  for (MultiHeadAttentionCache& layer : layers_) {
    if (Status status = layer.rewind(length); !status.ok()) return status;
  }
  return {};
}

Status Transformer::create(const TransformerConfig& config, Transformer& model) {
  const struct {
    const char* name;
    int64_t value, least, most;
  } extents[] = {{"num_layers", config.num_layers, 0, 1 << 16},
                 {"vocab_size", config.vocab_size, 1, 1 << 26},
                 {"max_positions", config.max_positions, 0, 1 << 26}};
  for (const auto& [name, value, least, most] : extents) {
    if (value >= least && value <= most) continue;
    return option_error(name, std::to_string(least) + " to " + std::to_string(most),
                        std::to_string(value));
  }
  Transformer made;
  made.config_ = config;
  // Also of a model without layers, whose widths it checks.
  TransformerBlock block;
  if (Status status = TransformerBlock::create(config.block, block); !status.ok()) return status;
  made.config_.block = block.config();
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    // Each its own: a copy would share the identity that caches know layers by.
    if (Status status = TransformerBlock::create(config.block, made.layers_.emplace_back());
        !status.ok()) {
      return status;
    }
  }
  model = std::move(made);
  return {};
}

Status Transformer::load_state_dict(const StateDict& dict, ParameterNames names) {
  const bool gpt2 = names == ParameterNames::kGpt2;
  const int64_t width = config_.block.attention.embed_dim;
  if (width == 0) return option_error("model", "one that was created", "none");
  if (Status status = nn::validate_names(names, config_.block.attention); !status.ok()) {
    return status;
  }
  const std::string prefix = gpt2 ? gpt2_prefix(dict) : "";
  const std::string embedding = prefix + (gpt2 ? "wte.weight" : "embedding.weight");
  const std::string position = prefix + (gpt2 ? "wpe.weight" : "position.weight");
  const std::string norm = prefix + (gpt2 ? "ln_f" : "norm");
  const std::string output = gpt2 ? "lm_head.weight" : "output.weight";

  auto parameters = std::make_shared<nn::Parameters>();
  parameters->add(embedding, {config_.vocab_size, width});
  if (config_.max_positions > 0) parameters->add(position, {config_.max_positions, width});
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    layers_[layer].add_parameters(*parameters, layer_name(prefix, names, layer), names);
  }
  if (config_.final_norm) nn::add_norm(*parameters, norm, config_.block.norm, width);
  if (!config_.tied_output) parameters->add(output, {config_.vocab_size, width});
  const auto ignored = [&](std::string_view name) {
    return (gpt2 && nn::is_gpt2_buffer(name)) || (config_.tied_output && name == output);
  };
  if (Status status = parameters->load(dict, ignored); !status.ok()) return status;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    Status status =
        layers_[layer].take_weights(*parameters, layer_name(prefix, names, layer), names);
    if (!status.ok()) return status;
    layers_[layer].owned_ = parameters;
  }
  embedding_ = parameters->find(embedding);
  position_ = parameters->find(position);
  norm_weight_ = parameters->find(norm + ".weight");
  norm_bias_ = parameters->find(norm + ".bias");
  output_ = config_.tied_output ? embedding_ : parameters->find(output);
  owned_ = std::move(parameters);
  return {};
}

Status Transformer::state_dict(StateDict& dict) const {
  if (owned_ == nullptr) {
    return option_error("state_dict", "parameters from load_state_dict()", "none");
  }
  dict = owned_->state_dict();
  return {};
}

Status Transformer::create_cache(const KVCacheConfig& config, TransformerCache& cache) const {
  TransformerCache made;
  for (const TransformerBlock& layer : layers_) {
    Status status = layer.attention().create_cache(config, made.layers_.emplace_back());
    if (!status.ok()) return status;
  }
  cache = std::move(made);
  return {};
}

Status Transformer::forward(std::span<const int32_t> tokens, int64_t batch,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs, Context& context) const {
  return run(tokens, batch, options, outputs, nullptr, context);
}

Status Transformer::step(std::span<const int32_t> tokens, const MultiHeadAttentionOptions& options,
                         const TransformerOutputs& outputs, TransformerCache& cache,
                         Context& context) const {
  if (cache.layers_.size() != layers_.size() || layers_.empty()) {
    return option_error("cache",
                        "one of create_cache(), with " + std::to_string(layers_.size()) + " layers",
                        std::to_string(cache.layers_.size()) + " layers");
  }
  if (!config_.causal) return option_error("causal", "a causal model for steps", "another");
  const int64_t before = cache.length();
  const int64_t batch = cache.layers_.front().kv().config().batch;
  Status status = run(tokens, batch, options, outputs, &cache, context);
  if (status.ok()) return status;
  // Layers before the one that failed have taken the tokens in.
  for (MultiHeadAttentionCache& layer : cache.layers_) {
    if (layer.length() == before) continue;
    if (Status undone = layer.rewind(before); !undone.ok()) return undone;
  }
  return status;
}

Status Transformer::run(std::span<const int32_t> tokens, int64_t batch,
                        const MultiHeadAttentionOptions& options, const TransformerOutputs& outputs,
                        TransformerCache* cache, Context& context) const {
  if (owned_ == nullptr) return option_error("model", "weights: load_state_dict()", "none");
  const auto count = static_cast<int64_t>(tokens.size());
  if (batch < 1 || count % batch != 0) {
    return {StatusCode::kShape, "tokens",
            "as many for each of the " + std::to_string(batch) + " batch entries",
            std::to_string(count)};
  }
  const int64_t length = count / batch, width = config_.block.attention.embed_dim;
  const int64_t before = cache == nullptr ? 0 : cache->length();
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return option_error("tokens", "0 to " + std::to_string(config_.vocab_size - 1),
                          std::to_string(token));
    }
  }
  if (config_.max_positions > 0 && before + length > config_.max_positions) {
    return option_error("tokens",
                        "at most max_positions = " + std::to_string(config_.max_positions) +
                            " for each batch entry",
                        std::to_string(before + length));
  }
  if (options.attention.causal.alignment != Alignment::kNone) {
    return option_error("causal", "none: it is the model's", "one");
  }
  if (options.heads.skip_out_proj) {
    return option_error("skip_out_proj", "false in a stack", "true");
  }
  if (!outputs.traces.empty() && outputs.traces.size() != layers_.size()) {
    return {StatusCode::kShape, "traces", std::to_string(layers_.size()) + ", one per layer",
            std::to_string(outputs.traces.size())};
  }
  const auto layers = static_cast<int64_t>(layers_.size());
  const struct {
    const char *name, *letters;
    const Tensor& tensor;
    Dims shape;
  } given[] = {
      {"logits", "(B, N, vocab_size)", outputs.logits, {batch, length, config_.vocab_size}},
      {"hidden", "(num_layers, B, N, embed_dim)", outputs.hidden, {layers, batch, length, width}}};
  for (const auto& [name, letters, tensor, shape] : given) {
    if (!tensor.given()) continue;
    if (Status status = validate_exact(name, letters, tensor, shape); !status.ok()) return status;
    if (!(tensor.strides == contiguous_strides(shape))) {
      return {StatusCode::kShape, name, "a contiguous tensor",
              "strides " + tensor.strides.to_string()};
    }
  }

  nn::Arena arena;
  TransformerBlock::Scratch::count(config_.block, count, arena);
  arena.count_floats(count * width);
  if (Status status = arena.reserve(context.scratch().stack()); !status.ok()) return status;
  const auto scratch = TransformerBlock::Scratch::take(config_.block, count, arena);
  float* const x = arena.take_floats(count * width);
  for (int64_t row = 0; row < count; ++row) {
    const int64_t token = tokens[static_cast<size_t>(row)];
    std::copy_n(embedding_.data + token * width, width, x + row * width);
    if (config_.max_positions == 0) continue;
    const float* const position = position_.data + (before + row % length) * width;
    for (int64_t c = 0; c < width; ++c) x[row * width + c] += position[c];
  }
  MultiHeadAttentionOptions of_layer = options;
  if (config_.causal && cache == nullptr) of_layer.attention.causal = Causal::top_left();
  const Tensor hidden(x, {batch, length, width});
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    // Every layer drops out other weights.
    of_layer.dropout_seed = options.dropout_seed + (static_cast<uint64_t>(layer) << 32U);
    Status status = layers_[layer].run(
        hidden, of_layer, {.out = hidden}, cache == nullptr ? nullptr : &cache->layers_[layer],
        outputs.traces.empty() ? nullptr : &outputs.traces[layer], scratch, context);
    if (status.argument() == "x") {
      // What a layer calls its input is here what came of the tokens.
      return {status.code(), "tokens", status.expected(), status.got()};
    }
    if (!status.ok()) return status;
    if (outputs.hidden.given()) {
      std::copy_n(x, count * width,
                  outputs.hidden.data + static_cast<int64_t>(layer) * count * width);
    }
  }
  if (!outputs.logits.given()) return {};
  if (norm_weight_.given()) {
    Status status = nn::normalise(config_.block.norm, {x, {count, width}}, norm_weight_, norm_bias_,
                                  config_.block.norm_eps, {x, {count, width}}, context);
    if (!status.ok()) return status;
  }
  return linear({x, {count, width}}, output_, {},
                {outputs.logits.data, {count, config_.vocab_size}}, context);
}

Status gpt2_config(const StateDict& dict, int64_t num_heads, TransformerConfig& config) {
  const std::string prefix = gpt2_prefix(dict);
  const auto shape_of = [&](const std::string& name) -> Dims {
    const auto found = dict.find(prefix + name);
    return found == dict.end() || found->second.shape.rank() != 2 ? Dims{} : found->second.shape;
  };
  const Dims embedding = shape_of("wte.weight"), position = shape_of("wpe.weight");
  const Dims mlp = shape_of("h.0.mlp.c_fc.weight");
  for (const auto& [name, shape] : {std::pair{"wte.weight", &embedding},
                                    {"wpe.weight", &position},
                                    {"h.0.mlp.c_fc.weight", &mlp}}) {
    if (shape->rank() == 2) continue;
    return {StatusCode::kShape, "state_dict", "a matrix " + prefix + name, "none"};
  }
  int64_t layers = 1;
  while (dict.contains(layer_name(prefix, ParameterNames::kGpt2, static_cast<size_t>(layers)) +
                       "ln_1.weight")) {
    ++layers;
  }
  config = {.block = {.attention = {.embed_dim = embedding[1], .num_heads = num_heads},
                      .mlp_dim = mlp[1],
                      .activation = Activation::kGeluTanh},
            .num_layers = layers,
            .vocab_size = embedding[0],
            .max_positions = position[0],
            .tied_output = true};
  return {};
}

}  // namespace multihead
