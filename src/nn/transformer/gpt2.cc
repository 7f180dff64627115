// Names and configuration of GPT-2 checkpoints.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/error/error.h"
#include "multihead/transformer.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {
namespace nn {

std::string gpt2_prefix(const StateDict& dict) {
  constexpr const char* kPrefix = "transformer.";
  return dict.contains(std::string(kPrefix) + "wte.weight") ? kPrefix : "";
}

std::string layer_name(const std::string& prefix, ParameterNames names, size_t layer) {
  return prefix + (names == ParameterNames::kGpt2 ? "h." : "layers.") + std::to_string(layer) + ".";
}

bool is_gpt2_buffer(std::string_view name) {
  // The name must follow a dot or begin the string: c_attn.bias is a parameter.
  const auto is = [&](std::string_view buffer) {
    if (!name.ends_with(buffer)) return false;
    const std::string_view before = name.substr(0, name.size() - buffer.size());
    return before.empty() || before.ends_with('.');
  };
  return is("attn.bias") || is("attn.masked_bias");
}

}  // namespace nn

namespace {}  // namespace

Status gpt2_config(const StateDict& dict, int64_t num_heads, TransformerConfig& config) {
  return engine::memory_guard([&]() -> Status {
    const std::string prefix = nn::gpt2_prefix(dict);
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
      return engine::text_error(StatusCode::kShape, engine::Name::kStateDict,
                                engine::Message::kMatrix, prefix + name);
    }
    int64_t layers = 1;
    while (
        dict.contains(nn::layer_name(prefix, ParameterNames::kGpt2, static_cast<size_t>(layers)) +
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
  });
}

}  // namespace multihead
