// MultiHeadAttentionCache and MultiHeadAttention::create_cache().
#include <cstdint>
#include <utility>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/attention_parameters.h"

namespace multihead {

int64_t MultiHeadAttentionCache::length(int64_t batch) const { return kv_.length(batch); }

Status MultiHeadAttentionCache::truncate(int64_t length) {
  return engine::memory_guard([&]() -> Status {
    const KVCacheConfig& config = kv_.config();
    for (int64_t b = 0; b < config.batch; ++b) {
      if (length < 0 || length > kv_.length(b)) {
        return option_error(Name::kLength, Message::kRange, 0, kv_.length(b), length);
      }
      // Truncation to a length > 0 needs the tokens before that length; a ring may have overwritten
      // them.
      if (length != 0 && length < kv_.first_kept(b)) {
        return option_error(Name::kLength, Message::kFirstKept, kv_.first_kept(b), length);
      }
    }
    for (int64_t b = 0; b < config.batch; ++b) {
      MULTIHEAD_TRY(kv_.truncate(b, length));
    }
    return {};
  });
}

Status MultiHeadAttention::create_cache(const KVCacheConfig& config,
                                        MultiHeadAttentionCache& cache) const {
  return engine::memory_guard(
      [&] { return Internals::create_cache(*this, config, nullptr, cache); });
}

Status MultiHeadAttention::Internals::create_cache(const MultiHeadAttention& module,
                                                   const KVCacheConfig& config,
                                                   const engine::Team* team,
                                                   MultiHeadAttentionCache& cache) {
  const MultiHeadAttentionConfig& c = module.config_;
  if (module.id_ == 0) return option_error(Name::kModule, Message::kCreated);
  if (c.add_bias_kv || c.add_zero_attn) {
    return option_error(c.add_bias_kv ? Name::kAddBiasKv : Name::kAddZeroAttn,
                        Message::kFalseWithCache);
  }
  for (const auto& [name, width] : {std::pair{Name::kKdim, c.kdim}, {Name::kVdim, c.vdim}}) {
    if (width == c.embed_dim) continue;
    return option_error(name, Message::kWidthOfSelfAttention, c.embed_dim, width);
  }
  MULTIHEAD_TRY(
      engine::validate_enumerator(Name::kLayout, config.layout, KVCacheConfig::Layout::kPaged));
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kType, config.type, KVCacheConfig::Type::kInt8));
  KVCacheConfig layer_config = config;
  const bool latent = c.kv_latent_dim > 0;
  layer_config.num_kv_heads = latent ? 1 : c.num_kv_heads;
  layer_config.head_dim = latent ? c.kv_latent_dim + c.rope_head_dim : c.head_dim;
  layer_config.value_dim = latent ? c.kv_latent_dim : c.value_dim;
  layer_config.values_in_keys = latent;
  if (layer_config.layout == KVCacheConfig::Layout::kRing &&
      (c.window.left < 0 || layer_config.capacity <= c.window.left)) {
    return option_error(Name::kCapacity, Message::kRingCapacity, layer_config.capacity,
                        c.window.left);
  }
  MultiHeadAttentionCache made;
  MULTIHEAD_TRY(KVCache::Internals::create(layer_config, team, made.kv_));
  made.layer_ = module.id_;
  cache = std::move(made);
  return {};
}

}  // namespace multihead
