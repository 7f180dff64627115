// MultiHeadAttention::create(): checks the config and fills in its defaults.
#include <cstdint>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/latent.h"

namespace multihead {
namespace {

Status validate_extents(const MultiHeadAttentionConfig& c) {
  // Limit of every extent: far above any model, and the product of three extents fits in 64 bits.
  constexpr int64_t kMost = 1 << 20;
  const struct {
    Name name;
    Message message;  // for extents that may be 0, the message says what 0 means
    int64_t value;
  } extents[] = {{Name::kEmbedDim, Message::kExtent, c.embed_dim},
                 {Name::kNumHeads, Message::kExtent, c.num_heads},
                 {Name::kHeadDim, Message::kExtentOrWidthPerHead, c.head_dim},
                 {Name::kNumKvHeads, Message::kExtentOrNumHeads, c.num_kv_heads},
                 {Name::kValueDim, Message::kExtentOrHeadDim, c.value_dim},
                 {Name::kKdim, Message::kExtentOrEmbedDim, c.kdim},
                 {Name::kVdim, Message::kExtentOrEmbedDim, c.vdim},
                 {Name::kOutDim, Message::kExtentOrEmbedDim, c.out_dim},
                 {Name::kKvLatentDim, Message::kExtentOrNoLatent, c.kv_latent_dim},
                 {Name::kQLatentDim, Message::kExtentOrTokens, c.q_latent_dim},
                 {Name::kRopeHeadDim, Message::kExtentOrNone, c.rope_head_dim}};
  for (const auto& [name, message, value] : extents) {
    if (value >= (message == Message::kExtent ? 1 : 0) && value <= kMost) continue;
    return option_error(name, message, value);
  }
  if (c.head_dim == 0 && c.embed_dim % c.num_heads != 0) {
    return option_error(Name::kNumHeads, Message::kDivisorOfEmbedDim, c.embed_dim, c.num_heads);
  }
  if (c.num_kv_heads != 0 && c.num_heads % c.num_kv_heads != 0) {
    return option_error(Name::kNumKvHeads, Message::kDivisorOfNumHeads, c.num_heads,
                        c.num_kv_heads);
  }
  return {};
}

// Checks the config's options by the rules of attention()'s options.
Status validate_model_options(const MultiHeadAttentionConfig& c) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kRopeStyle, c.rope.style, Rope::Style::kHalf));
  if (c.window.alignment != Alignment::kNone) {
    return option_error(Name::kWindowAlignment, Message::kAlignmentOfCall);
  }
  if (!c.rope.q_positions.empty() || !c.rope.k_positions.empty()) {
    return option_error(Name::kRope, Message::kPositionsOfCall);
  }
  if (!(c.out_dropout >= 0.0F && c.out_dropout < 1.0F)) {
    return engine::real_error(Name::kOutDropout, Message::kProbability, c.out_dropout);
  }
  AttentionOptions options;
  options.scale = 1.0F;  // any value: if the key width is 0, there is no default scale
  options.window = c.window;
  options.softcap = c.softcap;
  options.rope = c.rope;
  options.qk_norm.enabled = c.qk_norm;
  options.qk_norm.eps = c.qk_norm ? c.qk_norm_eps : options.qk_norm.eps;
  options.dropout.probability = c.dropout;
  const engine::AttentionShape shape{.batch = 1,
                                     .heads = c.num_heads,
                                     .kv_heads = c.num_kv_heads,
                                     .queries = 1,
                                     .keys = 1,
                                     .head_dim = nn::transformed_width(c),
                                     .value_dim = c.value_dim};
  return engine::validate_options(options, shape);
}

}  // namespace

Status MultiHeadAttention::create(const MultiHeadAttentionConfig& config,
                                  MultiHeadAttention& module) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(validate_extents(config));
    MultiHeadAttention made;
    made.config_ = config;
    MultiHeadAttentionConfig& c = made.config_;
    const auto otherwise = [](int64_t& value, int64_t instead) {
      if (value == 0) value = instead;
    };
    otherwise(c.head_dim, c.embed_dim / c.num_heads);
    otherwise(c.num_kv_heads, c.num_heads);
    otherwise(c.kdim, c.embed_dim);
    otherwise(c.vdim, c.embed_dim);
    MULTIHEAD_TRY(nn::validate_latent_config(c));
    otherwise(c.value_dim, c.head_dim - c.rope_head_dim);
    otherwise(c.out_dim, c.embed_dim);
    if (!c.out_proj) c.out_dim = c.num_heads * c.value_dim;
    MULTIHEAD_TRY(validate_model_options(c));
    made.id_ = nn::new_version();
    module = std::move(made);
    return {};
  });
}

}  // namespace multihead
