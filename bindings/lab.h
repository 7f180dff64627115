// Options of multihead::lab that JavaScript gives together with those of a module's call.
#pragma once

#include <optional>

#include "arguments.h"
#include "engine/error/error.h"
#include "multihead/lab.h"

namespace multihead::bindings {

inline void apply_scale(const MultiHeadAttentionConfig& config, ModuleOptions& options) {
  if (!options.scale_by_embed_dim || options.attention.scale) return;
  options.attention.scale = embed_dim_scale(config);
}

// Returns the module that the options ask for: `module`, or one without output projection, which
// `changed` then holds.
inline const MultiHeadAttention& apply_lab(const MultiHeadAttention& module, ModuleOptions& options,
                                           std::optional<MultiHeadAttention>& changed) {
  apply_scale(module.config(), options);
  return options.skip_out_proj ? changed.emplace(without_out_proj(module)) : module;
}

// Options of a transformer's blocks, which need their output projections.
inline Status apply_lab(const TransformerBlockConfig& config, ModuleOptions& options) {
  apply_scale(config.attention, options);
  if (!options.skip_out_proj) return {};
  return engine::option_error(engine::Name::kSkipOutProj, engine::Message::kFalseInTransformer);
}

}  // namespace multihead::bindings
